"""Runs of a Spark program without AWS and Spark: real files, locks and services, and queries that note what is asked of them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.calls.service import Service
from kinesis_efo.clock import SystemClock
from kinesis_efo.failure import stopped
from kinesis_efo.fetcher.progress import PollReply, ShardProgress
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.marks import Mark
from kinesis_efo.options import Bounds, SourceOptions, Start
from kinesis_efo.planner.calls import finished
from kinesis_efo.planner.guests import Guests
from kinesis_efo.planner.program import Program
from kinesis_efo.planner.query_ends import Found
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.positions import Offset, Position, ShardKey, ShardRange
from kinesis_efo.processes import Process

T = TypeVar("T")
KEY = ShardKey("orders", "shardId-000000000000")
BIG = 49590338271490256608559692538361571095921575989136588898


def manifest(*streams: str) -> Manifest:
    """An application that reads some of three streams."""

    def ref(name: str) -> StreamRef:
        arn = f"arn:aws:kinesis:us-east-1:123456789012:stream/dev-{name}"
        return StreamRef(name, f"dev-{name}", arn, f"{arn}/consumer/lake:1")

    names = {name: f"dev-{name}" for name in ("orders", "clicks", "carts")}
    return Manifest("lake", "dev", "us-east-1", "leases", {each: ref(each) for each in streams}, "m.json", names)


class FakeQuery:
    """A query that notes what is asked of it, in the order in which it is done."""

    def __init__(self, streams: Collection[str] = (), ends: Bounds | None = None) -> None:
        self.streams = frozenset(streams)
        self.ends_at = ends
        self.asked: list[tuple[Any, ...]] = []
        self.left = False
        self.error: Exception | None = None
        self.going = asyncio.Event()
        self.going.set()
        self.at_once = 0

    async def _note(self, *asked: Any) -> None:
        self.at_once += 1
        assert self.at_once == 1, "calls of a query follow one another"
        try:
            await self.going.wait()
            self.asked.append(asked)
            if self.error is not None:
                raise self.error
        finally:
            self.at_once -= 1

    async def leave(self) -> None:
        self.left = True

    async def wait_held(self, at_most: float) -> bool:
        await self._note("wait_held", at_most)
        return True

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> PollReply:
        await self._note("poll", offset, max_bytes, max_records, at_most)
        progress = ShardProgress(KEY, Position.after(BIG + 1), 3, 300, 5, BIG, 1.5, 60)
        idle = ShardProgress(ShardKey("orders", "b"), Position.at_timestamp(1), 0, 0, None)
        return PollReply([progress, idle], [ShardKey("orders", "c")], [ShardKey("orders", "d")])

    async def commit(self, offset: Offset) -> None:
        await self._note("commit", offset)

    async def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        await self._note("last_records", ranges)
        return {ranges[0].key: BIG}

    async def check_replay(self, begin: Offset, ranges: Sequence[ShardRange]) -> None:
        await self._note("check_replay", begin, ranges)

    async def ends(self, offset: Offset, at_most: float) -> Found | None:
        await self._note("ends", offset, at_most)
        return Found({KEY: Position.after(BIG), ShardKey("orders", "b"): None}, True, {KEY: BIG}) if at_most else None

    async def strict(self, streams: Collection[str]) -> frozenset[str]:
        await self._note("strict", sorted(streams))
        return frozenset(streams)

    async def resume(self, offset: Offset) -> None:
        await self._note("resume", offset)

    def planned(self, mark: Mark) -> None:
        self.asked.append(("planned", mark))

    async def tips(self, offset: Offset, at_most: float) -> Offset | None:
        await self._note("tips", offset, at_most)
        return offset if at_most else None

    def done(self, name: str) -> list[tuple[Any, ...]]:
        """The calls with a name."""
        return [asked for asked in self.asked if asked[0] == name]


class Calls:
    """Calls to a query in its event loop; see `QueryCalls`."""

    def __init__(self, own: FakeOwn) -> None:
        self._own = own

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        return self._own.call(self._own.mine.poll(offset, max_bytes, max_records, timeout))

    def planned(self, mark: Mark) -> None:
        self._own.mine.planned(mark)

    def resume(self, offset: Offset) -> None:
        self._own.call(self._own.mine.resume(offset))

    def check_replay(self, begin: Offset, ranges: Sequence[ShardRange]) -> None:
        self._own.call(self._own.mine.check_replay(begin, ranges))


class FakeOwn:
    """A run of this process; see `PlannerRuntime`. It is stopped in order, or dies."""

    def __init__(self, streams: Manifest, options: SourceOptions, secret: str | None = None, name: str = "") -> None:
        self.query_name = name
        self.secret = secret or f"secret {id(self)}"
        self.is_guest: Literal[False] = False
        self.options = options
        self.clock = SystemClock()
        self.planner_address: FetcherAddress | None = None
        self.streams_changed: Callable[[dict[str, str]], None] = lambda _: None
        self.reading = False
        self.refs: dict[str, StreamRef] = dict(streams.streams)
        self.mine = FakeQuery(streams.streams)
        self.queries: list[FakeQuery] = []
        self.names: list[str] = []
        self.faults: list[str] = []
        self.left = self.stopped = False
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.starts = threading.Event()
        self.starts.set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.guests = Guests(self)  # type: ignore[arg-type]
        self.service: Service | None = None

    # -- as its own process sees it

    def start(self) -> None:
        if not self.starts.wait(20) or self.stopped:
            raise stopped()
        self.thread.start()
        self.service = Service(self.loop, self.secret, Listening(), more=self.guests.answer)

    @property
    def address(self) -> FetcherAddress:
        assert self.service is not None
        return self.service.address

    @property
    def query(self) -> Any:
        return Calls(self)

    def place(self, ranges: Sequence[ShardRange], at_most: float) -> list[FetcherAddress | None]:
        return [self.address] * len(ranges)

    def initial_offset(self, start: Start) -> Offset:
        return self.call(self.initial(start, self.mine.streams, self.mine))

    def say(self, line: str) -> None:
        self.guests.said.append(line)

    def leave(self) -> None:
        self.left = True

    def close(self, *, only_if_alone: bool = False) -> bool:
        async def close() -> bool:
            return self.guests.close(only_if_alone=only_if_alone)

        return self.call(close())

    def stop(self) -> None:
        self.stopped = True
        self.starts.set()
        if self.thread.is_alive():
            self.call(self.guests.stop())
            self.die()

    def die(self) -> None:
        """End as a process does that is killed."""
        if self.thread.is_alive():
            assert self.service is not None
            self.service.shutdown()
            self.loop.call_soon_threadsafe(self._end)
            self.thread.join(10)
        self.loop.close()

    def _end(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.call_soon(self.loop.stop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return finished(asyncio.run_coroutine_threadsafe(work, self.loop), self.thread.is_alive)
        except RuntimeError:
            work.close()
            raise stopped() from None

    # -- as its guests see it

    def stream_faults(self, streams: Mapping[str, StreamRef]) -> list[str]:
        return self.faults

    def extend(self, streams: Mapping[str, StreamRef]) -> asyncio.Task[None]:
        self.refs |= streams
        self.streams_changed({name: ref.stream_arn for name, ref in self.refs.items()})

        async def ready() -> None:
            await self.may_open.wait()

        return asyncio.create_task(ready())

    def new_query(self, name: str, streams: Collection[str], ends: Bounds) -> FakeQuery:
        self.names.append(name)
        self.queries.append(FakeQuery(streams, ends))
        return self.queries[-1]

    async def initial(self, start: Start, names: Collection[str], query: FakeQuery) -> Offset:
        return Offset({ShardKey(name, "a"): start.position or Position.at_timestamp(7) for name in names})

    async def added(self, start: Start, names: Collection[str]) -> Offset:
        return await self.initial(start, names, self.mine)

    async def placed(self, ranges: Sequence[ShardRange], at_most: float, query: str) -> list[FetcherAddress | None]:
        self.names.append(query)
        return [None if wanted.key == KEY else self.address for wanted in ranges]


class Programs:
    """Makes processes of one Spark program, all of them in this one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.begun: list[FakeOwn] = []
        self.runs: list[SharedRun] = []
        self.spark_waits = False
        self.stayed = 0

    def reader(self, *streams: str, **options: str) -> SharedRun:
        """The shared run of one more reader, not started yet."""
        what = manifest(*(streams or ("orders",)))
        parsed = SourceOptions.parse({"manifest": "m.json", **options})
        program = Program.found(self.directory / "notes", Process.of(os.getpid()), "lake")
        assert program is not None

        def begin(secret: str | None, name: str) -> FakeOwn:
            self.begun.append(FakeOwn(what, parsed, secret, name))
            return self.begun[-1]

        def stay(say: Callable[[str], None]) -> None:
            self.stayed += 1
            say("a line of the host\n")

        run = SharedRun(program, what, parsed, Listening(), begin, lambda: self.spark_waits, stay)
        self.runs.append(run)
        return run

    def kill(self, run: SharedRun) -> None:
        """End a host as if its process were killed: the kernel closes its files and sockets, and nobody tidies up."""
        own, file = run._run, run._joining._file
        assert isinstance(own, FakeOwn)
        assert file is not None
        self.runs.remove(run)
        run._left.set()
        file._path = self.directory / "nothing"
        file.close()
        own.die()

    def close(self) -> None:
        """End all of them."""
        for run in sorted(self.runs, key=lambda run: isinstance(run._run, FakeOwn)):
            run.stop()
        for own in self.begun:
            own.die()


def encoded(message: msgspec.Struct) -> Any:
    """A message after its way over the wire."""
    return msgspec.json.decode(msgspec.json.encode(message), type=type(message))
