"""Reads a query's checkpoint: the last micro-batch that Spark planned, its end, and whether it finished."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.planner.stream_set import begin_of
from kinesis_efo.positions import Offset, sources_of
from kinesis_efo_tools.operate.access import Clients
from kinesis_efo_tools.operate.findings import CheckFailed, CheckUnknown

_NUMBER: Final = re.compile(r"\d+")
_NAMED: Final = re.compile(r"[^{:]+:(?=\{)")
"""Pattern for the id of a source, which precedes the source's offset in version 2 of Spark's offset log."""

_KNOWN_VERSIONS: Final = ("v1", "v2")


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The last micro-batch that Spark planned.

    If the micro-batch is not `finished`, it is not in Spark's commit log, and the next start repeats it. `ends` has one entry for each
    kinesis-efo source of the query.
    """

    batch: int
    finished: bool
    ends: tuple[SourceEnd, ...]


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """Where a micro-batch ends for one source, and where the next start reads from.

    Attributes:
        begin: Where the next start reads from: the end of a finished micro-batch, or the start of an unfinished one. None for an unfinished
            first micro-batch if the log does not contain its start, which is then determined by the query's options.
        offset: Where the micro-batch ends.
        sources: The ARNs of the source's streams by logical name; only those that the offset contains.
    """

    begin: Offset | None
    offset: Offset
    sources: dict[str, str]

    @property
    def streams(self) -> set[str]:
        """Logical names of the source's streams."""
        return {key.stream for key in self.offset}


class Folder(Protocol):
    """The directory of a query's checkpoint, on a local disk or in S3."""

    async def exists(self) -> bool:
        """Whether the directory exists."""
        ...

    async def names(self, folder: str) -> Collection[str]:
        """List the files in a subfolder, or in the directory itself (""); empty if there is no such folder."""
        ...

    async def read(self, name: str) -> str:
        """Read a text file, by its path relative to the checkpoint."""
        ...


async def planned(folder: Folder) -> PlannedBatch | None:
    """Read the last micro-batch that a query planned; None if there is none.

    Raises CheckFailed if the checkpoint does not exist, or Spark or this library rejects it. Raises CheckUnknown if Spark may reject it or
    skip an unfinished micro-batch.
    """
    if not await folder.exists():
        raise CheckFailed(
            f"there is nothing at {folder}",
            "correct the location: it is the one that the query has as checkpointLocation",
        )
    # List the commits before the offsets, and again later. A live query writes offsets first, so each of these commits has an offset.
    commits = _numbers(await folder.names("commits"))
    batches = _numbers(await folder.names("offsets"))
    newest, last = max(batches, default=-1), max(commits, default=-1)
    if last > newest:
        why = f"there is commits/{last} without offsets/{last}, so a start repeats a micro-batch and then fails"
        raise _refused(folder, why)
    if not batches:
        return None
    name = f"offsets/{newest}"
    again = (
        "" if newest in commits
        else f"; or, if the output has no rows of micro-batch {newest}, delete {name}: a start plans this micro-batch again"
    )  # fmt: skip
    lines = await _lines(folder, name, again)
    # Accept gaps if no numbers are consecutive: with asyncProgressTrackingEnabled, Spark skips batch numbers and starts without them.
    consecutive = any(number + 1 in numbers for numbers in (batches, commits) for number in numbers)
    if newest - 1 not in batches and newest > 0 and (len(batches) == 1 or consecutive):
        raise _refused(folder, f"offsets/{newest - 1} is missing, and a start reads it together with {name}")
    previous = f"offsets/{max(batches - {newest}, default=newest)}"
    earlier = await _lines(folder, previous)
    if lines[0] == earlier[0] == "v1" and len(lines) != len(earlier):
        raise _refused(folder, f"{previous} has {len(earlier) - 2} sources, {name} has {len(lines) - 2}", again)
    commits = _numbers(await folder.names("commits"))
    last = max(commits, default=-1)
    if commits:
        await _lines(folder, f"commits/{last}")
    await _check_metadata(folder)
    if skipped := sorted(batch for batch in batches if last < batch < newest):
        raise CheckUnknown(
            f"{folder}: micro-batch {skipped[0]} is among the offsets and not among the commits, and a start repeats only the last, {newest}",
            f"restore the folder commits as well; if micro-batch {skipped[0]} is not in the output, its rows are left out",
        )
    finished, ends = newest in commits, _ends(folder, name, lines, again)
    before = ends if finished else _ends(folder, previous, earlier) if previous != name else {}
    if not finished:
        before |= {at: begin for at, end in ends.items() if (begin := begin_of(end)) is not None}
    found = tuple(
        SourceEnd(Offset.from_dict(before[at]) if at in before else None, Offset.from_dict(end), sources_of(end))
        for at, end in ends.items()
    )
    return PlannedBatch(newest, finished, found)


_RESTORE: Final = (
    "restore all of its files from one moment, or start the query with a new checkpoint, at startingPosition=LEASES"
)


def _refused(folder: Folder, why: str, or_else: str = "") -> CheckFailed:
    return CheckFailed(f"{folder}: Spark refuses this checkpoint: {why}", f"{_RESTORE}{or_else}")


def _unknown(folder: Folder, why: str) -> CheckFailed:
    return CheckFailed(f"{folder}: {why}", f"use the versions of Spark and kinesis-efo that wrote it, or {_RESTORE}")


async def _check_metadata(folder: Folder) -> None:
    if "metadata" not in await folder.names(""):
        raise CheckUnknown(
            f"{folder}: the file metadata is missing: Spark 4.2 and later refuse this checkpoint, and earlier ones give the query a new id",
            "restore the file: a sink that identifies a query by its id, such as Delta Lake, would write its micro-batches again",
        )
    if not isinstance(_plain(await folder.read("metadata")), dict):
        raise _refused(folder, "the file metadata is not JSON")


def _numbers(names: Collection[str]) -> set[int]:
    # Leave out checksums and temporary files.
    return {int(name) for name in names if _NUMBER.fullmatch(name)}


async def _lines(folder: Folder, name: str, or_else: str = "") -> list[str]:
    """Read the lines of a file in Spark's log: the version, the metadata, and one line for each source.

    `or_else` is appended to the suggested fix if the file is damaged.
    """
    version, *rest = (await folder.read(name)).splitlines() or [""]
    if not version.strip():
        raise _refused(folder, f"{name} is empty", or_else)
    if version.strip() not in _KNOWN_VERSIONS:
        raise _unknown(folder, f"{name} begins with {version[:40]!r}, not with {' or '.join(_KNOWN_VERSIONS)}")
    if rest and not isinstance(_plain(rest[0]), dict):
        raise _refused(folder, f"{name} is cut off", or_else)
    return [version.strip(), *(rest or ["{}"])]


def _ends(folder: Folder, name: str, lines: list[str], or_else: str = "") -> dict[int, dict[str, Any]]:
    """Return the offsets of kinesis-efo sources in the lines of a log file, by the source's index."""
    found = {}
    for place, line in enumerate(lines[2:]):
        text = line if line.startswith("{") else _NAMED.sub("", line, count=1)
        data = _plain(text)
        if data is None and text.startswith("{"):
            raise _refused(folder, f"{name} is cut off in the offset of source {place}", or_else)
        if isinstance(data, dict) and {"streams", "version"} <= data.keys():
            try:
                Offset.from_dict(data)
            except ValueError as error:
                raise _unknown(folder, f"{name}: {error}") from None
            found[place] = data
    return found


def _plain(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def folder_at(location: str, clients: Clients) -> Folder:
    """Return the directory at a checkpoint location: a path, or `s3://bucket/prefix`.

    >>> folder_at("hdfs:///checkpoints/lake", None)
    Traceback (most recent call last):
    ...
    kinesis_efo.errors.ConfigurationError: checkpoint hdfs:///checkpoints/lake: file system 'hdfs' cannot be read from here. Copy its folders 'offsets' and 'commits' and its file 'metadata' into a local folder, and give that
    """
    parts = urlsplit(location)
    if parts.scheme in ("s3", "s3a", "s3n"):
        if not parts.netloc:
            raise ConfigurationError(f"checkpoint {location} must be s3://bucket/prefix")
        return _S3Folder(clients, parts.netloc, parts.path.strip("/"))
    if parts.scheme == "file":
        return _LocalFolder(Path(unquote(parts.path)))
    if len(parts.scheme) > 1:  # a single letter is a Windows drive
        raise ConfigurationError(
            f"checkpoint {location}: file system {parts.scheme!r} cannot be read from here. Copy its folders 'offsets' and 'commits' "
            "and its file 'metadata' into a local folder, and give that"
        )
    return _LocalFolder(Path(location))


class _LocalFolder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    async def exists(self) -> bool:
        return await asyncio.to_thread(self._path.is_dir)

    async def names(self, folder: str) -> Collection[str]:
        def listed() -> list[str]:
            inside = self._path / folder
            return [each.name for each in inside.iterdir()] if inside.is_dir() else []

        return await asyncio.to_thread(listed)

    async def read(self, name: str) -> str:
        return await asyncio.to_thread((self._path / name).read_text, encoding="utf-8", errors="replace")


class _S3Folder:
    def __init__(self, clients: Clients, bucket: str, prefix: str) -> None:
        self._clients = clients
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def __str__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    async def exists(self) -> bool:
        s3 = await self._clients.client("s3")
        answer = await s3.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        return bool(answer.get("KeyCount"))

    async def names(self, folder: str) -> Collection[str]:
        s3 = await self._clients.client("s3")
        prefix = f"{self._prefix}{folder}/" if folder else self._prefix
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix, Delimiter="/")
        return [each["Key"].removeprefix(prefix) async for page in pages for each in page.get("Contents", ())]

    async def read(self, name: str) -> str:
        s3 = await self._clients.client("s3")
        answer = await s3.get_object(Bucket=self._bucket, Key=f"{self._prefix}{name}")
        async with answer["Body"] as body:
            return bytes(await body.read()).decode(errors="replace")
