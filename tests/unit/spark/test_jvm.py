"""What a process learns from the JVM above it, with the command lines and threads of real ones."""

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


PROPERTIES = """\
#Java properties
spark.master=k8s\\://https\\://api
 spark.driver.host = app-driver-svc.jobs.svc \nspark.driver.hostile=x
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "hosts"),
    [
        ((SUBMIT, "--conf", "spark.driver.host=10.0.0.7", "app.py"), {}, ("10.0.0.7",)),
        (("-Dspark.driver.host=fd00::7", "org.apache.spark.deploy.yarn.ApplicationMaster"), {}, ("fd00::7",)),
        *(((SUBMIT, "--conf", f"spark.driver.host={host}"), {}, ()) for host in ("", "10.0.0.7:4040", "${env:HOST}")),
        # Kubernetes' driver has a file with the name of the driver's service.
        ((SUBMIT, "--properties-file", "spark.properties", "app.py"), {}, ("app-driver-svc.jobs.svc",)),
        ((SUBMIT, "app.py"), {"SPARK_HOME": "."}, ("fd00::8",)),
        (
            (SUBMIT, "app.py"),
            {"SPARK_LOCAL_IP": "10.0.0.8", "SPARK_LOCAL_HOSTNAME": "driver", "SPARK_CONF_DIR": "."},
            ("driver",),
        ),
    ],
)
def test_driver_host_comes_from_command_files_or_environment(
    machine: Machine, tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], hosts: tuple[str, ...]
) -> None:
    (tmp_path / "spark.properties").write_text(PROPERTIES)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text("spark.driver.host   fd00\\:\\:8\n")
    given = {name: str(tmp_path) if value == "." else value for name, value in environment.items()}
    assert machine.jvm(*arguments, cwd=tmp_path, **given).hosts == hosts


def test_the_jvm_may_be_further_above(machine: Machine) -> None:
    machine.process(10, 1, JAVA, SUBMIT, "app.py", threads=LOCAL)
    machine.process(11, 10, "bash", "-c", "exec python3 # java org.apache.spark.deploy.SparkSubmit")
    machine.process(12, 11, "python3", "-m", "x")
    assert spark_jvm(12, {}, machine.proc).local


def test_without_a_jvm_nothing_is_known(machine: Machine, tmp_path: Path) -> None:
    machine.process(10, 1, "python3", "app.py")
    assert spark_jvm(10, {}, machine.proc) == SparkJvm()
    assert spark_jvm(10, {}, tmp_path / "none") == SparkJvm()
