"""`jobs/archive.py` under `spark-submit`, as users run it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil
import pyarrow.parquet as pq
import pytest

from demo.output import committed
from kinesis_efo_local import LocalAws, Settings
from tests.support.world import World, make_world, wait_until

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


class Job:
    """The job in a process group of its own."""

    def __init__(self, world: World, directory: Path, *arguments: str, metrics: str = "console") -> None:
        self.output = directory / "lake"
        self.checkpoint = directory / "checkpoint"
        self.log = directory / "job.log"
        command = [
            str(Path(sys.executable).parent / "spark-submit"),
            "--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=WARN",
            str(ROOT / "jobs" / "archive.py"),
            "--output", str(self.output), "--checkpoint", str(self.checkpoint),
            "--starting-position", "TRIM_HORIZON", "--option", "leaseTimeout=6s", *arguments,
        ]  # fmt: skip
        if "--manifest" not in arguments:
            command += ["--manifest", str(world.manifest)]
        environment = {**os.environ, **world.aws.environment, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        # Where nobody else sets OpenTelemetry up, the environment does.
        environment |= {"OTEL_METRICS_EXPORTER": metrics, "OTEL_METRIC_EXPORT_INTERVAL": "1000"}
        environment.pop("SPARK_HOME", None)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def archived(self) -> list[bytes]:
        """The payloads in the files that are committed."""
        return [data for file in committed(self.output) for data in pq.ParquetFile(file).read()["data"].to_pylist()]

    def wait_archived(self, count: int) -> None:
        wait_until(lambda: self.process.poll() is not None or len(self.archived()) >= count, 150, "archived")
        assert self.process.poll() is None, self.log.read_text()

    def wait(self) -> int:
        return self.process.wait(150)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            root = psutil.Process(self.process.pid)
            for process in [root, *root.children(recursive=True)]:
                process.kill()
            self.process.wait()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    settings = Settings(consumer_creating_seconds=0.0, idle_event_seconds=0.5, resubscribe_seconds=0.0)
    with LocalAws(settings=settings) as aws:
        yield make_world(aws, tmp_path, {"orders": 2, "clicks": 1})


def _logged(job: Job, log: str) -> int:
    """Micro-batches in one of Spark's logs."""
    return len([file for file in (job.checkpoint / log).glob("*") if file.name.isdigit()])


def _payloads(begin: int, end: int) -> list[tuple[str, bytes]]:
    return [(f"k{number % 11}", f"payload {number}".encode()) for number in range(begin, end)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "target",
    [
        pytest.param("jvm", marks=[pytest.mark.spark40, pytest.mark.long]),
        pytest.param("group", marks=pytest.mark.spark43),
    ],
)
def test_sigterm_ends_the_job_after_its_batch(world: World, tmp_path: Path, target: str) -> None:
    world.put(_payloads(0, 2000))
    world.put(_payloads(2000, 2500), "clicks")
    with Job(world, tmp_path, "--trigger", "0 seconds", "--streams", "*") as job:
        job.wait_archived(2500)
        # Spark tells its listeners some time after the files are there, and nothing any more once it stops.
        lag = r"query archive, micro-batch \d+: .* shards, at most [\d,]+ ms behind"
        wait_until(lambda: re.search(lag, job.log.read_text()), 60, "the line of a micro-batch")
        # Only the JVM is signalled by an orchestrator; Ctrl-C and YARN signal everything.
        world.put(_payloads(2500, 4000))
        if target == "jvm":
            os.kill(job.process.pid, signal.SIGTERM)
        else:
            os.killpg(job.process.pid, signal.SIGTERM)
        assert job.wait() == 0, job.log.read_text()
        text = job.log.read_text()
        assert '"name": "kinesis_efo.records"' in text
        assert not re.search("Failed to cancel job group|process that fetched|Traceback", text), text
    wait_until(
        lambda: not any("leaseOwner" in row for row in world.leases().values()),
        60,
        f"leases released: {world.leases()}; {job.log.read_text()[-6000:]}",
    )
    if target == "group":
        return
    # What the signal came too early for is read by the next run, and nothing is read twice; it goes through every
    # generation of shards that is there.
    world.put(_payloads(4000, 4500))
    parent = world.shards()[0]
    middle = int(parent["HashKeyRange"]["EndingHashKey"]) // 2
    world.kinesis.split_shard(
        StreamName=world.streams["orders"], ShardToSplit=parent["ShardId"], NewStartingHashKey=str(middle)
    )
    world.wait_active()
    world.put(_payloads(4500, 5000))
    # Spark 4.0 has one micro-batch for this trigger: where the job was stopped with one that was planned and not done, it is that
    # one, and what came later is the next run's.
    unfinished = _logged(job, "offsets") > _logged(job, "commits")
    for _ in range(2 if unfinished else 1):
        with Job(world, tmp_path, "--available-now") as second:
            assert second.wait() == 0, second.log.read_text()
    assert sorted(second.archived()) == sorted(data for _, data in _payloads(0, 5000))
    parts = {file.relative_to(second.output).parts[0] for file in committed(second.output)}
    assert parts == {"stream=orders", "stream=clicks"}
    assert all(
        re.search(r"/date=\d{4}-\d\d-\d\d/hour=\d\d/[^/]+\.parquet$", str(file)) for file in committed(second.output)
    )


@pytest.mark.long
@pytest.mark.spark40
@pytest.mark.timeout(200)
def test_a_failure_is_the_last_output(world: World, tmp_path: Path) -> None:
    with Job(world, tmp_path, "--option", "bufferBytes=lots", "--option", "readMode=push") as job:
        assert job.wait() == 2
    *before, first, second = job.log.read_text().splitlines()
    assert "Traceback (most recent call last):" not in before
    assert [line for line in before if line.startswith("  File ") and line.endswith("in archive")], (
        "where the program failed"
    )
    words = "kinesis-efo archive failed: OptionsError: "
    assert first.startswith(words)
    assert {first.removeprefix(words), second} == {
        "kinesis-efo option 'bufferBytes' must be a size such as 256m; got 'lots'",
        "kinesis-efo option 'readMode' must be efo or polling; got 'push'",
    }


@pytest.mark.spark43
@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_deleted_consumer_is_reported_once(world: World, tmp_path: Path) -> None:
    world.put(_payloads(0, 100))
    with Job(world, tmp_path, "--trigger", "1 second", metrics="none") as job:
        job.wait_archived(100)
        world.kinesis.deregister_stream_consumer(ConsumerARN=world.consumers["orders"])
        assert job.wait() == 2
    lines = job.log.read_text().splitlines()
    words = "kinesis-efo archive failed: ConsumerNotFoundError: "
    assert lines[-1].startswith(words)
    assert "\n".join(lines).count(lines[-1].removeprefix(words)) == 1
    assert len(lines) < 40


@pytest.mark.spark43
@pytest.mark.long
@pytest.mark.timeout(200)
def test_an_output_ahead_of_its_checkpoint_is_refused(world: World, tmp_path: Path) -> None:
    (tmp_path / "lake" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "lake" / "_spark_metadata" / "3").write_text("v1")
    with Job(world, tmp_path) as job:
        assert job.wait() == 2
    last = job.log.read_text().splitlines()[-1]
    assert last.startswith("kinesis-efo archive failed: ConfigurationError: the output ")
    assert "would leave out what is read in micro-batches 0 to 3" in last
    assert not world.leases(), "nothing was read"
