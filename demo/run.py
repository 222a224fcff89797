"""Runs the demo: declares the streams, puts events, archives them, kills the job half way, restarts it, and compares."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3
from rich.console import Console

from demo import chart, display, ledger, output, processes
from demo.chart import Sample
from demo.display import Display, View
from demo.events import STREAMS, count
from demo.load import Loader
from demo.processes import Child, DemoError
from infra.local.up import up

MANIFEST: Final = "ssm:///kinesis-efo/demo/lake"
_ENVIRONMENTS: Final = Path(__file__).parent / "environments"
_LOOK_EVERY: Final = 0.25
_PATIENCE: Final = 180.0
"""Seconds without a completed micro-batch after which the demo gives up."""
_END_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a run.

    Attributes:
        directory: Directory for all output; empty, or new.
        events: Number of events; None for all of them.
        seconds: Time over which they are put.
        kill: Whether to kill the job half way.
    """

    directory: Path
    events: int | None = None
    seconds: float = 75.0
    kill: bool = True


def run(plan: Plan, console: Console) -> int:
    """Run the demo.

    Returns:
        The exit code: 0 if every event is archived exactly once, else 1.

    Raises:
        DemoError: The run failed before the comparison.
    """
    directory = plan.directory
    total = count(plan.events)
    with Display(console) as shown, processes.local_aws(directory) as aws:
        url = processes.endpoint(aws)
        shown.say(f"local AWS answers at {url}")
        os.environ.update(processes.environment(url))
        up(_ENVIRONMENTS, "demo", url, through="boto3")
        names, shards = _declared()
        shapes = ", ".join(f"{name} (shards: {shards[name]})" for name in names)
        shown.say(f"declared {shapes}; manifest {MANIFEST}")
        job = processes.archive_job(directory, url, MANIFEST, batch_records=max(500, total // 16))
        loader = Loader(names, url, processes.REGION, plan.events, total / plan.seconds)
        with job, loader:
            watched = _Run(loader, job, directory, total, shown, split=lambda: _split(names[STREAMS[0]]))
            watched.execute(plan)
        shown.say("a batch read of both streams, from their beginning to their tips")
        began = time.monotonic()
        with processes.batch_read(directory, url, MANIFEST) as batch_read:
            batch_read.start()
            batch_read.wait(_PATIENCE)
        seconds = time.monotonic() - began
    shown.say("comparing what was put with what is in Parquet, and that with the batch read")
    archived = output.tally(directory / "lake")
    verdicts = ledger.compare(loader.tallies, archived)
    again = ledger.compare(archived, output.tally_of_read(directory / "read"))
    picture = directory / "backlog.png"
    chart.draw(watched.samples, watched.marks, picture)
    kills = sum(what == "killed" for _, what in watched.marks)
    exact, same = (bool(total) and all(verdict.exact for verdict in each) for each in (verdicts, again))
    sentences = [(exact, ledger.sentence(verdicts, kills)), (same, ledger.sentence_of_read(again, seconds))]
    display.report(console, verdicts, sentences, picture)
    return 0 if exact and same else 1


@dataclass
class _Run:
    """The run from the job's start to its end, with samples of its progress."""

    loader: Loader
    job: Child
    directory: Path
    total: int
    shown: Display
    split: Callable[[], str]
    samples: list[Sample] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._watch = output.Watch(self.directory / "lake")
        self._began = time.monotonic()
        self._moved_at = self._began
        self._bytes: list[int] = []

    def execute(self, plan: Plan) -> None:
        self.shown.say("spark-submit jobs/archive.py; its log: " + str(self.job.log))
        self.job.start()
        self._until(lambda: self._watch.total * 4 >= self.total, "reading")
        self._mark("split")
        self.shown.say(self.split())
        if plan.kill:
            self._until(lambda: self._watch.total * 2 >= self.total, "reading")
            self._until(self._in_a_batch, "reading")
            self._kill()
            self.job.start()
            self.shown.say("the same command again; it goes on from its checkpoint")
            before = self._watch.batch
            self._until(lambda: self._watch.batch > before, "starting again")
            self._mark("archiving again")
        self._until(
            lambda: self.loader.done and self._watch.total >= self.total, "catching up" if plan.kill else "reading"
        )
        self.shown.say("everything is archived; SIGTERM to the job")
        if code := self.job.ask_to_end(_END_SECONDS):
            raise DemoError(f"the job ended with exit code {code}:\n{self.job.tail()}")
        # The job completed its last micro-batch after SIGTERM.
        self._look("ended")

    def _until(self, reached: Callable[[], bool], phase: str) -> None:
        while not self._look(phase) or not reached():
            if (code := self.job.exit_code) is not None:
                raise DemoError(f"the job ended by itself with exit code {code}:\n{self.job.tail()}")
            if self.loader.error:
                raise DemoError(f"putting events failed: {self.loader.error}") from self.loader.error
            if time.monotonic() - self._moved_at > _PATIENCE:
                raise DemoError(f"no micro-batch was completed for {_PATIENCE:.0f} s:\n{self.job.tail()}")
            self.job.remember_family()
            time.sleep(_LOOK_EVERY)

    def _look(self, phase: str) -> bool:
        before = self._watch.total
        self._watch.look()
        if self._watch.total != before:
            self._moved_at = time.monotonic()
        put, size = self.loader.written
        self.samples.append(Sample(time.monotonic() - self._began, put, self._watch.total))
        self._bytes.append(size)
        seconds = [sample.seconds for sample in self.samples[-40:]]
        lag = {name: handed - self._watch.archived[name] for name, handed in dict(self.loader.handed).items()}
        self.shown.show(
            View(
                phase,
                self.total,
                put,
                self._watch.total,
                chart.rates(seconds, self._bytes[-40:])[-1],
                chart.rates(seconds, [sample.archived for sample in self.samples[-40:]])[-1],
                self._watch.batch,
                lag,
            )
        )
        return True

    def _in_a_batch(self) -> bool:
        """Whether a micro-batch is planned and not completed. Polls at short intervals, as it may be short."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            planned, completed = (_last(self.directory / "checkpoint" / log) for log in ("offsets", "commits"))
            if planned > completed:
                return True
            time.sleep(0.005)
        return False

    def _kill(self) -> None:
        processes_killed = self.job.kill()
        self._mark("killed")
        self._watch.look()
        share = self._watch.total / self.total
        self.shown.say(
            f"[bold red]SIGKILL[/bold red] to the driver, its JVM and {processes_killed - 2} more processes, in the middle of a "
            f"micro-batch, with {share:.0%} archived"
        )
        self._moved_at = time.monotonic()

    def _mark(self, what: str) -> None:
        self.marks.append((time.monotonic() - self._began, what))


def _last(log: Path) -> int:
    if not log.is_dir():
        return -1
    return max((int(file.name) for file in log.iterdir() if file.name.isdigit()), default=-1)


def _declared() -> tuple[dict[str, str], dict[str, int]]:
    """The streams' names from the manifest, and their numbers of shards from Kinesis."""
    parameter = boto3.client("ssm").get_parameter(Name=MANIFEST.removeprefix("ssm://"), WithDecryption=True)
    streams: Mapping[str, Any] = json.loads(parameter["Parameter"]["Value"])["streams"]
    names = {name: str(streams[name]["streamName"]) for name in STREAMS}
    kinesis = boto3.client("kinesis")
    return names, {name: len(kinesis.list_shards(StreamName=names[name])["Shards"]) for name in STREAMS}


def _split(stream: str) -> str:
    """Split the first shard of a stream in two, and say so."""
    kinesis = boto3.client("kinesis")
    shard = kinesis.list_shards(StreamName=stream)["Shards"][0]
    middle = (int(shard["HashKeyRange"]["StartingHashKey"]) + int(shard["HashKeyRange"]["EndingHashKey"])) // 2
    kinesis.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
    return f"split shard {shard['ShardId']} of {stream} in two"
