"""What a process learns from the JVM above it, with the command lines and threads of real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinesis_efo.planner.host import SparkJvm, spark_jvm

JAVA = "/usr/lib/jvm/java-17/bin/java"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
LOCAL = ("main", "driver-heartbea", "executor-heartb", "dispatcher-even")
CLUSTER = ("main", "driver-heartbea", "dispatcher-Coar", "task-result-get")


class Machine:
    """A /proc with the processes that a test puts into it."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc

    def process(
        self, pid: int, parent: int, *arguments: str, threads: tuple[str, ...] = (), cwd: Path | None = None
    ) -> None:
        directory = self.proc / str(pid)
        directory.mkdir(parents=True)
        (directory / "stat").write_text(f"{pid} (a (name) 7) S {parent}{' 1' * 20}")
        (directory / "cmdline").write_text("".join(f"{argument}\0" for argument in arguments))
        for number, name in enumerate(threads):
            (directory / "task" / str(pid + number)).mkdir(parents=True)
            (directory / "task" / str(pid + number) / "comm").write_text(f"{name}\n")
        (directory / "cwd").symlink_to(cwd or self.proc)

    def jvm(
        self, *arguments: str, threads: tuple[str, ...] = CLUSTER, cwd: Path | None = None, **environment: str
    ) -> SparkJvm:
        """What a process sees whose parent is a JVM."""
        self.process(1, 0, "/sbin/init")
        self.process(10, 1, JAVA, "-cp", "/opt/spark/jars/*", *arguments, threads=threads, cwd=cwd)
        self.process(100, 10, "python3", "-m", "pyspark.sql.streaming.python_streaming_source_runner")
        return spark_jvm(100, environment, self.proc)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc")


def test_a_driver_that_runs_tasks_is_local(machine: Machine) -> None:
    assert machine.jvm(SUBMIT, "--conf", "spark.ui.enabled=false", "pyspark-shell", threads=LOCAL) == SparkJvm(True, ())


def test_a_local_command_line_is_not_trusted(machine: Machine) -> None:
    """The program may have stopped that session, and started another in the same JVM."""
    assert machine.jvm(SUBMIT, "--conf", "spark.master=local[2]", "pyspark-shell") == SparkJvm(False, ())


def test_an_executor_is_not_local(machine: Machine) -> None:
    arguments = (
        "--driver-url",
        "spark://CoarseGrainedScheduler@driver:1",
        "--executor-id",
        "0",
        "--hostname",
        "10.0.0.9",
        "--cores",
        "2",
    )
    for number, backend in enumerate(("CoarseGrainedExecutorBackend", "YarnCoarseGrainedExecutorBackend")):
        package = "org.apache.spark.executor" if number == 0 else "org.apache.spark.scheduler.cluster.yarn"
        there = Machine(machine.proc / str(number))
        seen = there.jvm(f"{package}.{backend}", *arguments, threads=LOCAL)
        assert seen == SparkJvm(False, ("10.0.0.9",))


@pytest.mark.parametrize(
    ("arguments", "hosts"),
    [
        ((SUBMIT, "--conf", "spark.driver.host=10.0.0.7", "app.py"), ("10.0.0.7",)),
        (("-Dspark.driver.host=fd00::7", "org.apache.spark.deploy.yarn.ApplicationMaster"), ("fd00::7",)),
        *(((SUBMIT, "--conf", f"spark.driver.host={host}"), ()) for host in ("", "10.0.0.7:4040", "${env:HOST}")),
    ],
)
def test_the_address_in_the_command_line(machine: Machine, arguments: tuple[str, ...], hosts: tuple[str, ...]) -> None:
    assert machine.jvm(*arguments).hosts == hosts


def test_the_address_in_a_file_of_properties(machine: Machine, tmp_path: Path) -> None:
    """Kubernetes' driver has one, with the name of the driver's service."""
    (tmp_path / "spark.properties").write_text(
        "#Java properties\nspark.master=k8s\\://https\\://api\n spark.driver.host = app-driver-svc.jobs.svc \nspark.driver.hostile=x\n"
    )
    assert machine.jvm(SUBMIT, "--properties-file", "spark.properties", "app.py", cwd=tmp_path).hosts == (
        "app-driver-svc.jobs.svc",
    )


def test_the_address_in_sparks_defaults(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text("spark.driver.host   fd00\\:\\:7\n")
    assert machine.jvm(SUBMIT, "app.py", SPARK_HOME=str(tmp_path)).hosts == ("fd00::7",)


def test_the_address_in_the_environment_comes_last(machine: Machine, tmp_path: Path) -> None:
    environment = {"SPARK_LOCAL_IP": "10.0.0.8", "SPARK_LOCAL_HOSTNAME": "driver", "SPARK_CONF_DIR": str(tmp_path)}
    assert machine.jvm(SUBMIT, "app.py", **environment).hosts == ("driver",)


def test_the_jvm_may_be_further_above(machine: Machine) -> None:
    machine.process(10, 1, JAVA, SUBMIT, "app.py", threads=LOCAL)
    machine.process(11, 10, "bash", "-c", "exec python3 # java org.apache.spark.deploy.SparkSubmit")
    machine.process(12, 11, "python3", "-m", "x")
    assert spark_jvm(12, {}, machine.proc).local


def test_without_a_jvm_nothing_is_known(machine: Machine, tmp_path: Path) -> None:
    machine.process(10, 1, "python3", "app.py")
    assert spark_jvm(10, {}, machine.proc) == SparkJvm()
    assert spark_jvm(10, {}, tmp_path / "none") == SparkJvm()
