"""Runs of a Spark program without AWS and Spark: real files, locks and services, and queries that note what is asked of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.calls.service import Service
from kinesis_efo.clock import SystemClock
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.failure import stopped
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner import run_process
from kinesis_efo.planner.program import OwnFile, Program, RunEntry
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.positions import Mark, Position, ShardKey
from kinesis_efo.processes import Process
from kinesis_efo.run.access import Call, Logged, Next, Step
from kinesis_efo.run.clients import Clients
from kinesis_efo.run.thread import finished

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
    """Plans for a query, and notes what is asked of it, in the order in which it is done; see `QueryPlanner`."""

    def __init__(self, run: FakeRun, streams: Collection[str], options: SourceOptions) -> None:
        self.streams = frozenset(streams)
        self.options = options
        self.asked: list[Any] = []
        self.finishes: list[tuple[list[Mark], str | None]] = []
        self.alone = False
        self.progress = Progress()
        self.left = False
        self.logged: list[Mark] = []
        self.error: Exception | None = None
        self.going = asyncio.Event()
        self.going.set()
        self.at_once = 0
        self.query = self
        self._run = run

    def record_logged(self, mark: Mark) -> None:
        self.logged.append(mark)

    async def leave(self) -> None:
        self.left = True

    async def finished(self, marks: list[Mark], name: str | None, *, alone: bool) -> None:
        self.finishes.append((marks, name))
        self.alone = alone
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
            case Next():
                end = call.position.moved_to({**call.position, KEY: Position.after(BIG + 1)}, {KEY: BIG})
                return Step(None if end is call.position else end)
            case Logged():
                return True
        return None

    def done(self, kind: type[Call[Any]]) -> list[Any]:
        """The calls of a kind."""
        return [asked for asked in self.asked if isinstance(asked, kind)]


class FakeRun:
    """A run, and the process that has it; see `run_process`. It ends with its last query, or dies.

    Attributes:
        file: Tells others of the program where it is, once it is begun.
    """

    def __init__(self, streams: Manifest, options: SourceOptions, secret: str = "") -> None:
        self.secret = secret or f"secret {id(self)}"
        self.options = options
        self.clock = SystemClock()
        self.planner_address: FetcherAddress | None = None
        self.refs: dict[str, StreamRef] = dict(streams.streams)
        self.queries: list[FakeQuery] = []
        self.stopped = False
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.ending = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.said: deque[str] = deque()
        self.emptied = threading.Event()
        self.certificate = None
        self.clients = Clients(self, self.said)  # type: ignore[arg-type]
        self.service: Service | None = None
        self.file: OwnFile | None = None
        self.whole = self

    # -- as its process sees it

    def start(self) -> None:
        self.thread.start()
        self.service = Service(self.loop, self.secret, Listening(), more=self.clients.answer)

    def begin(self, program: Program) -> None:
        """What `RunProcess.start` does, and the process that it starts."""
        self.start()
        self.file = program.begin(self._entry())
        threading.Thread(target=self._stay, args=(program.jvm,), daemon=True).start()

    def _entry(self) -> RunEntry:
        return RunEntry(self.address, self.secret, {name: ref.stream_arn for name, ref in self.refs.items()})

    def _stay(self, jvm: Process) -> None:
        with contextlib.suppress(FetcherUnreachableError):  # it has died
            assert self.file is not None
            run_process.stay(self, jvm, os.getppid(), self.file)  # type: ignore[arg-type]
            self.stop()

    @property
    def address(self) -> FetcherAddress:
        assert self.service is not None
        return self.service.address

    def close(self, *, only_if_alone: bool = False) -> bool:
        async def close() -> bool:
            return self.clients.close(only_if_alone=only_if_alone)

        return self.call(close())

    def stop(self) -> None:
        self.stopped = True
        with self.ending:
            if self.thread.is_alive():
                self.call(self.clients.stop())
                self.die()
            if self.file is not None:
                self.file.close()

    def kill(self) -> None:
        """End it as if its process were killed: the kernel closes its files and sockets, and nobody tidies up."""
        assert self.file is not None
        self.file.path = self.file.path.with_name("nothing")
        self.file.close()
        self.die()

    def die(self) -> None:
        """End its event loop and its service."""
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

    # -- as its clients see it

    def stream_faults(self, streams: Mapping[str, StreamRef]) -> list[str]:
        return []

    def extend(self, streams: Mapping[str, StreamRef]) -> asyncio.Task[None]:
        self.refs |= streams
        if self.file is not None:
            self.file.write(self._entry())

        async def ready() -> None:
            await self.may_open.wait()

        return asyncio.create_task(ready())

    def new_query(self, name: str, streams: Collection[str], options: SourceOptions) -> FakeQuery:
        self.queries.append(FakeQuery(self, streams, options))
        return self.queries[-1]


class Programs:
    """Makes processes of one Spark program, all of them in this one.

    Attributes:
        begun: The runs that were started.
        runs: The queries' sides of them.
        change: Is called with each run before it begins.
        starter: Starts a run's process in place of this.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.begun: list[FakeRun] = []
        self.runs: list[SharedRun] = []
        self.change: Callable[[FakeRun], None] = lambda _: None
        self.starter: Callable[[str, Callable[[], None]], Callable[[], str]] | None = None

    def reader(self, *streams: str, **options: str) -> SharedRun:
        """The shared run of one more reader, not started yet."""
        what = manifest(*(streams or ("orders",)))
        parsed = SourceOptions.parse({"manifest": "m.json", **options})
        program = Program.locate(self.directory / "notes", Process.of(os.getpid()), "lake")

        def start_process(secret: str, check: Callable[[], None]) -> Callable[[], str]:
            begun = FakeRun(what, parsed, secret)
            self.begun.append(begun)
            self.change(begun)
            begun.begin(program)
            return lambda: ""

        run = SharedRun(program, what, parsed, Listening(), self.starter or start_process)
        self.runs.append(run)
        return run

    def close(self) -> None:
        """End all of them."""
        for run in self.runs:
            run.left.set()
        for begun in self.begun:
            begun.stop()
            begun.die()
        for run in self.runs:
            run.stop()
