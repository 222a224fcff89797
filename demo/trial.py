"""`make trial`: what this library does with the Kinesis of an account, in ten minutes, as a report that can be pasted into an issue.

Terraform makes a stream, a consumer and a lease table, and removes them at the end; `--manifest` names existing ones instead.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import boto3
import psutil
import typer

from demo.run import DemoError, empty, split, submitted
from kinesis_efo.aws import SyncClients
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.kinesis.faults import Verdict, classify
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.transport import Unlimited
from kinesis_efo.manifest import Manifest, StreamRef, load_manifest
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli.quickstart.child import Child
from kinesis_efo_tools.cli.quickstart.feeding import Feeder
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.subscribing import over_aws

RATE: Final = 50
"""Records a second."""
PATIENCE: Final = 300.0
"""Seconds without a new row after which the trial gives up."""
_TERRAFORM: Final = "terraform"
"""Directory of Terraform's state, which is there as long as what it made may be."""
_ACCOUNT: Final = re.compile(r"(?<!shardId-)\b\d{12}\b")
"""An id of a shard has as many digits."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the report: what was looked at, whether it is as it should be, and what was found."""

    what: str
    status: str
    found: str

    @classmethod
    def of(cls, what: str, passed: bool, found: str) -> Line:
        """A line that passed or failed."""
        return cls(what, "passed" if passed else "failed", found)


class Row(NamedTuple):
    """A record as a row: its shard and number, and when it was put and came, epoch seconds."""

    shard: str
    number: int
    put: float
    came: float


def main(
    manifest: Annotated[
        Path | None, typer.Option(help="An application that nobody else reads: nothing is made and removed then.")
    ] = None,
    directory: Annotated[Path, typer.Option(help="Directory for all output.")] = Path("trial-out"),
    seconds: Annotated[float, typer.Option(min=5, help="How long to read before anything happens.")] = 60.0,
) -> None:
    """Try this library with the Kinesis of the account whose credentials are set, and print a report."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def say(line: str) -> None:
        typer.echo(f"{time.monotonic() - began:6.1f} s  {line}", err=True)

    try:
        place = directory.absolute()
        if (place / _TERRAFORM).exists():
            raise DemoError(
                f"what an earlier trial made may still be there: `terraform -chdir={place / _TERRAFORM} destroy`, with any name, "
                "and remove that directory"
            )
        empty(place)
        with ExitStack() as stack:
            path = manifest or stack.enter_context(declared(place, say))
            lines = asyncio.run(_checks(path, say)) + Reading(path, place, seconds, say).lines()
        text = report(lines)
        (place / "report.md").write_text(text)
        typer.echo(text)
        code = int(any(line.status == "failed" for line in lines))
    except (DemoError, KinesisEfoError) as error:
        typer.echo(f"trial: {error}", err=True)
        code = 1
    except KeyboardInterrupt:
        typer.echo("trial: stopped", err=True)
        code = 130
    raise typer.Exit(code)


@contextmanager
def declared(directory: Path, say: Say) -> Iterator[Path]:
    """Make a stream, a consumer and a lease table by Terraform, and destroy them at the end; yields the path of the manifest.

    Raises:
        DemoError: Terraform is missing or fails.
    """
    place = directory / _TERRAFORM
    place.mkdir()
    shutil.copy(Path(__file__).with_name("trial.tf"), place / "main.tf")
    name = f"-var=name=kinesis-efo-trial-{uuid.uuid4().hex[:6]}"
    try:
        _terraform(place, "init", "-input=false")
    except DemoError:
        # Nothing was made: the directory would refuse the next trial.
        shutil.rmtree(place)
        raise
    try:
        say(f"Terraform makes a stream, a consumer, a key and a lease table; its state is in {place}")
        _terraform(place, "apply", "-input=false", "-auto-approve", name)
        path = directory / "manifest.json"
        path.write_text(_terraform(place, "output", "-raw", "manifest"))
        yield path
    finally:
        say("Terraform removes them")
        _terraform(place, "destroy", "-input=false", "-auto-approve", name)
        shutil.rmtree(place)


def _terraform(place: Path, *arguments: str) -> str:
    program = os.environ.get("TERRAFORM_BINARY_NAME", "terraform")
    try:
        ran = subprocess.run(
            [program, f"-chdir={place}", *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise DemoError(f"{program} is not on the PATH; install it, or give --manifest") from None
    if ran.returncode:
        raise DemoError(f"{program} {arguments[0]} failed; if it made anything, its state is in {place}\n{ran.stderr}")
    return ran.stdout


async def _checks(path: Path, say: Say) -> list[Line]:
    say("kinesis-efo doctor --subscribe")
    command = [
        str(Path(sys.executable).with_name("kinesis-efo")),
        "doctor",
        "--subscribe",
        "--json",
        "--manifest",
        str(path),
    ]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(ran.stdout)["findings"]
    except (ValueError, KeyError):
        raise DemoError(f"doctor failed: {ran.stderr}") from None
    lines = [Line(each["subject"], each["status"], each["detail"]) for each in found]
    manifest = _manifest(path)
    ref = next(iter(manifest.streams.values()))
    async with Access(AwsSettings(), manifest.region) as access:
        say("subscribing again before and after 5 seconds")
        return [*lines, await _encryption(access, ref), *await five_seconds(access, ref)]


def _manifest(path: Path) -> Manifest:
    return load_manifest(str(path), SyncClients(AwsSettings()).client)


async def _encryption(access: Access, ref: StreamRef) -> Line:
    kinesis = await access.client("kinesis")
    summary = (await kinesis.describe_stream_summary(StreamARN=ref.stream_arn))["StreamDescriptionSummary"]
    encrypted = summary.get("EncryptionType") == "KMS"
    return Line("encryption", "passed" if encrypted else "unknown", "KMS" if encrypted else "none: not tried")


async def five_seconds(access: Access, ref: StreamRef) -> list[Line]:
    """Subscribe a consumer again to a shard: one second after its last subscription, and five.

    Args:
        access: Clients.
        ref: The stream, and the consumer.
    """
    kinesis = await access.client("kinesis")
    shards = await kinesis.list_shards(StreamARN=ref.stream_arn, ShardFilter={"Type": "AT_LATEST"}, MaxResults=1)
    shard = shards["Shards"][0]["ShardId"]
    # What measured before may have subscribed just now.
    await asyncio.sleep(KINESIS_LIMITS.after_success)
    opens = over_aws(access)
    # Over HTTP/1.1, each has one connection, which an open subscription takes.
    async with opens("auto") as earlier, opens("auto") as subscriber:
        first = await earlier.subscribe(ref, shard, None, Unlimited())
        await asyncio.sleep(1)
        try:
            (await subscriber.subscribe(ref, shard, None, Unlimited())).close()
            soon = Line("a second subscription after 1 s", "failed", "accepted; this library expects a refusal")
        except Exception as error:
            expected = classify(error).verdict is Verdict.TOO_SOON
            soon = Line.of("a second subscription after 1 s", expected, f"refused: {error}")
        await asyncio.sleep(KINESIS_LIMITS.after_success)
        try:
            second = await subscriber.subscribe(ref, shard, None, Unlimited())
        except Exception as error:
            return [soon, Line("a second subscription after 6 s", "failed", f"refused: {error}")]
        how = "went on for 10 s"
        try:
            async with asyncio.timeout(10):
                async for _ in first:
                    pass
                how = "ended"
        except TimeoutError:
            pass
        except Exception as error:
            how = f"ended with {error}"
        first.close()
        second.close()
    return [soon, Line("a second subscription after 6 s", "passed", f"accepted; the first one {how}")]


def _kill_run() -> None:
    for process in psutil.Process().children(recursive=True):
        if any("run_process" in word for word in process.cmdline()):
            process.kill()


@dataclass(frozen=True)
class Means:
    """What a trial disturbs its query with, and how long it waits.

    Attributes:
        calm_after: Seconds after a disturbance in which latencies do not count.
        settles: Seconds after a kill before the next one.
    """

    manifest: Callable[[Path], Manifest] = _manifest
    submit: Callable[[Sequence[object], Path], Child] = submitted
    feed: Callable[..., Feeder] = Feeder
    split: Callable[[str], str] = split
    kill_run: Callable[[], None] = _kill_run
    calm_after: float = 15.0
    settles: float = 5.0


class Reading:
    """A query that reads while a shard splits, its run is killed, and its driver is killed.

    Args:
        manifest: Path of the manifest.
        directory: Directory for output.
        seconds: How long it reads before anything happens.
        say: Prints a line.
    """

    def __init__(self, manifest: Path, directory: Path, seconds: float, say: Say, means: Means = Means()) -> None:
        self._name, self._ref = next(iter(means.manifest(manifest).streams.items()))
        self._directory, self._seconds, self._say, self._means = directory, seconds, say, means
        self._trial = uuid.uuid4().hex
        self._enough = threading.Event()
        self._total = 0
        self._read: dict[Path, tuple[int, list[Row]]] = {}
        self._disturbed: list[tuple[float, float]] = []
        since = f"AT_TIMESTAMP:{round(time.time() * 1000) - 60_000}"
        program = [Path(__file__).with_name("trial_reader.py"), manifest, self._name, since, self._trial, directory]
        self._job = means.submit(program, directory / "reader.log")

    def lines(self) -> list[Line]:
        """Read, and return what was found.

        Raises:
            DemoError: The query ends, or no rows come.
        """
        with self._job, self._means.feed(self._records(), AwsSettings(), RATE) as feeder:
            self._say("a query reads the stream")
            started = time.time()
            self._job.start()
            self._until(lambda: bool(self._rows()), feeder)
            self._disturbed.append((started, time.time()))
            self._wait(self._seconds + self._means.calm_after, feeder)
            lines = [self._split(feeder), self._kill("the process that reads", self._means.kill_run, feeder)]
            lines.append(self._kill("the driver, with all its processes,", self._start_again, feeder))
            self._enough.set()
            self._until(lambda: feeder.done and len({row.number for row in self._rows()}) >= self._total, feeder)
            self._job.wait(60, end=True)
        return [*lines, *self._counted()]

    def _records(self) -> Iterator[tuple[str, bytes, str]]:
        while not self._enough.is_set():
            record = {"trial": self._trial, "record": [self._total, time.time()]}
            yield self._ref.stream_arn, json.dumps(record).encode(), f"key {self._total % 100}"
            self._total += 1

    def _rows(self) -> list[Row]:
        """All rows, in the order of micro-batches."""
        files = sorted((self._directory / "rows").glob("*.json"), key=lambda path: int(path.stem))
        for path in files:
            # A repeated micro-batch replaces its file.
            changed = path.stat().st_mtime_ns
            if self._read.get(path, (0, []))[0] != changed:
                self._read[path] = changed, [Row(*row) for row in json.loads(path.read_text())]
        return [row for path in files for row in self._read[path][1]]

    def _split(self, feeder: Feeder) -> Line:
        before, at = {row.shard for row in self._rows()}, time.time()
        self._say(self._means.split(self._ref.stream_name))
        after = self._first(lambda row: row.shard not in before, at, feeder)
        return Line("a split while it reads", "passed", f"first row of a child after {after:.1f} s")

    def _kill(self, what: str, kill: Callable[[], None], feeder: Feeder) -> Line:
        self._say(f"SIGKILL to {what}")
        at = time.time()
        kill()
        after = self._first(lambda row: row.put > at, at, feeder)
        self._wait(self._means.settles, feeder)
        return Line(f"{what} killed", "passed", f"first row of a record put afterwards after {after:.1f} s")

    def _start_again(self) -> None:
        self._job.kill()
        self._job.start()

    def _first(self, which: Callable[[Row], bool], at: float, feeder: Feeder) -> float:
        """Wait for such a row; returns the seconds from a time to the first one, and remembers them as disturbed."""
        self._until(lambda: any(map(which, self._rows())), feeder)
        came = min(row.came for row in self._rows() if which(row))
        self._disturbed.append((at, came))
        return came - at

    def _wait(self, seconds: float, feeder: Feeder) -> None:
        end = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= end, feeder)

    def _until(self, reached: Callable[[], bool], feeder: Feeder) -> None:
        rows, moved = 0, time.monotonic()
        while not reached():
            if self._job.exit_code is not None:
                raise DemoError(f"the query ended by itself:\n{self._job.tail(15)}")
            if feeder.error is not None:
                raise DemoError(f"putting records failed: {feeder.error}") from feeder.error
            if (now := len(self._rows())) != rows:
                rows, moved = now, time.monotonic()
            if time.monotonic() - moved > PATIENCE:
                raise DemoError(f"no row came for {PATIENCE:.0f} s:\n{self._job.tail(15)}")
            time.sleep(0.5)

    def _counted(self) -> list[Line]:
        rows = self._rows()
        times = Counter(row.number for row in rows)
        lost, twice = self._total - len(times), times.total() - len(times)
        spans = [(at, came + self._means.calm_after) for at, came in self._disturbed]
        calm = [row for row in rows if not any(at <= row.put < end for at, end in spans)]
        late = sorted((row.came - row.put) * 1000 for row in calm)
        measured = (
            f"p50 {late[len(late) // 2]:,.0f} ms, p99 {late[len(late) * 99 // 100]:,.0f} ms" if late else "too few"
        )
        return [
            Line.of("each record once", not lost and not twice, f"{self._total:,} put, {lost} lost, {twice} twice"),
            Line("from put to row", "passed", f"{measured}, {len(late):,} records while nothing was disturbed"),
        ]


def report(lines: list[Line]) -> str:
    """The report in Markdown, without ids of accounts."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    where = f"**not AWS, but {endpoint}**" if endpoint else f"AWS, {boto3.session.Session().region_name}"
    versions = ", ".join(f"{name} {version(name)}" for name in ("kinesis-efo", "pyspark", "aiobotocore"))
    head = [f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {where}; {versions}, Python {sys.version.split()[0]}", ""]
    table = ["| | what | found |", "|---|---|---|"]
    rows = [f"| {line.status} | {line.what} | {' '.join(line.found.split())} |" for line in lines]
    return _ACCOUNT.sub("(account)", "\n".join([*head, *table, *rows])) + "\n"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
