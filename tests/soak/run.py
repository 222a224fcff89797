"""Runs the soak: a local AWS with faults, a producer, a Spark driver that is killed repeatedly, and an oracle."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil
from botocore.exceptions import ClientError

from kinesis_efo.options import AwsSettings
from kinesis_efo_local import LocalAws, Settings
from tests.soak.load import Load
from tests.soak.mishaps import Mishaps
from tests.soak.oracle import Oracle, Violation
from tests.soak.report import Report, save
from tests.soak.vitals import Probe, Sample, growth
from tests.support.driven import Driver, local_driver, reshard
from tests.support.world import World, make_world

LOOK_SECONDS = 0.5
STALL_SECONDS = 150.0
"""Seconds without a micro-batch that count as a stall, if records wait. Starting Spark and waiting for dead leases take less."""

DRAIN_SECONDS = 240.0
END_SECONDS = 30.0
FETCHERS = 2
"""Fetchers on executors, in every other run."""
OPTIONS = {"leaseTimeout": "5s", "bufferBytes": "64m", "idleCheckpointInterval": "5s"}


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a soak.

    Attributes:
        directory: Directory for all output; empty.
        seconds: How long records are written.
        seed: Seed of all randomness.
        shards: Number of shards at first.
        rate: Records per second between bursts.
        fault_seconds: Seconds between two faults, on average.
        reshard_seconds: Seconds between two reshards, on average.
        life_seconds: Seconds until a driver is killed, on average. In the last two fifths of the time only one is, so that growth
            shows.
        say: Receives lines on the progress.
    """

    directory: Path
    seconds: float
    seed: int = 2013
    shards: int = 16
    rate: float = 400.0
    fault_seconds: float = 3.0
    reshard_seconds: float = 40.0
    life_seconds: float = 150.0
    say: Callable[[str], None] = lambda _: None


def soak(plan: Plan) -> Report:
    """Run a soak. The report's `violations` list everything that was not as it must be."""
    # Subscriptions live for one minute instead of five, so that there are more renewals.
    settings = Settings(
        consumer_creating_seconds=0.0,
        subscription_seconds=60.0,
        reshard_seconds=1.0,
        retention_seconds=900.0,
        trace_length=0,
        wrong_answers="all",
        wrong_answers_rate=0.02,
        wrong_answers_in_a_row=5,
    )
    mishaps = Mishaps(Random(plan.seed), plan.fault_seconds)
    with LocalAws(settings=settings, faults=mishaps) as aws:
        return Soak(plan, aws, make_world(aws, plan.directory, {"orders": plan.shards}), mishaps).run()


class Soak:
    """One soak.

    Args:
        plan: The settings.
        aws: The local AWS.
        world: The stream, its consumer, the lease table.
        mishaps: The faults of the local AWS.
    """

    def __init__(self, plan: Plan, aws: LocalAws, world: World, mishaps: Mishaps) -> None:
        self.report = Report()
        self.samples: list[Sample] = []
        self._plan = plan
        self._aws = aws
        self._world = world
        self._mishaps = mishaps
        self._random = Random(plan.seed + 1)
        self._oracle = Oracle(plan.directory)
        self._load = Load(
            world.streams["orders"],
            AwsSettings(region=aws.settings.region, endpoint_url=aws.endpoint_url),
            plan.rate,
            Random(plan.seed + 2),
        )
        self._kills_left = self._kill_times()
        self._reshard_at = plan.reshard_seconds / 2
        self._began = self._moved_at = time.monotonic()
        self._driver: Driver | None = None
        self._probe: Probe | None = None
        self._life = -1

    def run(self) -> Report:
        """Run the soak, from the first record to the end of every process."""
        try:
            with self._load:
                self._start_driver()
                # All kills take place, even if Spark starts more slowly than planned.
                while self._seconds < self._plan.seconds or self._kills_left:
                    self._step()
                self.report.seconds = self._seconds
                total = self._load.stop()
                self._plan.say(f"{total:,} records written; waiting until all have come")
                self._drain(total)
            self._end()
        except Violation as violation:
            self.report.violations.append(str(violation))
        finally:
            if self._driver is not None:
                self._driver.kill()
            self._sum_up()
        return self.report

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    # -- steps

    def _step(self) -> None:
        self._look()
        now = self._seconds
        if now >= self._reshard_at:
            self._reshard_at = now + self._random.uniform(0.5, 1.5) * self._plan.reshard_seconds
            with suppress(ClientError):  # a mishap may strike each try
                self.report.reshards[reshard(self._world, self._random)] += 1
        if self._kills_left and now >= self._kills_left[0] and self._made_progress:
            self._kills_left.pop(0)
            self._kill()
            self._start_driver()
        time.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        """Check the records that were read, and that the query makes progress."""
        batches, now = self._oracle.batches, time.monotonic()
        self._oracle.look()
        if self._load.error is not None:
            raise Violation(f"the producer failed: {self._load.error}")
        backlog = self._load.put - self._oracle.ledger.records
        if self._oracle.batches > batches or not backlog:
            self._moved_at = now
        self.report.largest_backlog = max(self.report.largest_backlog, backlog)
        assert self._driver is not None and self._probe is not None
        if self._driver.process.poll() is not None or "FAILED" in self._log:
            raise Violation(f"the query ended by itself:\n{self._log}")
        if now - self._moved_at > STALL_SECONDS:
            raise Violation(f"no micro-batch for {STALL_SECONDS:.0f} s with {backlog} records waiting:\n{self._log}")
        if (seen := self._probe.look()) is not None:
            self.samples.append(Sample(self._seconds, self._life, *seen, backlog))

    def _drain(self, total: int) -> None:
        give_up_at = self._seconds + DRAIN_SECONDS
        while self._oracle.ledger.records < total:
            if self._seconds > give_up_at:
                missing = total - self._oracle.ledger.records
                raise Violation(
                    f"{missing} of {total} records have not come within {DRAIN_SECONDS:.0f} s:\n{self._log}"
                )
            self._look()
            time.sleep(LOOK_SECONDS)
        # A record that is read twice may still come.
        for _ in range(4):
            time.sleep(LOOK_SECONDS)
            self._look()

    # -- the driver

    def _start_driver(self) -> None:
        self._life += 1
        # All ways to read take turns on one checkpoint; the last and longest two runs use Enhanced Fan-Out.
        mode = "polling" if self._life % 4 > 1 and len(self._kills_left) > 1 else "efo"
        fetchers = FETCHERS if self._life % 2 else 0
        transport = ("http2", "http1")[(self._life + self._life // 4) % 2]
        options = {
            **OPTIONS,
            "readMode": mode,
            "transport": transport,
            **({"fetchers": str(fetchers)} if fetchers else {}),
        }
        # Each fetcher keeps a core.
        directory = self._plan.directory
        self._driver = local_driver(directory / f"driver{self._life}.log", 2 + fetchers)
        self._driver.start(f"run-{self._life}", self._world, directory, options=options)
        self._probe = Probe(self._driver.process.pid, fetchers)
        self._committed_before = self._oracle.committed
        self._moved_at = time.monotonic()
        way = mode if mode == "polling" else transport
        way = f"{way}, {fetchers} fetchers" if fetchers else way
        self.report.modes.append(way)
        self._plan.say(f"{self._seconds:6.0f} s  run {self._life} reads with {way}")

    @property
    def _made_progress(self) -> bool:
        return self._oracle.batches > self._committed_before

    def _kill(self) -> None:
        time.sleep(self._random.uniform(0, 2))
        assert self._driver is not None
        self._driver.kill()
        self.report.kills += 1
        self._plan.say(f"{self._seconds:6.0f} s  SIGKILL; {self._oracle.ledger.records:,} records so far")

    def _kill_times(self) -> list[float]:
        span = 0.6 * self._plan.seconds
        count = max(1, round(span / self._plan.life_seconds))
        times = [(number + self._random.uniform(0.3, 1)) * span / count for number in range(count)]
        return [*times, 0.8 * self._plan.seconds]

    def _end(self) -> None:
        """Send SIGTERM, and check that every process and subscription ends."""
        assert self._driver is not None
        root = psutil.Process(self._driver.process.pid)
        family = [root, *root.children(recursive=True)]
        os.killpg(self._driver.process.pid, signal.SIGTERM)
        # Waits for the driver, too, which would stay a zombie otherwise.
        _, alive = psutil.wait_procs(family, timeout=END_SECONDS)
        if alive:
            raise Violation(f"{END_SECONDS:.0f} s after SIGTERM there still are {', '.join(map(_describe, alive))}")
        give_up_at = time.monotonic() + END_SECONDS
        while self._aws.kinesis.subscriptions:
            if time.monotonic() > give_up_at:
                raise Violation(f"subscriptions are left behind: {len(self._aws.kinesis.subscriptions)}")
            time.sleep(0.1)

    @property
    def _log(self) -> str:
        assert self._driver is not None
        return self._driver.log.read_text(errors="replace")[-4000:]

    # -- the end

    def _sum_up(self) -> None:
        report, ledger = self.report, self._oracle.ledger
        report.records, report.bytes, report.batches = ledger.records, ledger.bytes, self._oracle.batches
        report.largest_lag = self._oracle.largest_lag
        for (target, kind), count in self._mishaps.struck.items():
            report.faults[f"{target}: {kind}"] += count
        report.shards = 1 + max(int(shard.rpartition("-")[2]) for shard in self._aws.kinesis.streams[self._name].shards)
        report.peak_memory = max((sample.memory for sample in self.samples), default=0)
        report.peak_files = max((sample.files for sample in self.samples), default=0)
        report.peak_threads = max((sample.threads for sample in self.samples), default=0)
        report.violations += growth(self.samples)
        if not self.samples:
            report.violations.append("the process that reads was never found: its memory is not known")
        save(report, self._plan.directory)

    @property
    def _name(self) -> str:
        return self._world.streams["orders"]


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({' '.join(process.cmdline())[:120]})"
    except psutil.Error:
        return str(process.pid)
