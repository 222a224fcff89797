"""The words of scenarios: what Kinesis has, what a program asks, what happens to it, which rows come. Whole runs, in virtual time.

    with world(shards=1) as w:
        query = w.query().follows(10).stop()
        w.split()
        w.put(10)
        query.start().reads(20)

Everything of the library is real but sockets, processes and clocks. A scenario fails if a row is missing, doubled or out of order, if
Kinesis has a record that a query can read and has not read at the end, or if the library warns of something that `warns` does not name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Self

from kinesis_efo.errors import DataLossError, KinesisEfoError
from kinesis_efo.leases.keys import run_key
from kinesis_efo.spark import stream_planner
from tests.emulator.loss_oracle import Broken
from tests.emulator.loss_world import LossProgram, LossWorld, SparkQuery, simulated
from tests.emulator.machine import BEGAN, Machine, SimulatedProcess

SPARK: Final = (4, 3)
_STEP_SECONDS: Final = 0.5
_KEYS: Final = tuple(f"key{number}" for number in range(8))


class Steady(Random):
    """Nothing happens by chance."""

    def random(self) -> float:
        return 0.999

    def shuffle(self, _: object) -> None: ...


class World:
    """Kinesis with one or more streams, a lease table, and a Spark program that reads them.

    Args:
        machine: Runs the processes.
        directory: Where the processes of a program find each other.
        shards: The number of shards of each stream.
        streams: The names of the streams.
        fetchers: The option `fetchers`; 0: the driver fetches.
        options: Options of all queries, by their names in Spark.
        settings: Settings of the local Kinesis.
        spark: The version of Spark.
    """

    def __init__(
        self,
        machine: Machine,
        directory: Path,
        *,
        shards: int,
        streams: Sequence[str],
        fetchers: int,
        options: dict[str, str],
        settings: dict[str, object],
        spark: tuple[int, int] = SPARK,
    ) -> None:
        self.machine = machine
        self.kinesis = LossWorld(machine, directory, Steady(0), {"retention_seconds": 24 * 3600.0, **settings})
        for name in streams:
            self.kinesis.create(name, shards)
        self.streams = tuple(streams)
        self.queries: list[Query] = []
        self._fetchers = fetchers
        self._spark = spark
        self._options = {
            "startingPosition": "TRIM_HORIZON", "leaseTimeout": "30s", "pollTimeout": "10s", "bufferBytes": "8m",
            "metricsExport": "none", **options,
        }  # fmt: skip
        self._tolerated: list[str] = []
        self._written = 0
        self.program = LossProgram(self.kinesis, "program", "here", fetchers)

    # -- Kinesis

    def put(self, records: int, stream: str = "", *, size: int = 20, key: str = "", wait: float = 0.0) -> None:
        """Put records of `size` bytes, now; with eight keys in turn, or with `key`. Then let `wait` seconds pass."""
        for _ in range(records):
            self._written += 1
            self.kinesis.write(stream or self.streams[0], key or _KEYS[self._written % len(_KEYS)], size)
        if wait:
            self.later(wait)

    def put_aggregates(self) -> None:
        """Put KPL aggregates from now on; right after a split, some go to a wrong shard as well, as the KPL's do."""
        self.kinesis.aggregates = Random(1)

    def put_for(self, seconds: float, every: float, stream: str = "", *, size: int = 20) -> None:
        """Put a record every some seconds, for some time, while everything else goes on."""
        until = self.machine.now + seconds
        while self.machine.now < until:
            self.put(1, stream, size=size)
            self.later(every)

    def split(self, stream: str = "") -> None:
        """Split each open shard of a stream."""
        name = f"dev-{stream or self.streams[0]}"
        for shard in list(self.kinesis.kinesis.state.streams[name].open_shards):
            middle = str(sum(shard.hash_range) // 2 + 1)
            self.kinesis.kinesis.call("SplitShard", StreamName=name, ShardToSplit=shard.id, NewStartingHashKey=middle)
        self.kinesis.learn(stream or self.streams[0])

    def merge(self, stream: str = "") -> None:
        """Merge the first two open shards of a stream."""
        name = f"dev-{stream or self.streams[0]}"
        one, other = self.kinesis.kinesis.state.streams[name].open_shards[:2]
        self.kinesis.kinesis.call("MergeShards", StreamName=name, ShardToMerge=one.id, AdjacentShardToMerge=other.id)
        self.kinesis.learn(stream or self.streams[0])

    def shard_of(self, key: str, stream: str = "") -> str:
        """The shard that gets records with a key now."""
        return self.kinesis.kinesis.state.streams[f"dev-{stream or self.streams[0]}"].shard_for(key, None).id

    def subscribers(self) -> list[SimulatedProcess]:
        """The processes that have an open subscription."""
        return [
            process
            for process, client in self.kinesis.clients.items()
            if process.lives and any(not body.over for body in client.bodies)
        ]

    def calls(self, operation: str) -> int:
        """How often an operation of Kinesis was called so far."""
        return self.kinesis.operations[operation]

    @property
    def buffered(self) -> int:
        """Bytes that the run believes to be in buffers."""
        runs = [runtime.whole.run for process, runtime in self.program.hosting.items() if process.lives]
        return sum(each.buffered for run in runs for each in run.table.statuses(None, run.fetcher_of))

    def refuse_get_records(self) -> None:
        """Refuse GetRecords from now on, as without the permission."""
        self.warns("kinesis:GetRecords")
        self.kinesis.refused = True

    def fail(self, operation: str, *, after: float, seconds: float) -> None:
        """Let an operation of Kinesis fail for some seconds, after some seconds."""
        begins = self.kinesis.now + after
        self.kinesis.fails_from, self.kinesis.fails_until = {operation: begins}, begins + seconds

    def answer_stuck(self) -> None:
        """Let each answer without records claim that there are some, and give the same iterator."""
        self.kinesis.is_stuck = True

    def expire_iterators(self, seconds: float) -> None:
        """Let each iterator of GetRecords expire on its way to the next record, for some seconds."""
        until = self.kinesis.now + seconds
        self.kinesis.expires = lambda: self.kinesis.now < until

    # -- time and processes

    def later(self, seconds: float) -> None:
        """Let time pass; whatever runs goes on."""
        self.machine.sleep(seconds)
        self._check()

    def until(self, true: Callable[[], bool], within: float, what: str) -> None:
        """Let time pass until something is true, for at most some seconds."""
        give_up_at = self.machine.now + within
        while not true():
            if self.machine.now >= give_up_at:
                raise Broken(f"after {within:.0f} s: {what}")
            self.later(_STEP_SECONDS)

    def kill_run(self) -> None:
        """Kill the process that has the run, as SIGKILL does."""
        self.warns("the process that fetched for this query has ended: another takes over", "LimitExceededException")
        for process in self._runs():
            self.machine.kill(process)

    def freeze_run(self, seconds: float) -> None:
        """Let the process that has the run stand still, as SIGSTOP does; everything else goes on."""
        for process in self._runs():
            self.machine.run(self.machine.main.process, partial(self.machine.freeze, process, seconds))
        self.later(_STEP_SECONDS)

    def kill_fetcher(self, number: int = 0) -> None:
        """Kill an executor's process that fetches."""
        self.warns(" is gone; it read ", "LimitExceededException")
        self.machine.kill([each for each in self.program.fetching if each.lives][number])

    def freeze_fetcher(self, seconds: float, number: int = 0) -> None:
        """Let an executor's process that fetches stand still; everything else goes on."""
        self.warns(" is gone; it read ", "LimitExceededException", "has not replied for the duration")
        process = [each for each in self.program.fetching if each.lives][number]
        self.machine.run(self.machine.main.process, partial(self.machine.freeze, process, seconds))

    def cut_off(self, *hosts: str, seconds: float) -> None:
        """Keep the fetchers on some hosts, `host0` and so on, from reaching the run for some time; everything else goes on."""
        self.warns(" is gone; it read ", "LimitExceededException", "has not replied for the duration", "starting over")
        self.warns("requesting its current fetcher from the planner", "no fetcher", "does not answer")
        self.kinesis.cut_off |= {*hosts}

        def join() -> None:
            self.machine.sleep(seconds)
            self.kinesis.cut_off -= {*hosts}

        self.machine.run(self.machine.main.process, join)

    def lose_answers(self, seconds: float) -> None:
        """Lose a third of a run's answers to its fetchers for some time."""
        self.warns(
            "LimitExceededException", "has not replied for the duration", "does not answer", " is gone; it read "
        )
        self.kinesis.losing = Random(7)

        def join() -> None:
            self.machine.sleep(seconds)
            self.kinesis.losing = None

        self.machine.run(self.machine.main.process, join)

    def take_lease(self, stream: str = "") -> None:
        """Let another owner have the lease on a stream, as after a takeover."""
        self.warns(" lost to elsewhere", "LimitExceededException")
        key = run_key(stream or self.streams[0])
        row = self.kinesis.table.lease(key)
        taken = replace(row, owner="elsewhere", counter=row.counter + 1)
        self.kinesis.table.items[key] = {**self.kinesis.table.items[key], **taken.to_item()}

    def kill_program(self) -> None:
        """Kill the driver with all that it has started. Queries start again in another one."""
        self.warns("LimitExceededException")
        self.program.kill()
        self.program = LossProgram(self.kinesis, "program", "here", self._fetchers)
        for query in self.queries:
            query.spark.running = None

    def another_program(self, host: str) -> LossProgram:
        """A second driver, on another host."""
        return LossProgram(self.kinesis, "another", host, self._fetchers)

    def _runs(self) -> list[SimulatedProcess]:
        return [process for process in self.program.hosting if process.lives]

    # -- the program

    def query(
        self,
        streams: Sequence[str] = (),
        *,
        scans: int = 1,
        trigger: float = 1.0,
        available_now: bool = False,
        once: bool = False,
        **options: str,
    ) -> Query:
        """Start a query with a new checkpoint.

        Args:
            streams: The streams that it reads; all by default.
            scans: How often a micro-batch scans the source.
            trigger: The pause between micro-batches, seconds.
            available_now: Whether it ends once it has read what was there at its start.
            once: Whether it ends after one micro-batch.
            options: Its own options; `_` stands for a dot.
        """
        given = {**self._options, **{name.replace("_", "."): text for name, text in options.items()}}
        spark = SparkQuery(
            self.kinesis,
            f"q{len(self.queries)}",
            Steady(len(self.queries)),
            streams or self.streams,
            given,
            self._spark,
        )
        spark.scans, spark.trigger, spark.ends_at_tips, spark.once = scans, trigger, available_now, once
        if "session.listens" in given:
            spark.report = partial(self.program.report, spark)
        query = Query(self, spark)
        self.queries.append(query)
        query.start()
        return query

    def all_read(self, rows: int, within: float = 60.0) -> None:
        """Wait until each query's sink has so many rows, and no more."""
        for query in self.queries:
            query.reads(rows, within)

    def warns(self, *texts: str) -> None:
        """Tolerate warnings that contain one of these texts."""
        self._tolerated += texts

    # -- what must hold

    def _check(self) -> None:
        if self.machine.failures:
            raise self.machine.failures[0]

    def check(self) -> None:
        """Check, at the end, that every record was read that could be, and nothing was logged that was not expected."""
        self._check()
        for query in self.queries:
            query.check()
        for report in self.kinesis.reports:
            if not any(text in report.text for text in self._tolerated):
                raise Broken(f"a warning at {report.at - BEGAN:.0f} s: {report.text}")


class Query:
    """A streaming query: its checkpoint and its sink stay if it is stopped, or its processes are killed."""

    def __init__(self, world: World, spark: SparkQuery) -> None:
        self.spark = spark
        self._world = world
        self._expected: type[KinesisEfoError] | None = None

    @property
    def rows(self) -> int:
        """How many rows its sink has."""
        return self.spark.oracle.rows

    @property
    def batches(self) -> int:
        """How many micro-batches it has committed."""
        return len(self.spark.checkpoint.commits)

    def start(self) -> Self:
        """Start it, or start it again with its checkpoint."""
        spark = self.spark
        spark.error, spark.stopping = None, False
        spark.running = self._world.program.start(spark)  # type: ignore[arg-type]
        return self

    def stop(self) -> Self:
        """Stop it as Spark does between two micro-batches."""
        process, self.spark.stopping = self.spark.running, True
        self._world.until(lambda: process is None or not process.lives, 120, f"{self.spark.name} has not stopped")
        return self

    def kill(self) -> None:
        """Kill the process that plans for it."""
        assert self.spark.running is not None
        self._world.machine.kill(self.spark.running)
        self.spark.running = None

    def plans(self, within: float = 30.0) -> Self:
        """Wait until a micro-batch is in its log that is not committed."""
        self._world.until(lambda: self.spark.is_unfinished, within, f"{self.spark.name} has planned nothing")
        return self

    def copy(self) -> Query:
        """Start a query with a copy of its checkpoint and of its sink, in the same program."""
        other = Query(self._world, self.spark.copied(f"q{len(self._world.queries)}"))
        self._world.queries.append(other)
        other.start()
        return other

    def reads(self, rows: int, within: float = 60.0) -> Self:
        """Wait until its sink has so many rows, and no more."""

        def done() -> bool:
            if self.spark.error is not None:
                raise self.spark.error
            return self.rows >= rows

        self._world.until(done, within, f"{self.spark.name} has {self.rows} rows, not {rows}")
        assert self.rows == rows, f"{self.spark.name} has {self.rows} rows, not {rows}"
        return self

    def follows(self, records: int, within: float = 60.0, *, size: int = 20) -> Self:
        """Put records into its first stream, and wait until its sink has so many rows more, and no more than these."""
        before = self.rows
        self._world.put(records, self.spark.names[0], size=size)
        return self.reads(before + records, within)

    def fails(self, error: type[KinesisEfoError], within: float = 60.0) -> str:
        """Wait until it has failed with an error; returns the message."""
        self._world.until(lambda: self.spark.error is not None, within, f"{self.spark.name} has not failed")
        if not isinstance(self.spark.error, error):
            raise Broken(f"{self.spark.name} has failed with another error") from self.spark.error
        self._expected = error
        return str(self.spark.error)

    def ends(self, rows: int, within: float = 120.0) -> Self:
        """Wait until it has ended by itself, and has so many rows."""
        process = self.spark.running
        self._world.until(lambda: process is None or not process.lives, within, f"{self.spark.name} has not ended")
        return self.reads(rows, 0.0)

    def accepts_one_loss(self) -> Self:
        """Accept the loss that it has failed with, and start it again."""
        named = re.search(r"'acceptDataLoss' to (\{.*?\}\})", str(self.spark.error))
        assert named is not None, "the error names no gap"
        self.spark.accept(json.loads(named[1]))
        return self.start()

    def accepts_losses(self, rows: int) -> None:
        """Start it until it ends, accept each loss that it fails with, and check its rows."""
        self.start()
        for _ in range(20):
            process = self.spark.running
            self._world.until(lambda: process is None or not process.lives, 200, f"{self.spark.name} has not ended")  # noqa: B023
            if not isinstance(self.spark.error, DataLossError):
                self.reads(rows, 0.0)
                return
            self._expected = DataLossError
            self.accepts_one_loss()
        raise Broken(f"{self.spark.name} fails again with losses that it accepts") from self.spark.error

    def reads_only(self, streams: Sequence[str], **options: str) -> None:
        """Set its streams, and options, for the next start."""
        self.spark.names = list(streams)
        self.spark.given |= {name.replace("_", "."): text for name, text in options.items()}

    def forget(self, *names: str) -> None:
        """Remove entries from its log, as versions wrote it that did not know them."""
        for end in self.spark.checkpoint.offsets.values():
            for name in names:
                end.pop(name, None)

    def pause_sink(self, seconds: float, *, before_reading: bool = False) -> Self:
        """Let its sink be down for some time; with `before_reading`, tasks wait for it before they read, and read twice."""
        self.spark.down_until = self._world.machine.now + seconds
        if before_reading:
            self.spark.random.random = lambda: 0.0  # type: ignore[method-assign]
        return self

    def check(self) -> None:
        """Check that it has read every record that it could read, unless it has ended or was stopped."""
        if self.spark.error is not None and self._expected is None:
            raise self.spark.error
        if self.spark.running is not None and self.spark.running.lives:
            self.spark.oracle.check_end(self._world.kinesis.now)


@contextmanager
def world(
    *,
    shards: int = 1,
    streams: Sequence[str] = ("orders",),
    fetchers: int = 0,
    table: bool = True,
    options: dict[str, str] | None = None,
    spark: tuple[int, int] = SPARK,
    warns: Sequence[str] = (),
    **settings: object,
) -> Iterator[World]:
    """A world in which a scenario happens; see `World`. Warnings that contain one of the texts `warns` are tolerated."""
    machine = Machine()
    with simulated(0, machine) as (directory, reports_to):
        stream_planner.SPARK_VERSION = spark  # type: ignore[attr-defined]
        made = World(
            machine,
            directory,
            shards=shards,
            streams=streams,
            fetchers=fetchers,
            options=options or {},
            settings=settings,
            spark=spark,
        )
        reports_to.append(made.kinesis)
        made.warns(*warns)
        if not table:
            made.kinesis.lease_table = ""
            made.warns("there is no kinesis-efo option 'leaseTable'")
        try:
            yield made
            made.check()
        except AssertionError as broken:
            for report in made.kinesis.reports[-12:]:
                broken.add_note(f"{report.at - BEGAN:.0f} s: {report.text[:300]}")
            raise
        finally:
            for query in made.queries:
                query.spark.stopping = True
