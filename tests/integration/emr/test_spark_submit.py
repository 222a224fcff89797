"""`spark-submit` of a job with the environment archive and nothing else: driver, planner process and workers run what was packed.

Spark's `local-cluster` has executors in processes and directories of their own, which unpack the archive as YARN's and Kubernetes' do.
"""

import contextlib
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pyspark
import pytest

from demo.output import committed
from kinesis_efo.driver import graceful
from kinesis_efo_local import LocalAws, Settings
from kinesis_efo_tools.emr import job
from kinesis_efo_tools.emr.packing import Archive, PythonPlatform, package
from kinesis_efo_tools.emr.target import TargetKind
from tests.support.archives import unpack
from tests.support.commands import outcome
from tests.support.world import make_world, wait_until

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.spark40, pytest.mark.long]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    platform = PythonPlatform(
        f"3.{sys.version_info.minor}", "arm64" if os.uname().machine in ("aarch64", "arm64") else "x86_64"
    )
    return package(ROOT, tmp_path_factory.mktemp("archive"), platform)


@pytest.fixture
def bare(archive: Archive, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A host with Spark, a Python without packages, and the archive unpacked beside the driver; and its environment."""
    container = tmp_path / "container"
    (container / "environment").mkdir(parents=True)
    unpack(archive.path, container / "environment")
    venv.create(tmp_path / "python", with_pip=False, symlinks=True)
    # Executors work in directories below this.
    spark_home = tmp_path / "spark"
    spark_home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (spark_home / each.name).symlink_to(each)
    environment = {
        "PATH": f"{tmp_path / 'python' / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": job.PYTHON,
        **{name: os.environ[name] for name in ("JAVA_HOME", "JAVA_TOOL_OPTIONS") if name in os.environ},
    }
    if "JAVA_HOME" not in environment:
        environment["PATH"] = f"{environment['PATH']}:{os.environ['PATH']}"
    return container, environment


def test_the_archive_is_small_and_brings_everything_but_spark(
    archive: Archive, bare: tuple[Path, dict[str, str]]
) -> None:
    unneeded = {"pyspark", "py4j", "boto3", "moto", "cdktf", "packaging", "pytest", "rich", "typer", "uv"}
    assert unneeded.isdisjoint(archive.packages)
    assert {"kinesis-efo", "aiobotocore", "pyarrow"} <= set(archive.packages)
    assert archive.path.stat().st_size < 100e6
    container, environment = bare
    # `pyspark` is Spark's to bring; what needs none of it is imported here, so that a missing package is seen.
    modules = "kinesis_efo.aws, kinesis_efo.fetcher.service, kinesis_efo.producer, pyarrow"
    show = f"import sys, importlib.util, {modules}; print(importlib.util.find_spec('pyspark'), {{m.__file__ for m in sys.modules.values() if 'site-packages' in (getattr(m, '__file__', None) or '')}})"
    ran = outcome([job.PYTHON, "-c", show], cwd=container, env=environment)
    assert ran.stdout.strip() == "None set()", ran.stdout + ran.stderr


@pytest.mark.timeout(300)
def test_job_runs_from_the_archive_until_its_marker(
    archive: Archive, bare: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    assert graceful.MARKER == job.MARKER_SETTING
    container, environment = bare
    daemon = "spark.python.daemon.module"
    module = job.spark_settings(TargetKind.CLUSTER, str(archive.path), [], {})[daemon]
    marker, output, log = tmp_path / "stops" / "now", tmp_path / "lake", tmp_path / "job.log"
    with LocalAws(settings=Settings(consumer_creating_seconds=0.0, idle_event_seconds=0.5)) as aws:
        world = make_world(aws, tmp_path, {"orders": 2})
        sent = [(f"k{number % 11}", f"payload {number}".encode()) for number in range(2000)]
        world.put(sent)
        command = [
            f"{environment['SPARK_HOME']}/bin/spark-submit",
            "--master", "local-cluster[1,2,1024]", "--archives", f"{archive.path}#environment",
            "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=WARN",
            "--conf", f"{job.MARKER_SETTING}=file:{marker}", "--conf", f"{daemon}={module}",
            *as_archived(),
            str(ROOT / "jobs" / "archive.py"),
            "--manifest", str(world.manifest), "--output", str(output), "--checkpoint", str(tmp_path / "checkpoint"),
            "--starting-position", "TRIM_HORIZON", "--trigger", "0 seconds", "--option", "leaseTimeout=2s",
        ]  # fmt: skip
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=container,
                env={**environment, **aws.environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        try:
            wait_until(lambda: process.poll() is not None or len(_archived(output)) >= len(sent), 200, "archived")
            assert process.poll() is None, log.read_text()
            pythons = _pythons(process.pid)
            marker.parent.mkdir()
            marker.touch()
            assert process.wait(90) == 0, log.read_text()
        finally:
            _kill(process)
        assert sorted(_archived(output)) == sorted(data for _, data in sent)
        wait_until(lambda: not any("leaseOwner" in row for row in world.leases().values()), 60, "leases released")
    # The driver and the process that Spark keeps for the reader beside it; the executor's workers where it unpacked its own.
    found = {path for line in pythons.values() for path in re.findall(r"[^:]*/environment/lib", line)}
    assert str(container / "environment" / "lib") in found
    assert any(path.startswith(f"{environment['SPARK_HOME']}/work/") for path in found), pythons
    assert len(found) == 2
    assert all("/environment/lib" in line for line in pythons.values())
    assert any(f"-m {module} " in command for command in pythons), pythons


def as_archived() -> Iterator[str]:
    """Settings with which JVMs have Spark's classes under the paths that the tests' archive of them has, and start the sooner for it."""
    spark = Path(pyspark.__file__).resolve().parent
    # In the order in which Spark itself has them.
    (first,) = spark.glob("jars/slf4j-api-*.jar")
    for jvm in ("driver", "executor"):
        yield from ("--conf", f"spark.{jvm}.extraClassPath={spark}/conf/:{first}:{spark}/jars/*")


def _archived(output: Path) -> list[bytes]:
    return [data for file in committed(output) for data in pq.ParquetFile(file).read()["data"].to_pylist()]


def _pythons(root: int) -> dict[str, str]:
    """PYTHONPATH of every Python that a process has started, by its command line."""
    found = {}
    for child in psutil.Process(root).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "python" in child.name():
                found[f"{child.pid} {' '.join(child.cmdline())}"] = child.environ().get("PYTHONPATH", "")
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        root = psutil.Process(process.pid)
        for each in [root, *root.children(recursive=True)]:
            each.kill()
        process.wait()
