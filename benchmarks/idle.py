"""The cost of a query that has nothing to read: of one trigger, and of its processes over time; of two that share a run, too.

Calls the stream reader as Spark does, with a real fetcher on the local AWS (another process). Every shard is subscribed, and
sends an empty event every 5 s, as Kinesis does.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil

from benchmarks.figures import Figure
from benchmarks.machine import AwsProcess, process_of
from kinesis_efo.aws import SyncClients
from kinesis_efo.calls.address import Listening
from kinesis_efo.manifest import resolve_manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.program import Program
from kinesis_efo.planner.run_process import RunOrder, RunProcess
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.processes import Process
from kinesis_efo.spark.stream_reader import KinesisStreamReader
from kinesis_efo_local import Settings
from tests.support.world import make_world, wait_until

SHARDS: Final = (1, 16, 64, 256)
SHARED_SHARDS: Final = 1000
RUNS: Final = 5
CALLS: Final = 40
IDLE_SECONDS: Final = 2.0


def run() -> list[Figure]:
    """Measure."""
    figures = []
    for shards in SHARDS:
        # A new server each time, so that the shards of one case do not slow the next.
        with (
            AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
            tempfile.TemporaryDirectory() as place,
        ):
            world = make_world(aws, Path(place), {"orders": shards})
            options = {"manifest": str(world.manifest), "endpointUrl": aws.endpoint_url}
            figures += _measured(SourceOptions.parse(options), shards)
    return figures + _shared()


def _measured(options: SourceOptions, shards: int) -> list[Figure]:
    manifest = resolve_manifest(options, SyncClients(options.aws).client)
    reader = KinesisStreamReader(options, manifest)
    try:
        start = _settled(reader, shards)
        wall, cpu, share = [], [], []
        for _ in range(RUNS):
            # As Spark calls it: each call waits for data.
            begin, begin_cpu = time.monotonic(), _cpu()
            while time.monotonic() - begin < IDLE_SECONDS:
                assert reader.latestOffset(start) == start
            share.append((_cpu() - begin_cpu) / (time.monotonic() - begin) * 100)
        reader._planner._options = replace(options, poll_timeout=0.0)
        for _ in range(RUNS):
            begin, begin_cpu = time.monotonic(), _cpu()
            for _ in range(CALLS):
                assert reader.latestOffset(start) == start
            wall.append((time.monotonic() - begin) / CALLS * 1000)
            cpu.append((_cpu() - begin_cpu) / CALLS * 1000)
    finally:
        reader.stop()
    case = f"{shards} shard{'s' if shards > 1 else ''}"
    return [
        Figure(case, "latestOffset, not waiting", "ms", tuple(wall)),
        Figure(case, "  CPU of it", "ms", tuple(cpu)),
        Figure(case, "query, with its run", "% of a core", tuple(share)),
    ]


def _cpu() -> float:
    """CPU seconds of this process, and of the run's: the local AWS has none that imports it."""
    runs = [each for each in psutil.Process().children() if "run_process" in " ".join(each.cmdline())]
    return time.process_time() + sum(sum(each.cpu_times()[:2]) for each in runs)


def _shared() -> list[Figure]:
    """Two queries of one program, in a process each."""
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
        tempfile.TemporaryDirectory() as place,
    ):
        world = make_world(aws, Path(place), {"orders": SHARED_SHARDS})
        # The process that serves 1,000 subscriptions at once is the lease table's, too.
        options = {"manifest": str(world.manifest), "endpointUrl": aws.endpoint_url, "leaseTimeout": "60s"}
        program = Program(Path(place, "program"), Process.of(os.getpid()), "")
        times: list[list[float]] = [[], []]
        with process_of(_share, options, program) as first:
            first.recv()
            with process_of(_share, options, program) as second:
                second.recv()
                for _ in range(RUNS):
                    for query, found in zip((first, second), times, strict=True):
                        query.send(CALLS)
                        found.append(query.recv())
    case = f"{SHARED_SHARDS:,} shards, two queries"
    return [
        Figure(case, "latestOffset, not waiting, the first one's", "ms", tuple(times[0])),
        Figure(case, "  the second one's", "ms", tuple(times[1])),
    ]


def reader_of_program(given: dict[str, str], program: Program, **changed: Any) -> KinesisStreamReader:
    """The reader of one query of a program, whose run is started or joined.

    Args:
        given: The query's options.
        program: The program.
        changed: What its `SourceOptions` are to have besides.
    """
    options = SourceOptions.parse(given)
    manifest = resolve_manifest(options, SyncClients(options.aws).client)

    def start(secret: str, check: Callable[[], None]) -> Callable[[], str]:
        process = RunProcess(RunOrder(manifest, options, Listening(), program, secret))
        process.start(check)
        return process.end

    run = SharedRun(program, manifest, options, Listening(), start)
    run.start()
    reader = KinesisStreamReader(replace(options, **changed), manifest)
    reader._planner._run._shared = run
    return reader


def _share(pipe: Connection, given: dict[str, str], program: Program) -> None:
    reader = reader_of_program(given, program, poll_timeout=0.0)
    offset = _settled(reader, SHARED_SHARDS)
    pipe.send("settled")
    while True:
        taken = []
        for _ in range(pipe.recv()):
            began = time.monotonic()
            assert reader.latestOffset(offset) == offset
            taken.append(time.monotonic() - began)
        pipe.send(median(taken) * 1000)


def _settled(reader: KinesisStreamReader, shards: int) -> dict[str, Any]:
    """The offset once every shard has reported that it is idle."""
    start = reader.latestOffset(reader.initialOffset())

    def all_heard() -> bool:
        reader.latestOffset(start)
        report = reader.reportLatestOffset() or {"millisBehindLatest": {}}
        return len(report["millisBehindLatest"].get("orders", ())) == shards

    wait_until(all_heard, 60, f"{shards} shards")
    return start
