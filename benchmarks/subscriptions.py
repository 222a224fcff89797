"""1,000 real subscriptions to the local AWS: in one fetcher of its own process, and in the planner's (`fetchers=driver`).

Records wait in every shard. Measured are the time from the first of them to the last, as the planner hears of them, and what the
processes take meanwhile and when nothing comes any more. The local AWS is another process, on the same two cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil

from benchmarks.figures import Figure
from benchmarks.machine import AwsProcess, anonymous_memory, process_of
from benchmarks.processes import cpu_seconds, percent_of_a_core
from benchmarks.simulated import reader_of
from kinesis_efo.aws import SyncClients
from kinesis_efo.calls.address import Listening
from kinesis_efo.cluster.remote import FetcherPlan, fetch
from kinesis_efo.decisions.planning import PollReply
from kinesis_efo.manifest import resolve_manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.positions import Offset
from kinesis_efo.run.query import Query
from kinesis_efo_local import Settings
from tests.support.fetching import LocalRun
from tests.support.world import make_world

SHARDS: Final = 1000
RECORDS: Final = 50_000
RECORD_BYTES: Final = 1000
SETTLE_SECONDS: Final = 10.0


def run() -> list[Figure]:
    """Measure. MB are 2^20 bytes; memory is anonymous memory, with the libraries' own."""
    case = f"{SHARDS:,} subscriptions"
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0, read_limit=False)) as aws,
        tempfile.TemporaryDirectory() as place,
    ):
        found = []
        for fetchers in (0, 1):
            world = make_world(aws, Path(place), {"orders": SHARDS})
            random = Random(1)
            world.put((f"key{number}", random.randbytes(RECORD_BYTES)) for number in range(RECORDS))
            options = {
                "manifest": str(world.manifest),
                "endpointUrl": aws.endpoint_url,
                "startingPosition": "TRIM_HORIZON",
                # The process that serves 1,000 subscriptions at once is the lease table's, too.
                "leaseTimeout": "60s",
            }
            found.append(_measured(options, fetchers))
            world.kinesis.delete_stream(StreamName=world.streams["orders"], EnforceConsumerDeletion=True)
    figures = []
    for what in found[0]:
        baseline = Figure(case, f"{what[0]}, fetchers=driver", what[1], found[0][what])
        figures += [baseline, Figure.against(baseline, case, "  fetchers=1, both processes", list(found[1][what]))]
    return figures


def _measured(options: dict[str, str], fetchers: int) -> dict[tuple[str, str], tuple[float, ...]]:
    """Figures by name and unit."""
    with contextlib.ExitStack() as stack:
        planner = stack.enter_context(process_of(_plan, options, fetchers))
        pids = [planner.pid]
        if fetchers:
            plan = planner.recv()
            pids.append(stack.enter_context(process_of(_fetch, plan)).pid)
        processes = {str(pid): psutil.Process(pid) for pid in pids}
        began = planner.recv()
        before = sum(map(cpu_seconds, processes.values()))
        ended = planner.recv()
        taken = sum(map(cpu_seconds, processes.values())) - before
        memory = sum(map(anonymous_memory, pids)) / 2**20
        time.sleep(SETTLE_SECONDS)
        idle = percent_of_a_core(processes).values()
        return {
            ("records to the planner", "records/s"): (RECORDS / (ended - began),),
            ("  CPU", "s"): (taken,),
            ("  memory", "MB"): (memory,),
            ("idle", "% of a core"): tuple(map(sum, zip(*idle, strict=True))),
        }


class _Elsewhere:
    """The fetchers of a run, started by whoever gets their plan."""

    optional = False

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __call__(self, plan: FetcherPlan) -> _Elsewhere:
        self._pipe.send(plan)
        return self

    def problem(self) -> str:
        """See `RemoteFetchers`."""
        return ""

    def stop(self) -> None:
        """See `RemoteFetchers`."""


class _Counted(Query):
    """A query, with the records that it told of."""

    records = 0

    async def poll(self, offset: Offset, *limits: Any) -> PollReply:
        reply = await super().poll(offset, *limits)
        self.records += sum(shard.records for shard in reply.shards)
        return reply


def _plan(pipe: Connection, given: dict[str, str], fetchers: int) -> None:
    options = SourceOptions.parse(given)
    manifest = resolve_manifest(options, SyncClients(options.aws).client)
    start_fetchers = _Elsewhere(pipe) if fetchers else None
    runtime = LocalRun(manifest, options, Listening(), "the secret", start_fetchers=start_fetchers)
    runtime.start()
    query = runtime.planner.query
    query.__class__ = _Counted
    assert isinstance(query, _Counted)
    reader = reader_of(runtime.ask)
    start = reader.initialOffset()
    milestones = [1, RECORDS]
    while True:
        end = reader.latestOffset(start)
        if end != start:
            reader.partitions(start, end)
            start = end
        while milestones and query.records >= milestones[0]:
            del milestones[0]
            pipe.send(time.monotonic())


def _fetch(_pipe: Connection, plan: FetcherPlan) -> None:
    asyncio.run(fetch(plan, 0, Listening()))
