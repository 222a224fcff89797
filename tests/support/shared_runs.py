"""Runs of a Spark program without AWS and Spark: real files, locks and services, and queries that note what is asked of them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.calls.service import Service
from kinesis_efo.clock import SystemClock
from kinesis_efo.failure import stopped
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.marks import Mark
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.access import Begin, Call, Commit, Next, Plan, Planned, Reading, Step
from kinesis_efo.planner.ending import EndingState
from kinesis_efo.planner.guests import Guests
from kinesis_efo.planner.program import Program
from kinesis_efo.planner.runtime import finished
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.positions import Offset, Position, ShardKey
from kinesis_efo.processes import Process

T = TypeVar("T")
ENDING = EndingState(False, False, False, True, [(ShardKey("orders", "b"), None)], [])
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
    """Plans for a query, and notes what is asked of it, in the order in which it is done; see `QueryPlanner`."""

    def __init__(self, own: FakeOwn, streams: Collection[str], options: SourceOptions) -> None:
        self.streams = frozenset(streams)
        self.options = options
        self.asked: list[Any] = []
        self.finishes: list[tuple[list[Mark], str | None]] = []
        self.left = False
        self.error: Exception | None = None
        self.going = asyncio.Event()
        self.going.set()
        self.at_once = 0
        self.query = self
        self._own = own

    async def leave(self) -> None:
        self.left = True

    async def finished(self, marks: list[Mark], name: str | None) -> None:
        self.finishes.append((marks, name))
        if self.error is not None:
            raise self.error

    async def answer(self, call: Call[Any]) -> Any:
        self.at_once += 1
        assert self.at_once == 1, "calls of a query follow one another"
        try:
            await self.going.wait()
            self.asked.append(call)
            if self.error is not None:
                raise self.error
        finally:
            self.at_once -= 1
        match call:
            case Begin(new=True):
                return Offset({ShardKey(name, "a"): Position.at_timestamp(7) for name in self.streams}, {}, call.mark)
            case Next():
                end = call.position.moved_to({**call.position, KEY: Position.after(BIG + 1)}, {KEY: BIG})
                return Step(
                    None if end is call.position else end,
                    bytes=300,
                    data=60,
                    behind=[(KEY, 5), (ShardKey("orders", "b"), None)],
                    ending=ENDING,
                )
            case Plan():
                ranges = call.begin.ranges_to(call.end)
                return Planned([self._own.address], [(wanted.key, 0, 300) for wanted in ranges], ["orders"])
            case Commit():
                return True
            case Reading():
                return self._own.reading
        return None

    def done(self, kind: type[Call[Any]]) -> list[Any]:
        """The calls of a kind."""
        return [asked for asked in self.asked if isinstance(asked, kind)]


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
        self.mine = self.planner = FakeQuery(self, streams.streams, options)
        self.queries: list[FakeQuery] = []
        self.names: list[str] = []
        self.marks: list[Mark] = []
        self.faults: list[str] = []
        self.left = self.stopped = False
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.starts = threading.Event()
        self.starts.set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.said: deque[str] = deque()
        self.emptied = threading.Event()
        self.certificate = None
        self.guests = Guests(self, self.said)  # type: ignore[arg-type]
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

    def planned(self, mark: Mark) -> None:
        self.marks.append(mark)

    def ask(self, call: Call[T]) -> T:
        answer: T = self.call(self.mine.answer(call))
        return answer

    def say(self, line: str) -> None:
        self.said.append(line)

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

    def new_query(self, name: str, streams: Collection[str], options: SourceOptions) -> FakeQuery:
        self.names.append(name)
        self.queries.append(FakeQuery(self, streams, options))
        return self.queries[-1]


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
