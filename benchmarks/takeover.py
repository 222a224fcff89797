"""A run's process is killed: until its queries read again, with subscriptions to the local AWS, which is another process.

A record is in each shard when the process dies, and comes once the next one reads the shard. Kinesis takes a subscription that
follows another one of the same consumer within five seconds only after these, and so does the local AWS.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import psutil

from benchmarks.figures import Figure
from benchmarks.idle import reader_of_program
from benchmarks.machine import AwsProcess, process_of
from kinesis_efo.planner.program import Program
from kinesis_efo.processes import Process
from kinesis_efo_local import Settings
from tests.support.world import World, make_world, wait_until

CASES: Final = ((4, 1), (4, 2), (1000, 1))
"""Shards, and queries."""
RUNS: Final = 5
OLDER_SECONDS: Final = 6.0
"""Then the last subscriptions are older than Kinesis' five seconds."""


def run() -> list[Figure]:
    """Measure."""
    figures = []
    for shards, queries in CASES:
        with (
            AwsProcess(settings=Settings(consumer_creating_seconds=0.0, read_limit=False)) as aws,
            tempfile.TemporaryDirectory() as place,
        ):
            world = make_world(aws, Path(place), {"orders": shards})
            options = {"manifest": str(world.manifest), "endpointUrl": aws.endpoint_url, "leaseTimeout": "60s"}
            program = Program(Path(place, "program"), Process.of(os.getpid()), "")
            first, whole = _measured(world, options, program, shards, queries)
        case = f"{shards:,} shards, {queries} {'queries' if queries > 1 else 'query'}"
        figures += [Figure(case, "a shard moves again", "s", first), Figure(case, "all have moved", "s", whole)]
    return figures


def _measured(
    world: World, options: dict[str, str], program: Program, shards: int, queries: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds from the kill until the slowest query has moved in a shard, and in all."""
    firsts, wholes = [], []
    with contextlib.ExitStack() as stack:
        pipes = [stack.enter_context(process_of(_query, options, program, shards)) for _ in range(queries)]
        for pipe in pipes:
            pipe.recv()
        for _ in range(RUNS):
            time.sleep(OLDER_SECONDS)
            for process in psutil.Process().children(recursive=True):
                if "kinesis_efo.planner.run_process" in " ".join(process.cmdline()):
                    process.kill()
            began = time.monotonic()
            _put_into_each(world, shards)
            for pipe in pipes:
                pipe.send(began)
            told = [pipe.recv() for pipe in pipes]
            firsts.append(max(first for first, _ in told))
            wholes.append(max(whole for _, whole in told))
    return tuple(firsts), tuple(wholes)


def _put_into_each(world: World, shards: int) -> None:
    width = 2**128 // shards
    records = [{"Data": b"x", "PartitionKey": "k", "ExplicitHashKey": str(each * width)} for each in range(shards)]
    for begin in range(0, shards, 500):
        world.kinesis.put_records(StreamName=world.streams["orders"], Records=records[begin : begin + 500])


def _query(pipe: Connection, given: dict[str, str], program: Program, shards: int) -> None:
    """A query in a process of its own."""
    reader = reader_of_program(given, program)
    at = reader.latestOffset(reader.initialOffset())

    def all_heard() -> bool:
        reader.latestOffset(at)
        report = reader.reportLatestOffset() or {"millisBehindLatest": {}}
        return len(report["millisBehindLatest"].get("orders", ())) == shards

    wait_until(all_heard, 120, f"{shards} shards")
    pipe.send("reads")
    while True:
        moved: set[str] = set()
        began, first = pipe.recv(), 0.0
        while len(moved) < shards:
            end = reader.latestOffset(at)
            if end != at:
                reader.partitions(at, end)
                before = at["streams"]["orders"]
                moved |= {key for key, position in end["streams"]["orders"].items() if before[key] != position}
                first = first or time.monotonic() - began
                at = end
        pipe.send((first, time.monotonic() - began))
