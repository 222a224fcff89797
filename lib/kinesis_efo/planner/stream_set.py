"""Compares a query's streams with the streams in its checkpoint: streams may have been added, removed or replaced.

This module only compares and logs. A checkpoint contains the logical names of streams and, since version 0.2, their ARNs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Final

from kinesis_efo.errors import ConfigurationError, StreamReplacedError
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.positions import Offset, Position, ShardKey, sources_of

logger = logging.getLogger(__name__)

_SHOWN: Final = 10
_UNION: Final = "; if it unites several sources, give them in the order that they had"
_FINISH: Final = "let the query first finish its last micro-batch, which has records of it: run it once with the former streams. Then "
_FIRST: Final = "give the query a new checkpointLocation, or run it once with the former streams as well, then "


def begin_of(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the start offset of the micro-batch that ends at offset `data`; None if `data` does not contain it."""
    begin = data.get("begin")
    return (
        None if begin is None else {**data, "lasts": {}, "mark": "", "until": {}, "streams": begin or data["streams"]}
    )


class StreamSet:
    """The streams that a query reads: all streams of `manifest`.

    With `drop`, the query continues without streams of its checkpoint that are not in `manifest`. It fails if all of them are missing.
    """

    def __init__(self, manifest: Manifest, *, drop: bool) -> None:
        self._streams = manifest.streams
        self._source = manifest.source
        self._drop = drop
        self._warned: set[str] = set()
        self._converted: tuple[Offset, Mapping[str, Any]] | None = None  # The last argument of `to_dict` and its result
        # The last few offsets, since Spark passes them repeatedly, and parsing thousands of shards is slow
        self._kept: deque[tuple[dict[str, Any], Offset]] = deque(maxlen=4)

    def to_dict(self, offset: Offset, begin: Offset | None = None) -> dict[str, Any]:
        """Return an offset as plain data, with the ARNs of the streams or consumers that are read.

        If `offset` is the end of the query's first micro-batch, `begin` is the start of that micro-batch, which Spark does not log.
        """
        for data, known in self._kept:
            if known is offset:
                return data
        data = offset.to_dict({name: _read_from(ref) for name, ref in self._streams.items()}, self._converted)
        self._converted = offset, data
        if begin is not None:
            horizons = {"horizons": times} if (times := begin.to_dict().get("horizons")) else {}
            data = {"begin": {} if begin is offset else begin.to_dict()["streams"], **data, **horizons}
        self._kept.appendleft((data, offset))
        return data

    def read_begin(self, data: Mapping[str, Any]) -> Offset | None:
        """Return the start of the micro-batch that ends at an offset accepted by `read`; None if the offset does not contain it."""
        return None if (begin := begin_of(data)) is None else self.read(begin)

    def read(self, data: Mapping[str, Any], *, finished: bool = True) -> Offset:
        """Parse an offset from plain data, without removed streams. Set `finished` if everything up to the offset is processed.

        Raises ConfigurationError if the data is invalid, a stream was renamed or, unless `drop` and `finished` are set, a stream was
        removed. Raises StreamReplacedError if a logical name refers to another stream than before.
        """
        for known, offset in self._kept:
            if known == data:
                return offset
        try:
            offset = Offset.from_dict(data)
        except ValueError as error:
            raise ConfigurationError(
                f"the query cannot continue from its checkpoint: {error}. A checkpoint belongs to one query and its sources: give this "
                f"query a separate checkpointLocation{_UNION}"
            ) from None
        for fault in self.faults(offset, sources_of(data), finished=finished):
            raise fault
        gone = {key.stream for key in offset} - self._streams.keys()
        for name in sorted(gone):
            left = _shown({key: at for key, at in offset.items() if key.stream == name})
            self._warn("stream %s is no longer read (option 'removedStreams'); it was read up to %s", name, left)
        offset = offset.without(gone) if gone else offset
        self._kept.appendleft((dict(data), offset))
        return offset

    def faults(
        self, offset: Offset, sources: Mapping[str, str], *, finished: bool
    ) -> list[ConfigurationError | StreamReplacedError]:
        """Return the reasons why the query cannot continue from an offset.

        `sources` has the ARNs from which the offset's streams were read. Set `finished` if everything up to the offset is processed.
        """
        known = {key.stream for key in offset}
        found: list[ConfigurationError | StreamReplacedError] = []
        gone = known - self._streams.keys()
        for name in sorted(known & sources.keys()):
            if (fault := self._compare(name, sources[name], known)) is not None:
                found.append(fault)
                gone.discard(name)
        # If all streams were removed, the checkpoint may belong to another source: fail even with `drop`.
        if gone and not (self._drop and finished and gone != known):
            found.append(ConfigurationError(self._removed(gone, others=gone == known, finished=finished)))
        return found

    def _compare(self, name: str, before: str, known: set[str]) -> ConfigurationError | StreamReplacedError | None:
        arn = _stream_arn(before)
        ref = self._streams.get(name)
        if ref is None:
            other = next((each.name for each in self._streams.values() if each.stream_arn == arn), None)
            if other is not None and other not in known:
                return ConfigurationError(
                    f"stream {arn} is called {other!r} in {self._source}, but {name!r} in the query's checkpoint: under a new name all "
                    f"of it would be read again. Call it {name!r} again, or start the query with a new checkpoint"
                )
        elif ref.stream_arn != arn:
            return StreamReplacedError(
                f"stream {name!r} is {ref.stream_arn} in {self._source}, but the query's checkpoint belongs to {arn}: positions of one "
                "stream are meaningless in another",
                remedy="Give the new stream another logical name, or start the query with a new checkpoint",
            ).about(name)
        elif _read_from(ref) != before:
            self._warn("stream %s is now read as %s; earlier runs read it as %s", name, _read_from(ref), before)
        return None

    def _removed(self, gone: Collection[str], *, others: bool, finished: bool) -> str:
        first = _FIRST if others else "" if finished else _FINISH
        names = ", ".join(map(repr, sorted(gone)))
        return (
            f"the query's checkpoint names {'stream' if len(gone) == 1 else 'streams'} {names}, but the query reads "
            f"{'only ' if others else ''}{', '.join(map(repr, sorted(self._streams)))} (from {self._source}). Where a stream was renamed, give "
            f"it its former name{_UNION if others else ''}. To continue without it, {first}set kinesis-efo option "
            "'removedStreams' to drop: its unread records then stay in the stream"
        )

    def _warn(self, text: str, name: str, *more: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning(text, name, *more)


def _read_from(ref: StreamRef) -> str:
    return ref.consumer_arn or ref.stream_arn


def _stream_arn(read_from: str) -> str:
    return read_from.partition("/consumer/")[0]


def _shown(positions: Mapping[ShardKey, Position]) -> str:
    first = [f"{key.shard} {at}" for key, at in sorted(positions.items())[:_SHOWN]]
    more = len(positions) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
