"""Runs the demo: puts events, archives them, splits a shard, kills the job half way, restarts it, and compares."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import boto3
import msgspec

from demo import ledger, output
from demo.ledger import Tally
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli import local_process
from kinesis_efo_tools.cli.quickstart.child import Child
from kinesis_efo_tools.cli.quickstart.command import point_to
from kinesis_efo_tools.cli.quickstart.feeding import Feeder
from kinesis_efo_tools.cli.quickstart.flights import flights

FLIGHTS: Final = "flights"
LATE: Final = "late"
_LATE: Final = 15
"""Minutes from which on a flight goes into the stream of late ones."""
_LOOK_EVERY: Final = 0.25
_LINE_EVERY: Final = 5.0
_PATIENCE: Final = 180.0
"""Seconds without a completed micro-batch after which the demo gives up."""
_END_SECONDS: Final = 60.0
_ERRORS: Final = 15
_MARK: Final = ".kinesis-efo-demo"
ROOT: Final = Path(__file__).resolve().parent.parent


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a run.

    Attributes:
        directory: Directory for all output; empty, or new.
        events: Number of events.
        seconds: Time over which they are put.
        kill: Whether to kill the job half way.
    """

    directory: Path
    events: int
    seconds: float = 75.0
    kill: bool = True


def run(plan: Plan, say: Callable[[str], None]) -> bool:
    """Run the demo.

    Args:
        plan: Its settings.
        say: Prints a line.

    Returns:
        Whether every event is archived exactly once.

    Raises:
        DemoError: The run failed before the comparison.
    """
    directory, tallies = plan.directory, {FLIGHTS: Tally(), LATE: Tally()}
    manifest = str(directory / "manifest.json")
    with ExitStack() as stack:
        declared = [f"--stream={FLIGHTS}:4", f"--stream={LATE}:1", "--application=lake", f"--manifest-out={manifest}"]
        try:
            aws, log = local_process.start(["--port=0", *declared], directory)
        except local_process.ChildFailed as failed:
            raise DemoError(f"the local AWS did not start:\n{failed.said}") from None
        stack.callback(local_process.stop, log.with_suffix(".json"), aws)
        say(f"local AWS at {aws.endpointUrl}, with streams {FLIGHTS} (shards: 4) and {LATE} (shards: 1)")
        point_to(aws.environment)
        put = events(plan.events, tallies)
        feeder = Feeder(put, AwsSettings(endpoint_url=aws.endpointUrl), plan.events / plan.seconds)
        job = stack.enter_context(_archive_job(directory, manifest, plan.events))
        stack.enter_context(feeder)
        kills = _Run(feeder, job, plan, say).execute()
        say("a batch read of both streams, from their beginning to their tips")
        began = time.monotonic()
        read = submitted([ROOT / "demo" / "batch_read.py", manifest, directory / "read"], directory / "batch-read.log")
        with read:
            read.start()
            if code := read.wait(_PATIENCE):
                raise DemoError(f"the batch read ended with exit code {code}:\n{read.tail(_ERRORS)}")
            if code is None:
                raise DemoError(f"the batch read did not end within {_PATIENCE:.0f} s; see {read.log}")
        seconds = time.monotonic() - began
    say("comparing what was put with what is in Parquet, and that with the batch read")
    archived = output.tally(directory / "lake")
    verdicts = ledger.compare(tallies, archived)
    again = ledger.compare(archived, output.tally_of_read(directory / "read"))
    for verdict in verdicts:
        say(ledger.line(verdict))
    say(ledger.sentence(verdicts, kills))
    say(ledger.sentence_of_read(again, seconds))
    return all(bool(each) and all(verdict.exact for verdict in each) for each in (verdicts, again))


def empty(directory: Path) -> Path:
    """Make a directory for output, or empty that of an earlier run.

    Raises:
        DemoError: It holds other files.
    """
    if directory.exists() and any(directory.iterdir()) and not (directory / _MARK).exists():
        raise DemoError(f"{directory} holds files that are not the demo's; give another directory with --directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / _MARK).touch()
    return directory


def events(number: int, tallies: Mapping[str, Tally]) -> Iterator[tuple[str, bytes, str]]:
    """The events to put, each counted before: stream, payload and partition key.

    Args:
        number: How many.
        tallies: Where they are counted, by stream.
    """
    encode = msgspec.json.Encoder().encode
    for event, flight in enumerate(islice(flights(Random(2013)), number)):
        stream, name = LATE if flight.delay >= _LATE else FLIGHTS, f"{event:07d}"
        payload = encode({"id": name, **msgspec.structs.asdict(flight)})
        tallies[stream].add(name, flight.aircraft, payload)
        yield stream, payload, flight.aircraft


@dataclass
class _Run:
    """The run from the job's start to its end."""

    feeder: Feeder
    job: Child
    plan: Plan
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._watch = output.Watch(self.plan.directory / "lake")
        self._moved_at, self._said_at = time.monotonic(), 0.0

    def execute(self) -> int:
        """Do it, and return how often the job was killed."""
        total = self.plan.events
        self.say(f"spark-submit jobs/archive.py; its log: {self.job.log}")
        self.job.start()
        self._until(lambda: self._watch.total * 4 >= total, "reading")
        self.say(split(FLIGHTS))
        if self.plan.kill:
            self._until(lambda: self._watch.total * 2 >= total, "reading")
            self._until(self._in_a_batch, "reading")
            killed = self.job.kill()
            self._watch.look()
            self.say(
                f"SIGKILL to the driver, its JVM and {killed - 2} more processes, in the middle of a micro-batch, with "
                f"{self._watch.total / total:.0%} archived"
            )
            self._moved_at = time.monotonic()
            self.job.start()
            self.say("the same command again; it goes on from its checkpoint")
        self._until(lambda: self.feeder.done and self._watch.total >= total, "archiving")
        self.say("everything is archived; SIGTERM to the job")
        if (code := self.job.wait(_END_SECONDS, end=True)) != 0:
            how = f"did not end within {_END_SECONDS:.0f} s" if code is None else f"ended with exit code {code}"
            raise DemoError(f"the job {how}:\n{self.job.tail(_ERRORS)}")
        return int(self.plan.kill)

    def _until(self, reached: Callable[[], bool], phase: str) -> None:
        while True:
            self._look(phase)
            if reached():
                return
            if (code := self.job.exit_code) is not None:
                raise DemoError(f"the job ended by itself with exit code {code}:\n{self.job.tail(_ERRORS)}")
            if self.feeder.error:
                raise DemoError(f"putting events failed: {self.feeder.error}") from self.feeder.error
            if time.monotonic() - self._moved_at > _PATIENCE:
                raise DemoError(f"no micro-batch was completed for {_PATIENCE:.0f} s:\n{self.job.tail(_ERRORS)}")
            time.sleep(_LOOK_EVERY)

    def _look(self, phase: str) -> None:
        before, now = self._watch.total, time.monotonic()
        self._watch.look()
        if self._watch.total != before:
            self._moved_at = now
        if now - self._said_at >= _LINE_EVERY:
            self._said_at = now
            put = self.feeder.written
            self.say(f"{phase}: put {put:,}, archived {self._watch.total:,}, micro-batch {self._watch.batch}")

    def _in_a_batch(self) -> bool:
        """Whether a micro-batch is planned and not completed. Polls at short intervals, as it may be short."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            planned, completed = (_last(self.plan.directory / "checkpoint" / log) for log in ("offsets", "commits"))
            if planned > completed:
                return True
            time.sleep(0.005)
        return False


def _last(log: Path) -> int:
    if not log.is_dir():
        return -1
    return max((int(file.name) for file in log.iterdir() if file.name.isdigit()), default=-1)


def split(stream: str) -> str:
    """Split the first shard of a stream in two, and say so."""
    kinesis = boto3.client("kinesis")
    shard = kinesis.list_shards(StreamName=stream)["Shards"][0]
    middle = (int(shard["HashKeyRange"]["StartingHashKey"]) + int(shard["HashKeyRange"]["EndingHashKey"])) // 2
    kinesis.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
    return f"split shard {shard['ShardId']} of {stream} in two"


def _archive_job(directory: Path, manifest: str, total: int) -> Child:
    """`jobs/archive.py`, as users run it."""
    command = [
        ROOT / "jobs" / "archive.py",
        "--manifest", manifest,
        "--output", directory / "lake",
        "--checkpoint", directory / "checkpoint",
        "--streams", "*",
        "--starting-position", "TRIM_HORIZON",
        "--trigger", "1 second",
        "--option", f"maxRecordsPerTrigger={max(500, total // 16)}",
    ]  # fmt: skip
    return submitted(command, directory / "job.log")


def submitted(command: Sequence[object], log: Path) -> Child:
    """A program for `spark-submit`, not started yet."""
    settings = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=WARN"]
    return Child([str(Path(sys.executable).with_name("spark-submit")), *settings, *map(str, command)], {}, log)
