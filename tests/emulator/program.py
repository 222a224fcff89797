"""Spark programs whose queries share a run, in virtual time: the library's processes of a program, and what Spark would do with them.

All of the library's own is real but sockets: runs, their files and locks, calls and takeovers, leases, fetchers and buffers. The
processes are those of `machine`, and the local Kinesis and the lease table are in memory.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, groupby
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self

import msgspec
import pytest

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.calls.wire import pack_error, unpack_error
from kinesis_efo.errors import FetcherRefusedError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.failure import stopped
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.service import WORD_SECONDS, _Getting
from kinesis_efo.fetcher.work import PlannerClient, RowKey, WhereReply, WhereRequest
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.polling import PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, Limits
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport, Transport
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.run import RunLease
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner import run_link, run_process, shared_run
from kinesis_efo.planner.program import Program, RunEntry, RunFile
from kinesis_efo.planner.run_link import RunConnection, Silence
from kinesis_efo.planner.shared_run import SharedRun, WhereService
from kinesis_efo.positions import Mark, Offset, ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.run import clients, thread, whole_run
from kinesis_efo.run.access import Begin, Next, Plan
from kinesis_efo.run.messages import JoinReply
from kinesis_efo.run.serving import Serving
from kinesis_efo.run.thread import RunThread
from kinesis_efo.run.whole_run import StartFetchers, WholeRun
from kinesis_efo.tasks.client import SILENT_SECONDS, RangePayloads
from kinesis_efo.tasks.ranges import RangeReader
from kinesis_efo_local import Settings
from kinesis_efo_local.fault_injection import FaultInjection
from tests.emulator.machine import Loops, Machine, MachineClock, SimulatedProcess, System, Threads, Time, process_type
from tests.emulator.memory import MemoryClient, MemoryKinesis
from tests.support.lease_store import MemoryLeaseStore, Network

STREAM: Final = "dev-orders"
LEASE_TIMEOUT: Final = 10.0
QUICK: Final[dict[str, Any]] = {"consumer_creating_seconds": 0.0, "consumer_deleting_seconds": 0.0}


class Row(NamedTuple):
    """A row that a query has written."""

    shard: str
    sequence: int
    key: str
    data: bytes


class LeaseRows(MemoryLeaseStore):
    """The lease table; a run's lease is never taken from one that may still read.

    Args:
        world: Knows the processes.
    """

    def __init__(self, world: ProgramWorld) -> None:
        super().__init__()
        self._world = world
        self._written_at: dict[str, float] = {}

    def _store(self, key: str, item: Any) -> None:
        before, after = (self.lease(key) if key in self.items else None), item
        super()._store(key, item)
        now, owner = self._world.machine.now, None if after is None else self.lease(key).owner
        if before is not None and before.owner is not None and owner not in (None, before.owner):
            quiet = now - self._written_at[key]
            if not self._world.has_ended(before.owner):
                assert quiet >= LEASE_TIMEOUT, f"{owner} took {key} {quiet:.1f} s after {before.owner} had renewed it"
            self._world.taken_over.append((now, before.owner, owner or ""))
        self._written_at[key] = now


class WatchedClient(MemoryClient):
    """A process' client of Kinesis: it reads with the lease only, and not at all once its process was killed."""

    def __init__(self, world: ProgramWorld, process: SimulatedProcess) -> None:
        super().__init__(world.kinesis)
        self._world = world
        self._process = process
        process.ends.append(self._cut)

    def _cut(self) -> None:
        for body in self.bodies:
            body.close()

    async def _call(self, operation: str, params: dict[str, Any]) -> Any:
        if not self._process.lives:
            raise asyncio.CancelledError
        if operation in ("SubscribeToShard", "GetRecords", "GetShardIterator"):
            self._world.check_may_read(self._process, operation)
        return await super()._call(operation, params)


class Service:
    """In the place of `FetcherService`: reached in memory."""

    what = "fetcher"

    def __init__(
        self, source: Any, loop: Any, secret: str, listening: Listening, certificate: Any, tool_call: Any, more: Any
    ) -> None:
        world = ProgramWorld.current
        self.source, self.loop, self.secret, self.more = source, loop, secret, more
        self.process = world.machine.current.process
        self.address = FetcherAddress("", next(world.ports))
        world.services[self.address] = self

    def is_there(self) -> bool:
        return self.process.lives and not self.loop.is_closed()

    def shutdown(self) -> None:
        ProgramWorld.current.services.pop(self.address, None)


class Planner(Service):
    """In the place of `PlannerService`."""

    what = "planner"

    def __init__(self, serving: Serving, *arguments: Any) -> None:
        self.serving = serving
        super().__init__(serving.of, *arguments)

    @property
    def assignments(self) -> Any:
        """Who fetches what."""
        return self.serving.assignments


class Where:
    """In the place of `WhereService`: answers as it does, and is the call as well."""

    answer_where = WhereService.answer_where

    def __init__(
        self,
        place: Callable[[], JoinReply | None],
        doubt: Callable[[], None],
        secret: str,
        listening: Listening,
        certificate: Any,
    ) -> None:
        world = ProgramWorld.current
        self._place, self._doubt, self._run_secret, self.secret = place, doubt, secret, secret
        self.process = world.machine.current.process
        self.address = FetcherAddress("", next(world.ports))
        world.services[self.address] = self

    @property
    def gone(self) -> bool:
        return not self.process.lives

    def shutdown(self) -> None:
        ProgramWorld.current.services.pop(self.address, None)


def opener(
    client: WatchedClient, options: SourceOptions, limits: Limits, clock: KinesisClock
) -> Callable[[StreamRef], Stream]:
    """What opens the streams of a process."""
    polled = polling_limits(limits)
    polling = PollingTransport(client, clock, options.polling_interval)
    by: tuple[Transport, Limits] = (BotoTransport(client), limits)
    if options.read_mode == "polling":
        by = polling, polled

    def open_stream(ref: StreamRef) -> Stream:
        stream = Stream(
            ref, by[0], Topology(client, clock), options.retry, "m.json", clock, by[1],
            fail_on_data_loss=options.fail_on_data_loss,
        )  # fmt: skip
        stream.allow_separate(polling, polled)
        return stream

    return open_stream


class MemoryRuntime(RunThread):
    """A run on the local Kinesis in memory."""

    async def _open(self) -> None:
        world, setup, clock = ProgramWorld.current, self._setup, self._clock
        process = world.machine.current.process
        client = world.client(process)
        clock.watch(client)
        network = world.table_of(process, setup.manifest)
        budget = Budget(setup.options.buffer_bytes, now=clock.monotonic)

        open_stream = opener(client, setup.options, setup.limits, clock)
        self._whole = whole = WholeRun(
            setup, network, open_stream, budget, clock, self._announce_streams, self._log_lines
        )
        # The real process has its registry of metrics, which would keep this run, to itself.
        process.ends.append(lambda: whole.end_report())
        await whole.start(self._stack)


class PatientProgram(Program):
    """Waits in virtual time. The kernel closes the files of a process that is killed."""

    def runs(self) -> list[RunFile]:
        found = super().runs()
        ProgramWorld.current.machine.current.process.ends += [file.close for file in found]
        return found

    def deciding(self, check: Callable[[], None], sleep: Any = None) -> Any:
        return super().deciding(check, ProgramWorld.current.machine.sleep)


class SparkProgram:
    """A driver, and the processes that it starts for the sources of its queries.

    Attributes:
        jvm: Its JVM.
        hosting: The runs, by their processes.
        fetching: The processes of fetchers, if the runs have none.
    """

    def __init__(self, world: ProgramWorld, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.jvm = world.machine.process(name, None, host)
        self.processes: list[SimulatedProcess] = []
        self.hosting: dict[SimulatedProcess, MemoryRuntime] = {}
        self.fetching: list[SimulatedProcess] = []
        self.program = PatientProgram(world.directory, world.process_type.of(self.jvm.pid), "lake")

    @property
    def lives(self) -> bool:
        return self.jvm.lives

    @property
    def host(self) -> SimulatedProcess | None:
        """The process that hosts the run; one whose run has failed reads no more, and hosts none."""
        found = [
            process
            for process, runtime in self.hosting.items()
            if process.lives and runtime.whole.run.failure.error is None
        ]
        assert len(found) <= 1, f"{' and '.join(process.name for process in found)} are hosts of the same run"
        return found[0] if found else None

    def start_fetchers(self, _: Job) -> StartFetchers | None:
        """What starts the fetchers of a run in other processes; None if its own process fetches."""
        return None

    def start(self, job: Job) -> SimulatedProcess:
        """Start a process for a query."""
        process = self.world.machine.process(f"{job.name}.{next(job.starts)}", self.jvm, self.jvm.host)
        self.processes.append(process)
        self.world.machine.run(process, partial(self._run, job, process))
        return process

    def _start_run(self, job: Job, secret: str, check: Callable[[], None]) -> Callable[[], str]:
        """Start a process that has a run; see `RunProcess`."""
        machine = self.world.machine
        process = machine.process(f"run{next(self.world.runs)}", self.jvm, self.jvm.host)
        self.processes.append(process)
        answer: list[KinesisEfoError | None] = []
        machine.run(process, partial(self._be_run, job, process, secret, answer))
        silence = Silence(job.options.retry.timeout, ", ".join(job.manifest.streams))
        while process.lives and not answer:
            machine.sleep(0.1)
            if not process.frozen:
                silence.reset()
            silence.expect(process.pid)
            silence.tick()
            try:
                silence.check()
                check()
            except KinesisEfoError:
                machine.kill(process)
                raise
        if answer and answer[0] is not None:
            raise answer[0]
        return lambda: ""

    def _be_run(self, job: Job, process: SimulatedProcess, secret: str, answer: list[KinesisEfoError | None]) -> None:
        """As `run_process.main`."""
        world = self.world
        runtime = MemoryRuntime(
            job.manifest, job.options, Listening(), secret, clock=world.clock, limits=world.limits,
            start_fetchers=self.start_fetchers(job),
        )  # fmt: skip
        try:
            runtime.start()
        except KinesisEfoError as error:
            runtime.stop()
            answer.append(error)
            world.machine.exit()
        streams = {name: ref.stream_arn for name, ref in job.manifest.streams.items()}
        file = self.program.begin(RunEntry(runtime.address, secret, streams, process.pid))

        def end() -> None:
            # The kernel closes its files, and nobody tidies up.
            file.path = world.directory / "nothing"
            file.close()

        process.ends.append(end)
        runtime.streams_changed = lambda arns: file.write(RunEntry(runtime.address, secret, arns, process.pid))
        self.hosting[process] = runtime
        answer.append(None)
        file.restore = lambda: None  # type: ignore[method-assign]
        run_process.stay(runtime, world.process_type.of(self.jvm.pid), os.getppid(), file)
        runtime.stop()
        file.close()
        world.machine.exit()

    def shared(self, job: Job) -> SharedRun:
        """The run of a query, which is not joined yet."""
        return SharedRun(self.program, job.manifest, job.options, Listening(), partial(self._start_run, job))

    def _run(self, job: Job, process: SimulatedProcess) -> None:
        world = self.world
        shared = self.shared(job)
        try:
            job.run(shared)
        except KinesisEfoError as error:
            if self.lives:  # if not, nobody is there who sees it
                job.failed(error)
        finally:
            job.running = None if job.running is process else job.running
        shared.stop()
        world.machine.exit()

    def kill(self) -> None:
        """End the driver and all that it has started."""
        self.world.machine.kill(self.jvm)
        for process in self.processes:
            self.world.machine.kill(process)


class Job:
    """A query with its checkpoint and its sink, which outlive the processes that read for it.

    Attributes:
        rows: What the sink has.
        log: Start and end of each micro-batch that Spark's log has.
        moved_at: When it has got something last, or began to wait for something.
        running: The process of its source.
        stopping: Whether it is to stop.
        errors: What its runs have failed with.
        pause: Seconds between two micro-batches.
        slowness: The longest time that a task takes for an event, seconds.
    """

    def __init__(self, world: ProgramWorld, name: str, random: Random, **options: str) -> None:
        self.world = world
        self.name = name
        self.random = random
        self.options = SourceOptions.parse({"manifest": "m.json", "startingPosition": "TRIM_HORIZON", **options})
        self.starts = count(1)
        self.manifest = world.manifest
        self.rows: list[Row] = []
        self.log: list[tuple[Offset, Offset]] = []
        self.written = False
        self.moved_at = world.machine.now
        self.running: SimulatedProcess | None = None
        self.stopping = False
        self.errors: list[KinesisEfoError] = []
        self.pause = self.slowness = 0.0

    def limit(self, max_records: int) -> None:
        """Let its next processes read so many records in a micro-batch at most."""
        self.options = SourceOptions.parse({**self.options.given, "maxRecordsPerTrigger": str(max_records)})

    @property
    def has_all(self) -> bool:
        return len(self.rows) >= sum(self.world.written.values())

    def failed(self, error: KinesisEfoError) -> None:
        self.errors.append(error)

    def run(self, shared: SharedRun) -> None:
        """What Spark does with one start of the query."""
        shared.start()
        if not self.log:
            begins = shared.ask(Begin(new=True, mark=Mark(f"{self.random.getrandbits(32):08x}")))
            assert begins is not None
            offset = begins
            # Spark stores where a query begins before anything is read.
            self.log.append((offset, offset))
            first = True
        else:
            start, offset = self.log[-1]
            shared.ask(Begin(resumed=offset))
            first = False
            if start != offset and not (self.written and self.random.random() < 0.5):
                self._read(shared, start, offset, first=True)
        while not self.stopping:
            end = shared.ask(Next(offset, 1.0)).end
            if end is None:
                continue
            self.log.append((offset, end))
            self.written = False
            self._read(shared, offset, end, first=first)
            first, offset = False, end
            self.world.machine.sleep(self.pause)

    def _read(self, shared: SharedRun, start: Offset, end: Offset, *, first: bool) -> None:
        assert end.mark is not None
        plan = shared.ask(Plan(start, end, 1.0, first))
        ranges = start.ranges_to(end)
        rows: list[Row] = []
        for each in plan.served(ranges):
            rows += self._task(shared, each.wanted, each.fetcher)
        again = [row for row in self.rows if any(_covers(wanted, row) for wanted in ranges)]
        assert not again or again == rows, f"{self.name}: the micro-batch that is read again has other rows"
        if not again:
            self.rows += rows
        self.written = True
        if rows:
            self.moved_at = self.world.machine.now

    def _task(self, shared: SharedRun, wanted: ShardRange, address: FetcherAddress | None) -> list[Row]:
        world = self.world
        reader = RangeReader(
            shared.secret, shared.planner_address, self.options.patience, query=shared.query_name,
            fetcher_at=partial(TaskClient, world, shared.query_name), planner_at=partial(TaskPlanner, world),
            now=lambda: world.machine.now, sleep=world.machine.sleep,
        )  # fmt: skip
        rows: list[Row] = []
        for asked, payloads in reader.read([wanted], address):
            seen = self._seen(payloads)
            for batch in decode(seen, *asked[:3], deaggregate=True):
                rows += [
                    Row(row["shardId"], int(row["sequenceNumber"]), row["partitionKey"], row["data"])
                    for row in batch.to_pylist()
                ]
        return rows

    def _seen(self, payloads: Iterator[memoryview]) -> Iterator[memoryview]:
        for payload in payloads:
            if b'"SequenceNumber"' in bytes(payload):  # a record's
                self.moved_at = self.world.machine.now
            yield payload
            if self.slowness:
                self.world.machine.sleep(self.slowness * self.random.random())

    def check(self, *, whole: bool) -> None:
        """Check that it has each record once, and those of a key in their order; unless `whole`, up to some record of each key."""
        read: dict[str, list[int]] = defaultdict(list)
        for row in self.rows:
            read[row.key].append(int(row.data.split(b":", 1)[0]))
        for key, numbers in read.items():
            assert numbers == list(range(len(numbers))), f"{self.name}: {key} was read as {numbers}"
        if whole:
            counts = {key: len(numbers) for key, numbers in read.items()}
            assert counts == self.world.written, f"{self.name} lacks records"


class ProgramWorld:
    """A stream, a lease table, and what runs on a machine.

    Args:
        machine: Runs it.
        directory: Where the processes of programs find each other.
        random: Decides what happens by chance.
        shards: Number of shards at first.
        faults: Injects faults.
        settings: Settings of the local Kinesis, in addition to `QUICK`.

    Attributes:
        written: Number of records written so far, by key.
        limits: Times that follow from Kinesis' limits.
        cut_off: The hosts whose fetchers do not reach the run.
        losing: Decides which answers to fetchers are lost; None if none is.
        messages: Number of messages from fetchers to runs.
        taken_over: When a lease that had an owner went to another one, and both.
        networks: The ways of all processes to the lease table.
    """

    current: ProgramWorld

    def __init__(
        self,
        machine: Machine,
        directory: Path,
        random: Random,
        shards: int,
        faults: FaultInjection | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        ProgramWorld.current = self
        self.machine = machine
        self.directory = directory
        self.random = random
        self.clock = MachineClock(machine)
        self.limits = KINESIS_LIMITS
        self.process_type: Any = process_type(machine)
        self.services: dict[FetcherAddress, Any] = {}
        self.ports = count(1)
        self.cut_off: set[str] = set()
        self.losing: Random | None = None
        self.messages = 0
        self.owners: dict[str, SimulatedProcess] = {}
        self.table = LeaseRows(self)
        self.taken_over: list[tuple[float, str, str]] = []
        self.networks: list[Network] = []
        self.runs = count(1)
        self.lossy = 0.0
        self.kinesis = MemoryKinesis(Settings(**QUICK | (settings or {})), self.clock, faults)
        self.kinesis.call("CreateStream", StreamName=STREAM, ShardCount=shards)
        self.written: dict[str, int] = defaultdict(int)
        arn = self.kinesis.call("DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
        consumer = self.kinesis.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName="lake")["Consumer"]
        ref = StreamRef("orders", STREAM, arn, consumer["ConsumerARN"])
        self.manifest = Manifest("lake", "dev", "us-east-1", "leases", {"orders": ref}, "m.json", {"orders": STREAM})

    def put(self, key: str, size: int) -> None:
        self.kinesis.put(STREAM, key, f"{self.written[key]}:{'x' * size}".encode())
        self.written[key] += 1

    # -- what processes are made of

    def client(self, process: SimulatedProcess) -> WatchedClient:
        """A process' client of Kinesis."""
        return WatchedClient(self, process)

    def table_of(self, process: SimulatedProcess, manifest: Manifest) -> LeaseStore:
        """What a process has for a lease table."""
        if manifest.lease_table:
            return self.network(process)
        return thread.host_table(manifest, self.directory / process.host)

    def network(self, process: SimulatedProcess) -> Network:
        """A process' way to the lease table."""
        network = Network(self.table, Random(self.random.random()))
        self.networks.append(network)

        def cut() -> None:
            network.cut = True

        process.ends.append(cut)
        return network

    def owner(self, _: Random) -> str:
        """The name of a run of the process that asks."""
        process = self.machine.current.process
        name = f"{process.name}#{len(self.owners)}"
        self.owners[name] = process
        return name

    def has_ended(self, owner: str) -> bool:
        return not self.owners[owner].lives

    def provably_gone(self, owner: str) -> bool:
        """Whether the process that asks knows that an owner has ended."""
        return self.has_ended(owner) and self.owners[owner].host == self.machine.current.process.host

    def is_sibling(self, owner: str) -> bool:
        return self.owners[owner].parent is self.machine.current.process.parent

    # -- what must hold

    @property
    def holder(self) -> SimulatedProcess | None:
        """The process that the table names as the owner of the run's lease."""
        key = run_key("orders")
        owner = self.table.lease(key).owner if key in self.table.items else None
        return None if owner is None else self.owners[owner]

    def check_may_read(self, process: SimulatedProcess, operation: str) -> None:
        """Check that a process that calls Kinesis to read has the lease."""
        if operation != "SubscribeToShard" and self.machine.now - process.thawed_at < 1:
            return  # this takes nothing from anybody, and what comes is dropped
        if (holder := self.holder) is not process:
            self.fail(
                f"{process.name} calls {operation}, and the lease is {'nobody' if holder is None else holder.name}'s"
            )

    def fail(self, why: str) -> None:
        """End the scenario, whoever finds it."""
        error = AssertionError(why)
        self.machine.failures.append(error)
        self.machine.wake([self.machine.main])
        raise error

    # -- calls between processes

    def call(
        self,
        address: FetcherAddress,
        secret: str,
        make: Callable[[Any], Any],
        seconds: float,
        *,
        may_be_lost: bool = False,
    ) -> Any:
        """Call a service: `make` makes the coroutine that runs in its event loop.

        Raises:
            FetcherUnreachableError: Nobody answers, or not in time.
            KinesisEfoError: The error of the other side.
        """
        service = self.services.get(address)
        self.machine.sleep(0.001)
        if service is None or not service.process.lives:
            raise FetcherUnreachableError(f"nobody answers at port {address.port}")
        if secret != service.secret:
            raise FetcherRefusedError("the secret belongs to another run")
        try:
            future = asyncio.run_coroutine_threadsafe(make(service), service.loop)
        except RuntimeError:
            raise FetcherUnreachableError("it has just ended") from None
        if not self.machine.finish(future, service.is_there, seconds):
            raise FetcherUnreachableError("no answer in time")
        if not service.process.lives or (may_be_lost and self.random.random() < self.lossy):
            raise FetcherUnreachableError("the answer was lost")
        if future.cancelled():
            raise FetcherUnreachableError("it is stopping")
        try:
            return future.result()
        except KinesisEfoError as error:
            raise unpack_error(pack_error(error)) from None


class MemoryConnection(RunConnection):
    """A query's connection to its run, in memory."""

    def action(self, name: str, request: msgspec.Struct, answer: type[Any], seconds: float) -> Any:
        """See `Connection`."""
        body = msgspec.json.encode(request)
        found = ProgramWorld.current.call(
            self._address, self._secret, lambda service: service.more(name, body), seconds, may_be_lost=True
        )
        return msgspec.json.decode(msgspec.json.encode(found), type=answer)


class TaskPlanner(PlannerClient):
    """A task's connection to the process of its query, in memory."""

    def __init__(self, world: ProgramWorld, address: FetcherAddress, secret: str) -> None:
        super().__init__(address, secret, namespace="")
        self._world = world

    def where(self, request: WhereRequest) -> WhereReply:
        """See `PlannerClient`."""
        where = self._world.services.get(self._address)
        if where is None:
            raise FetcherUnreachableError("nobody is there to ask")
        if where.secret != self._secret:
            raise FetcherRefusedError("the secret belongs to another run")
        try:
            reply: WhereReply = where.answer_where(where, request)
        except KinesisEfoError as error:
            raise unpack_error(pack_error(error)) from None
        return reply


class TaskClient:
    """A task's connection to a fetcher, in memory; see `FetcherClient`."""

    def __init__(self, world: ProgramWorld, query: str, address: FetcherAddress, secret: str) -> None:
        self._world, self._query, self._address, self._secret = world, query, address, secret

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, ranges: Sequence[ShardRange]) -> Iterator[RangePayloads]:
        """See `FetcherClient`."""

        async def opened(service: Any) -> Any:
            return _Getting(service.source(self._query), ranges)

        getting = self._world.call(self._address, self._secret, opened, SILENT_SECONDS)
        try:
            for index, parts in groupby(self._chunks(getting), lambda chunk: chunk[0]):
                yield RangePayloads(ranges[index], self._payloads(parts))
        finally:
            # Nobody waits for it: its task may have been killed.
            service = self._world.services.get(self._address)
            if service is not None and service.is_there():
                asyncio.run_coroutine_threadsafe(getting.close(), service.loop)

    def _payloads(self, chunks: Iterator[tuple[int, list[bytes]]]) -> Iterator[memoryview]:
        for _, payloads in chunks:
            for payload in payloads:
                # They come one by one: what a fetcher has not sent when it ends is lost.
                service = self._world.services.get(self._address)
                if service is None or not service.is_there():
                    raise FetcherUnreachableError("the fetcher has ended in the middle of a range")
                yield memoryview(payload)

    def _chunks(self, getting: Any) -> Iterator[tuple[int, list[bytes]]]:
        """What comes, as `FetcherService` sends it."""
        coming: Any = None
        while True:
            coming = coming or self._submit(getting.some)
            if self._finished(coming, WORD_SECONDS):
                if not (some := self._result(coming)):
                    return
                coming = None
            else:
                word = self._submit(getting.so_far)
                if not self._finished(word, SILENT_SECONDS - WORD_SECONDS):
                    raise FetcherUnreachableError("the fetcher says nothing")
                some = self._result(word)
            yield from some

    def _submit(self, work: Callable[[], Any]) -> Any:
        service = self._world.services.get(self._address)
        if service is None or not service.is_there():
            raise FetcherUnreachableError("the fetcher has ended")
        return asyncio.run_coroutine_threadsafe(work(), service.loop)

    def _finished(self, future: Any, seconds: float) -> bool:
        service = self._world.services.get(self._address)
        done = service is not None and self._world.machine.finish(future, service.is_there, seconds)
        if service is None or not service.is_there():
            raise FetcherUnreachableError("the fetcher has ended in the middle of a call")
        return done

    def _result(self, future: Any) -> Any:
        if future.cancelled():
            raise FetcherUnreachableError("the fetcher is stopping")
        try:
            return future.result()
        except KinesisEfoError as error:
            raise unpack_error(pack_error(error)) from None


def _covers(wanted: ShardRange, row: Row) -> bool:
    if wanted.key.shard != row.shard or row.sequence <= wanted.after.value:
        return False
    return wanted.through.is_end or row.sequence <= wanted.through.value


@contextmanager
def in_virtual_time(machine: Machine) -> Iterator[None]:
    """Let the library's processes be those of a machine."""

    def finished(future: Any, alive: Callable[[], bool]) -> Any:
        future = getattr(future, "future", future)
        if not machine.finish(future, alive):
            raise stopped()
        return future.result()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgramWorld, "current", None, raising=False)  # so that no world outlives its test
        for module in (shared_run, run_link, whole_run, thread):
            patch.setattr(module, "threading", Threads(machine))
        for module in (shared_run, run_process, run_link):
            patch.setattr(module, "time", Time(machine))
        patch.setattr(thread, "finished", finished)
        # In Python 3.11, the hash of None, and with it the order of a set of rows, is another one in each process.
        patch.setattr(RowKey, "__hash__", lambda row: hash((row.query or "", row.shard)))
        # Somebody kills the run here, again and again: that is no run that cannot live.
        patch.setattr(shared_run, "_MOST_DEATHS", 1_000)
        for module in (shared_run, clients):
            patch.setattr(module, "Process", process_type(machine))
        patch.setattr(shared_run, "os", System(machine))
        patch.setattr(run_link, "read_stat", lambda _: None)
        patch.setattr(thread, "asyncio", Loops(machine))
        patch.setattr(thread, "new_event_loop", Loops(machine).new_event_loop)
        patch.setattr(shared_run, "RunConnection", MemoryConnection)
        patch.setattr(shared_run, "WhereService", Where)
        patch.setattr(whole_run, "PlannerService", Planner)
        patch.setattr(whole_run, "owner_id", lambda random: ProgramWorld.current.owner(random))
        patch.setattr(whole_run, "Random", lambda: Random(ProgramWorld.current.random.random()))
        patch.setattr(
            whole_run,
            "RunLease",
            lambda *args, **more: RunLease(
                *args, gone=ProgramWorld.current.provably_gone, is_sibling=ProgramWorld.current.is_sibling, **more
            ),
        )
        with ExitStack() as stack:
            stack.callback(machine.close)
            yield
