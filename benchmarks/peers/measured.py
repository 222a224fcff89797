"""Other readers of Kinesis beside this library, on the same local AWS, by turns: latency, CPU time and memory.

Each has a stream and a consumer of its own. When all have started, each has its turn, round by round, while the others wait for
records: a backlog, as fast as Kinesis gives it (2 MiB/s for each shard), then a steady trickle. Two backlogs before do not count: the JVMs
compile what runs often. What puts records and what serves them are other processes, which are not counted.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import quantiles
from typing import Final

from benchmarks.figures import Figure
from benchmarks.machine import AwsProcess, Pipe, process_of
from benchmarks.peers.load import RECORD_BYTES, mark, put
from benchmarks.peers.readers import Reader, Source, environment, readers
from benchmarks.peers.running import NotSeenError, Running, started
from benchmarks.peers.table import CPU, MEMORY, P50, P99
from kinesis_efo_local import Settings
from tests.support.world import make_world

BACKLOG_BYTES: Final = {4: 64 * 2**20, 64: 128 * 2**20}
"""Of a round, by the number of shards."""
WARM_UP_ROUNDS: Final = 2
ROUNDS: Final = 3
STEADY_SECONDS: Final = 5.0
UNCOUNTED_SECONDS: Final = 1.5
"""At the beginning of a steady load: the backlog has just been read."""
START_SECONDS: Final = 150.0
"""The KCL takes a minute to begin."""
WAIT_SECONDS: Final = 120.0


def run() -> list[Figure]:
    """Measure. GB and MB are 10^9 and 10^6 bytes of records' data, and of memory."""
    load = os.getloadavg()[0]
    print(f"peers: {os.cpu_count()} cores of {_processor()}, load before {load:.2f}", file=sys.stderr)
    settings = Settings(consumer_creating_seconds=0.0)
    with (
        tempfile.TemporaryDirectory() as place,
        AwsProcess(settings=settings, tls_port=0) as aws,
        process_of(put, aws.endpoint_url) as sender,
    ):
        compared, missing = readers(Path(place))
        for line in missing:
            print(f"peers: {line}", file=sys.stderr)
        variables = environment(aws, Path(place))
        figures = []
        for shards in BACKLOG_BYTES:
            here = Path(place, str(shards))
            figures += _Rounds(aws, sender, variables, here, shards).measure(compared)
        return figures


class _Rounds:
    """The readers of streams with so many shards."""

    def __init__(self, aws: AwsProcess, sender: Pipe, variables: dict[str, str], place: Path, shards: int) -> None:
        self._aws = aws
        self._sender = sender
        self._variables = variables
        self._place = place
        self._shards = shards
        self._number = 0

    def measure(self, compared: list[Reader]) -> list[Figure]:
        """Let each reader read in every round. One that does not is named, and left out."""
        with contextlib.ExitStack() as stack:
            running: dict[str, tuple[Running, Source]] = {}
            for turn, reader in enumerate(sorted(compared, key=lambda reader: not reader.begins_late)):
                place = self._place / str(turn)
                place.mkdir(parents=True)
                world = make_world(self._aws, place, {"orders": self._shards})
                source = Source(world, self._shards, self._aws, place)
                process = stack.enter_context(started(reader.command(source), self._variables, place / "errors"))
                running[reader.name] = process, source
                self._sender.send(("backlog", world.streams["orders"], self._shards, 0, self._number))
                self._sender.recv()
                # One after the other: together, they would starve each other where cores are few.
                if not reader.begins_late:
                    self._begin(running, reader.name)
            for reader in compared:
                if reader.begins_late:
                    self._begin(running, reader.name)
            found: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
            for number in range(WARM_UP_ROUNDS + ROUNDS):
                for name in tuple(running):
                    try:
                        values = self._caught_up(*running[name])
                        if number < WARM_UP_ROUNDS:
                            continue
                        values |= self._followed(*running[name])
                    except NotSeenError as error:
                        self._leave_out(running, name, error)
                        continue
                    for (what, unit), value in values.items():
                        found[name, what, unit].append(value)
            return [
                Figure(f"{name}, {self._shards} shards", what, unit, tuple(runs))
                for name in (reader.name for reader in compared if reader.name in running)
                for (of, what, unit), runs in found.items()
                if of == name
            ]

    def _begin(self, running: dict[str, tuple[Running, Source]], name: str) -> None:
        """Wait until a reader has seen a record of each shard."""
        try:
            running[name][0].wait(lambda seen: len(seen) >= self._shards, START_SECONDS)
        except NotSeenError as error:
            self._leave_out(running, name, error)

    def _caught_up(self, reader: Running, source: Source) -> dict[tuple[str, str], float]:
        """What a reader takes to read a backlog."""
        self._number += 1
        before = reader.cpu()
        records = BACKLOG_BYTES[self._shards] // RECORD_BYTES // self._shards
        self._sender.send(("backlog", source.world.streams["orders"], self._shards, records, self._number))
        size = self._sender.recv() / 1e9
        marks = {mark(self._number, shard).decode() for shard in range(self._shards)}
        reader.wait(lambda seen: marks <= {head for head, _ in seen}, WAIT_SECONDS)
        return {(f"{CPU}, {kind}", "s/GB"): (used - before[kind]) / size for kind, used in reader.cpu().items()}

    def _followed(self, reader: Running, source: Source) -> dict[tuple[str, str], float]:
        """The ages of a steady load's records, and the memory that the reader has had so far."""
        begin = f"{time.time():17.6f}"
        self._sender.send(("steady", source.world.streams["orders"], STEADY_SECONDS))
        sent = self._sender.recv()

        def of_this_turn(seen: list[tuple[str, int]]) -> list[tuple[float, float]]:
            # A reader may repeat what it had before.
            return [(float(head), at / 1e6) for head, at in seen if begin <= head < "e"]

        seen = of_this_turn(reader.wait(lambda seen: len(of_this_turn(seen)) >= sent, WAIT_SECONDS))
        counted = float(begin) + UNCOUNTED_SECONDS
        cuts = quantiles([(at - head) * 1e3 for head, at in seen if head >= counted], n=100)
        memory = {(f"{MEMORY}, {kind}", "MB"): size / 1e6 for kind, size in reader.memory.items()}
        return {(P50, "ms"): cuts[49], (P99, "ms"): cuts[98], **memory}

    def _leave_out(self, running: dict[str, tuple[Running, Source]], name: str, error: NotSeenError) -> None:
        reader, source = running.pop(name)
        reader.kill()
        last = (source.place / "errors").read_text().strip().splitlines()[-1:]
        print(f"peers: {name} is left out with {self._shards} shards: {error} {last}", file=sys.stderr)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
