"""Reads leases to import from a file (the JSON of `aws dynamodb scan`), and interprets the keys of KCL's rows."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.row import Item, Lease
from kinesis_efo.manifest import Manifest

_KCL_COLONS: Final = (0, 3)
"""Colons in the keys of a KCL's rows: `<shard id>`, or `<account>:<stream>:<creation time>:<shard id>`."""

_IMPORTED: Final = ", or import a file without them: save the output of `aws dynamodb scan`, take them out, and name it with --from-file"


class _Document(msgspec.Struct):
    items: list[Item] = msgspec.field(name="Items")
    last: Item | None = msgspec.field(name="LastEvaluatedKey", default=None)
    token: str | None = msgspec.field(name="NextToken", default=None)


def read_file(path: Path) -> dict[str, Lease]:
    """Read the leases in a file, by lease key. Skips KCL's rows about workers and streams.

    Raises ConfigurationError if the file cannot be read, is not a whole table, or has rows that are not leases in KCL's form.
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
    if document.last is not None or document.token is not None:
        raise ConfigurationError(
            f"--from-file {path} is one page of a scan, and the table has more rows: run `aws dynamodb scan` without --no-paginate and "
            "--max-items"
        )
    return {lease.key: lease for lease in found if lease is not None}


def source_keys(manifest: Manifest, stream: str | None) -> LeaseKeys:
    """Create the converter for the keys of imported rows.

    `stream` is a logical name if keys have only a shard id, like those of a KCL application with one stream; None if
    they have the stream. Raises ManifestError if the application has no such stream.
    """
    if stream is None:
        return LeaseKeys(manifest.stream_names)
    chosen = manifest.select([stream]).streams
    return LeaseKeys({name: ref.stream_name for name, ref in chosen.items()})


def require_one_form(rows: Collection[str], keys: LeaseKeys, source: str, remedy: str = _IMPORTED) -> None:
    """Refuse rows of a KCL application with different forms of keys for one stream.

    A KCL application that first read one stream and now reads several has old and new rows; so has one with a stream that was created
    again. It is unknown which of two rows of a shard has its position. `rows` are lease keys. In messages, `source` describes where they
    are, and `remedy` an alternative to deleting them. The ConfigurationError names a row of each form.
    """
    found: dict[str, dict[str, str]] = {}
    for key in sorted(rows):
        stream = keys.stream(key)
        if stream is not None and key.count(":") in _KCL_COLONS:
            found.setdefault(stream, {}).setdefault(key.rpartition(":")[0], key)
    for stream, forms in found.items():
        if len(forms) > 1:
            examples = ", ".join(f"{key!r} ({_form(prefix)})" for prefix, key in forms.items())
            raise ConfigurationError(
                f"{source} names the shards of stream {stream} in {len(forms)} ways: {examples}. Only one of them has the positions of the "
                f"KCL application as it is now. Delete the rows of the other{remedy}"
            )


def _form(prefix: str) -> str:
    return "as a KCL application with one stream does" if not prefix else "as one with several streams does"
