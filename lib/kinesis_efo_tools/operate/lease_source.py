"""Reads leases to import from a file (the JSON output of `aws dynamodb scan`), and interprets the keys of KCL rows."""

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
"""Number of colons in KCL lease keys: `<shard id>`, or `<account>:<stream>:<creation time>:<shard id>`."""

_IMPORTED: Final = ", or import a file without them: save the output of `aws dynamodb scan`, take them out, and name it with --from-file"


class _Document(msgspec.Struct):
    items: list[Item] = msgspec.field(name="Items")
    last: Item | None = msgspec.field(name="LastEvaluatedKey", default=None)
    token: str | None = msgspec.field(name="NextToken", default=None)


def read_file(path: Path) -> dict[str, Lease]:
    """Read the leases in a file, by lease key. Skips KCL's rows about workers and streams.

    Raises ConfigurationError if the file cannot be read, has only a part of a table, or has rows that are not leases in KCL's format.
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
    """Return the converter for the lease keys of imported rows.

    `stream` is a logical name if the keys are only shard ids, as in a KCL application with one stream; None if the keys name the stream.
    Raises ManifestError if the application has no such stream.
    """
    if stream is None:
        return LeaseKeys(manifest.stream_names)
    chosen = manifest.select([stream]).streams
    return LeaseKeys({name: ref.stream_name for name, ref in chosen.items()})


def require_one_form(rows: Collection[str], keys: LeaseKeys, source: str, remedy: str = _IMPORTED) -> None:
    """Raise ConfigurationError if a stream's lease keys differ in format: it is then unknown which rows have the current positions.

    This happens if a KCL application that read one stream now reads several, or if a stream was created again: old rows remain. `rows` has
    the lease keys. In the message, `source` names the table or file, and `remedy` suggests an alternative to deleting rows.
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
