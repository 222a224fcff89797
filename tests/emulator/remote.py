"""Fetchers in processes of their own (`fetchers=N`), in virtual time: what the real ones and Spark's tasks do, without sockets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Final, Self, TypeVar

import msgspec
import pytest

from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.cluster.remote import FetcherPlan
from kinesis_efo.cluster.remote_fetcher import FetcherIdentity, RemoteFetcher
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings, FetcherSource
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import Report, ReportReply, WhereReply, WhereRequest, Work, WorkRequest
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.planner import shared_run
from kinesis_efo.run import whole_run
from kinesis_efo.run.assignments import Assignments
from kinesis_efo.run.run import Elsewhere
from tests.emulator.machine import Loop, SimulatedProcess, Thread
from tests.emulator.program import ProgramWorld, Service, SparkProgram, opener

T = TypeVar("T", bound=msgspec.Struct)
_ANSWER_SECONDS: Final = 20.0
_TASK_PATIENCE: Final = 2.0


async def _is_gone(address: FetcherAddress) -> bool:
    service = ProgramWorld.current.services.get(address)
    return service is None or not service.is_there()


class WhereClient:
    """In the place of `PlannerClient`, for a planner that asks its run."""

    def __init__(self, address: FetcherAddress, secret: str) -> None:
        self._address, self._secret = address, secret

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def where(self, request: WhereRequest) -> WhereReply:
        """See `PlannerClient`."""
        found: WhereReply = ProgramWorld.current.call(
            self._address,
            self._secret,
            lambda service: service.serving.where(request, service.address, in_turn=True),
            request.wait + _ANSWER_SECONDS,
        )
        return _sent(found, WhereReply)


class Link:
    """In the place of `PlannerLink`: a fetcher's calls to its run."""

    def __init__(self, plan: FetcherPlan) -> None:
        self._plan = plan

    async def work(self, request: WorkRequest) -> Work:
        """See `Planner`."""
        sent = _sent(request, WorkRequest)
        return _sent(await self._call(lambda assignments: assignments.work(sent), request.wait), Work)

    async def report(self, report: Report) -> ReportReply:
        """See `Planner`."""
        sent = _sent(report, Report)
        return _sent(await self._call(lambda assignments: assignments.report(sent)), ReportReply)

    async def _call(self, make: Callable[[Assignments], Awaitable[T]], seconds: float = 0.0) -> T:
        world = ProgramWorld.current
        if world.machine.current.process.host in world.cut_off:
            raise FetcherUnreachableError("the run is out of reach")
        service = world.services.get(self._plan.planner)
        if service is None or not service.is_there() or service.secret != self._plan.secret:
            raise FetcherUnreachableError("the run does not answer")
        world.messages += 1
        calling: Any = make(service.assignments)
        there = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(calling, service.loop))
        await asyncio.wait({there}, timeout=seconds + _ANSWER_SECONDS)
        if there.cancelled():
            raise FetcherUnreachableError("the run has ended")
        if not there.done():
            there.cancel()
            raise FetcherUnreachableError("the run has not answered")
        found: T = there.result()
        if world.losing is not None and world.losing.random() < 0.3:
            raise FetcherUnreachableError("the answer was lost")
        return found


class Fetchers:
    """The fetchers of a run, as Spark keeps them: a task that has failed or was killed starts again somewhere else.

    Args:
        program: Whose tasks they are.
        number: How many.
        plan: What they are to do.
    """

    def __init__(self, program: SparkProgram, number: int, plan: FetcherPlan) -> None:
        self._program = program
        self._plan = plan
        self._ended = False
        self._names = count(1)
        for place in range(number):
            program.world.machine.run(program.jvm, partial(self._keep, place))

    def problem(self) -> str:
        """See `RemoteFetchers`."""
        return ""

    def stop(self) -> None:
        """See `RemoteFetchers`."""
        self._ended = True

    def _keep(self, place: int) -> None:
        world, program = ProgramWorld.current, self._program
        while not self._ended and self._is_wanted():
            process = world.machine.process(f"fetcher{place}.{next(self._names)}", program.jvm, f"host{place}")
            program.processes.append(process)
            program.fetching.append(process)
            world.machine.run(process, partial(self._be_fetcher, process, place))
            while process.lives and (self._is_wanted() or process.host in world.cut_off):
                world.machine.sleep(2.0)
            world.machine.sleep(3.0)
            # Spark kills the tasks of a run that has ended, if it reaches them.
            world.machine.kill(process)
            program.fetching.remove(process)

    def _is_wanted(self) -> bool:
        service = ProgramWorld.current.services.get(self._plan.planner)
        return service is not None and service.process.lives

    def _be_fetcher(self, process: SimulatedProcess, place: int) -> None:
        """As `fetcher_task`."""
        machine = ProgramWorld.current.machine
        loop = Loop(machine)
        Thread(machine, loop.run_forever).start()
        fetching = asyncio.run_coroutine_threadsafe(fetch(self._plan, process, place), loop)
        machine.finish(fetching, lambda: process.lives)
        machine.exit()


async def fetch(plan: FetcherPlan, process: SimulatedProcess, place: int) -> None:
    """As `remote.fetch`."""
    world, options = ProgramWorld.current, plan.options
    client, clock = world.client(process), KinesisClock(world.clock)
    clock.watch(client)
    open_stream = opener(client, options, world.limits, clock)
    streams = Streams({}, may_grow=True)
    settings = FetcherSettings(options.fail_on_data_loss, _TASK_PATIENCE, options.arrival_step, options.retry.timeout)
    fetcher = Fetcher(streams, Budget(options.buffer_bytes, now=clock.monotonic), settings, clock)
    service = Service(
        partial(FetcherSource, fetcher, clock), asyncio.get_running_loop(), plan.secret, Listening(), None, None, None
    )
    identity = FetcherIdentity(place, process.host, service.address)
    names = count()
    try:
        await RemoteFetcher(
            identity, fetcher, streams, Link(plan), clock, lambda: f"{process.name}:{next(names)}", 6 * options.lease_timeout,
            open_stream, options.ends,
        ).run()  # fmt: skip
    finally:
        service.shutdown()


def _sent(message: T, kind: type[T]) -> T:
    """As it is on the other side."""
    return msgspec.json.decode(msgspec.json.encode(message), type=kind)


@contextmanager
def with_fetchers() -> Iterator[None]:
    """Let runs have their fetchers in other processes of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_run, "Elsewhere", partial(Elsewhere, gone=_is_gone))
        patch.setattr(shared_run, "PlannerClient", WhereClient)
        yield
