"""`kinesis-efo glue`: the commands of emr, against Glue in local AWS, which is moto's."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import botocore.session
import pytest
from botocore.stub import Stubber
from moto.moto_api import state_manager

from jobs import archive
from kinesis_efo.errors import SubmissionRefusedError, UsageError
from kinesis_efo_tools.emr.glue import GlueJobs, _pairs
from kinesis_efo_tools.emr.packing import PythonPlatform, find_uv, installed, package, read_archive
from kinesis_efo_tools.emr.platform import STATES
from kinesis_efo_tools.emr.target import JobRunState, Target
from kinesis_efo_tools.emr.wheels import pack_wheels
from tests.integration.emr.conftest import MANIFEST, ROLE, Place
from tests.integration.emr.test_commands import Cli, cli
from tests.integration.emr.test_packing import locked
from tests.integration.emr.test_platforms import JOB
from tests.support.messages import raises

__all__ = ["cli", "locked"]

JOB_NAME = "lake"
KEYS = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}


class Glue(Cli):
    """Runs `kinesis-efo glue submit` with a packed project."""

    target = f"glue:{JOB_NAME}"
    more = ("--no-follow",)
    client: Any


@pytest.fixture
def glue(place: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Glue]:
    client = place.world.aws.client("glue")
    command = {"Name": "gluestreaming", "ScriptLocation": "s3://artifacts/x.py", "PythonVersion": "3"}
    client.create_job(
        Name=JOB_NAME, Role=ROLE, Command=command, GlueVersion="6.0", ExecutionProperty={"MaxConcurrentRuns": 1}
    )
    glue = Glue(place, capsys, group="glue")
    glue.client = client
    glue.archive = packed(tmp_path)
    # Otherwise, moto's runs have succeeded at once.
    state_manager.set_transition("glue::job_run", {"progression": "manual", "times": 100})
    yield glue
    state_manager.unset_transition("glue::job_run")
    client.delete_job(JobName=JOB_NAME)


def packed(directory: Path, python: str = "3.13") -> Path:
    (directory / "none").mkdir(exist_ok=True)
    file = directory / f"environment-{python}.gluewheels.zip"
    pack_wheels(directory / "none", file, (), {"python": python, "architecture": "x86_64", "packages": {}})
    return file


def test_job_is_started_once_on_glue(glue: Glue) -> None:
    shown = glue.submit(f"glue:{JOB_NAME}", "--dry-run")["request"]
    assert (glue.place.s3, glue.client.get_job_runs(JobName=JOB_NAME)["JobRuns"]) == ([], [])
    first = glue.submit()
    (run,) = glue.client.get_job_runs(JobName=JOB_NAME)["JobRuns"]
    assert (run["Id"], run["Arguments"]) == (first["run"]["id"], shown["Arguments"])
    digest = first["archive"]
    assert run["Arguments"]["--additional-python-modules"] == (
        f"s3://artifacts/jobs/environments/{digest}/environment.gluewheels.zip"
    )
    assert run["Arguments"]["--scriptLocation"].endswith("/archive.py")
    assert run["Arguments"]["--output"] == "s3://lake/raw"
    assert f"spark.kinesisEfo.fingerprint={first['fingerprint']}" in run["Arguments"]["--conf"]
    assert len(glue.place.s3) == 2
    glue.submit(f"glue:{JOB_NAME}", code=3)
    assert f"runs already on glue:{JOB_NAME}" in glue.err
    again = glue.submit(f"glue:{JOB_NAME}", "--if-changed")
    assert (again["submitted"], again["run"]["id"]) == (False, run["Id"])
    assert glue.json("status", "--target", f"glue:{JOB_NAME}", "--manifest", f"ssm://{MANIFEST}")["live"]


@pytest.mark.parametrize(
    ("changes", "python", "said"),
    [
        ({"GlueVersion": "5.1"}, "3.13", "is of release Glue 5.1, but kinesis-efo needs Spark 4: take Glue 6.0 or newer"),
        ({"Command": {"Name": "pythonshell", "ScriptLocation": "s3://a/x.py"}}, "3.13", "is of kind pythonshell: give one of kind gluestreaming or glueetl"),
        ({"ExecutionProperty": {"MaxConcurrentRuns": 2}}, "3.13", "allows 2 runs at a time, so two submissions could start two: set MaxConcurrentRuns to 1"),
        ({}, "3.11", "is for Python 3.11, but glue:lake has 3.13: package with --target glue"),
    ],
)  # fmt: skip
def test_job_that_cannot_run_is_refused(
    glue: Glue, tmp_path: Path, changes: dict[str, Any], python: str, said: str
) -> None:
    glue.archive = packed(tmp_path, python)
    job = glue.client.get_job(JobName=JOB_NAME)["Job"]
    kept = {name: job[name] for name in ("Role", "Command", "GlueVersion", "ExecutionProperty")}
    glue.client.delete_job(JobName=JOB_NAME)
    glue.client.create_job(Name=JOB_NAME, **{**kept, **changes})
    glue.submit(f"glue:{JOB_NAME}", code=3)
    assert said in glue.err


def test_what_glue_refuses_is_a_refusal() -> None:
    client = botocore.session.Session().create_client("glue", "us-east-1", **KEYS)
    platform = GlueJobs(Target.parse("glue:my lake"), client)
    with Stubber(client) as stub:
        stub.add_client_error("start_job_run", "ConcurrentRunsExceededException", "one runs")
        with raises(
            SubmissionRefusedError,
            "not submitted:\n  Glue job my lake runs already; stop it, or use --replace",
        ):
            platform.submit(JOB)
        answer = {"Id": "jr_1", "JobName": "my lake", "JobRunState": "STOPPED", "StartedOn": datetime.now(UTC)}
        stub.add_response("get_job_run", {"JobRun": answer}, {"JobName": "my lake", "RunId": "jr_1"})
        stub.add_response("batch_stop_job_run", {}, {"JobName": "my lake", "JobRunIds": ["jr_1"]})
        stopped = platform.run("jr_1")
        platform.cancel(stopped, 0)
        assert (stopped.state, stopped.told) == (JobRunState.STOPPED, "STOPPED")


def test_every_state_of_glue_is_known() -> None:
    model = botocore.session.Session().get_service_model("glue")
    assert set(model.shape_for("JobRunState").enum) <= STATES.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--option", "a=1", "--option", "b=2"], "--option comes twice, and Glue passes each argument of a program once: give it once"),
        (["--a", "1", "x"], "'x' has no name, and Glue passes arguments of a program by name: give it as --name value"),
    ],
)  # fmt: skip
def test_arguments_that_glue_cannot_pass_are_refused(arguments: list[str], said: str) -> None:
    with raises(UsageError, said):
        _pairs(arguments)


def test_archive_job_ignores_glues_own_arguments() -> None:
    parser, given = archive.command_line(), ["--manifest", "m", "--output", "o", "--checkpoint", "c"]
    glues = ["--JOB_NAME", "lake", "--JOB_RUN_ID", "jr_1"]
    assert archive.parsed(parser, [*given, *glues]) == archive.parsed(parser, given)
    with pytest.raises(SystemExit):
        archive.parsed(parser, [*given, "--ouput", "x"])


def test_wheels_of_a_project_install_without_an_index(locked: Path, tmp_path: Path) -> None:
    platform = PythonPlatform("3.13", "x86_64")
    one, other = (package(locked, tmp_path / name, platform, wheels=True) for name in ("one", "other"))
    assert one.path.name == f"environment-py3.13-x86_64-{one.digest[:16]}.gluewheels.zip"
    assert one.path.read_bytes() == other.path.read_bytes()
    assert read_archive(one.path) == one
    with ZipFile(one.path) as wheels:
        wheels.extractall(tmp_path)
    install = (
        "pip install --quiet --no-index --no-deps --find-links wheels -r wheels/requirements.txt --target installed"
    )
    host = "--python-version 3.13 --python-platform x86_64-manylinux_2_34"
    subprocess.run([find_uv(), *install.split(), *host.split()], check=True, cwd=tmp_path)
    assert installed(tmp_path / "installed") == dict(one.packages)
    assert next((tmp_path / "installed/msgspec").glob("*.so")).name == "_core.cpython-313-x86_64-linux-gnu.so"
    assert (tmp_path / "installed/kinesis_efo").exists()
    assert not (tmp_path / "installed/kinesis_efo_tools").exists()
