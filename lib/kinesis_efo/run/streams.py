"""The streams of a run: the streams of its first query, and streams that are added when further queries join."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kinesis_efo.fetcher.background import all_of
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.manifest import Manifest, StreamRef


class RunStreams:
    """Opens each stream of a run once. `open_stream` opens a stream, but does not list its shards."""

    def __init__(self, manifest: Manifest, open_stream: Callable[[StreamRef], Stream]) -> None:
        self.opened: Final = {name: open_stream(ref) for name, ref in manifest.streams.items()}
        self._refs = dict(manifest.streams)
        self._names = manifest.stream_names
        self._open_stream = open_stream
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._read: set[str] = set()

    @property
    def arns(self) -> dict[str, str]:
        """The ARNs of all streams by logical name, including streams that are still being opened."""
        return {name: ref.stream_arn for name, ref in self._refs.items()}

    def faults(self, streams: Mapping[str, StreamRef]) -> list[str]:
        """Return why a query that reads these streams (by logical name) cannot share the run; empty if it can."""
        faults = []
        for name, ref in streams.items():
            known = self._refs.get(name)
            if known not in (None, ref) or self._names.get(name) != ref.stream_name:
                faults.append(
                    f"stream {name!r} is {ref.consumer_arn or ref.stream_arn} in this query, but has another ARN or name in another query "
                    "of this Spark program with the same lease table (or also without one): give both queries the same manifest or ARNs, "
                    "or separate lease tables, or stop the program's other queries first"
                )
        return faults

    def add(self, streams: Mapping[str, StreamRef], in_use: Collection[str]) -> None:
        """Start opening those of the given streams that are new to the run, or that were read and are not `in_use`: they may be re-created."""
        for name, ref in streams.items():
            opening = self._opening.get(name)
            if name not in self._refs or (name in self._read - {*in_use} and (opening is None or opening.done())):
                self._refs[name] = ref
                self._opening[name] = asyncio.create_task(self._open(name, ref), name=f"open {name}")
        self._read |= streams.keys()

    async def ready(self, names: Collection[str]) -> None:
        """Wait until the streams with these logical names are open. Raises the error of a stream that cannot be opened."""
        # Shield the task, because several clients may wait for the same stream, and one of them may be cancelled.
        await asyncio.gather(*(asyncio.shield(self._opening[name]) for name in names if name in self._opening))

    async def _open(self, name: str, ref: StreamRef) -> None:
        stream = self._open_stream(ref)
        try:
            await all_of(stream.refresh(patient=True), stream.identify())
        except BaseException:
            del self._refs[name], self._opening[name]
            raise
        self.opened[name] = stream
