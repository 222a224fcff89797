"""Where imported leases come from besides a table: files, and what the keys of KCL's rows mean.

Relies on rows; the JSON is that of `aws dynamodb scan`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.leases.row import Item, Lease, LeaseKeys
from kinesis_efo.manifest import Manifest


class _Document(msgspec.Struct):
    items: list[Item] = msgspec.field(name="Items")


def read_file(path: Path) -> dict[str, Lease]:
    """The leases in a file, by lease key. KCL's rows about workers and streams are passed over.

    Raises:
        ConfigurationError: The file cannot be read, or has rows that are no leases of KCL's form.
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
    """What the keys of imported rows mean.

    Args:
        manifest: The application.
        stream: Logical name of the stream that rows belong to which name only a shard: a KCL application that reads one
            stream. Keys with a stream in them need none.

    Raises:
        ManifestError: The application has no such stream.
    """
    if stream is None:
        return LeaseKeys(manifest.stream_names)
    chosen = manifest.select([stream]).streams
    return LeaseKeys({name: ref.stream_name for name, ref in chosen.items()})
