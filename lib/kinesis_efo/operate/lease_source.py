"""Reads leases to import from a file, the JSON of `aws dynamodb scan`, and interprets the keys of KCL's rows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.leases.row import Item, Lease, LeaseKeys
from kinesis_efo.manifest import Manifest


class _Document(msgspec.Struct):
    items: list[Item] = msgspec.field(name="Items")


def read_file(path: Path) -> dict[str, Lease]:
    """Read the leases in a file, by lease key. Skips KCL's rows about workers and streams.

    Raises:
        ConfigurationError: The file cannot be read, or has rows that are not leases in KCL's form.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
        found = [Lease.from_item(item) for item in document.items]
    except OSError as error:
        raise ConfigurationError(f"--from-file {path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(
            f"--from-file {path} is neither an export nor the output of `aws dynamodb scan`: {error}"
        ) from None
    return {lease.key: lease for lease in found if lease is not None}


def source_keys(manifest: Manifest, stream: str | None) -> LeaseKeys:
    """How to translate the keys of imported rows to shards.

    Args:
        manifest: The application.
        stream: Logical name of the stream of rows that name only a shard, as those of a KCL application with one stream do;
            None if the keys name the stream.

    Raises:
        ManifestError: The application has no such stream.
    """
    if stream is None:
        return LeaseKeys(manifest.stream_names)
    chosen = manifest.select([stream]).streams
    return LeaseKeys({name: ref.stream_name for name, ref in chosen.items()})
