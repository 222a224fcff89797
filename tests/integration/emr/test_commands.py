"""`kinesis-efo emr` from the command line, against EMR as an HTTP server and local AWS."""

import gzip
import json
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kinesis_efo.errors import UsageError
from kinesis_efo.leases.row import Lease
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli import main
from kinesis_efo_tools.cli.commands.emr import Submit
from kinesis_efo_tools.cli.emr.submit import submit
from tests.integration.emr.conftest import BUCKET, MANIFEST, ROLE, Place
from tests.support.emr import APPLICATION, CLUSTER, VIRTUAL_CLUSTER, FakeRun
from tests.support.messages import raises
from tests.support.pages import blocks
from tests.support.world import renewing, wait_until

SERVERLESS, EKS, STEP = f"serverless:{APPLICATION}", f"eks:{VIRTUAL_CLUSTER}", f"cluster:{CLUSTER}"
FAST = ["--", "--output", "s3://lake/raw", "--option", "leaseTimeout=1s"]


class Cli:
    """Runs the command line; keeps what it said."""

    target = SERVERLESS
    more: tuple[str, ...] = ("--execution-role", ROLE)

    def __init__(self, place: Place, capsys: pytest.CaptureFixture[str], group: str = "emr") -> None:
        self.place, self._capsys, self._group = place, capsys, group
        self.archive, self.err = place.archive, ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main([self._group, *arguments])
        out, self.err = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, out + self.err
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        split = arguments.index("--") if "--" in arguments else len(arguments)
        return json.loads(self(*arguments[:split], "--json", *arguments[split:], code=code))

    def submit(self, target: str = "", *arguments: str, code: int = 0) -> Any:
        command = [
            "submit", "--target", target or self.target, "--manifest", f"ssm://{MANIFEST}", "--job", "archive",
            "--artifacts", f"s3://{BUCKET}/jobs", "--project", str(self.place.project), "--archive", str(self.archive),
            *self.more, *arguments,
        ]  # fmt: skip
        command += [] if "--" in arguments else FAST
        return self.json(*command) if code == 0 else self(*command, code=code)


@pytest.fixture
def cli(place: Place, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(place, capsys)


@contextmanager
def leased(place: Place, *, renews: bool = True) -> Iterator[None]:
    """Somebody holds a lease of the application."""
    world, lease = place.world, Lease("shardId-000000000000", 1, "host:1:ab")
    world.dynamodb.put_item(TableName=world.lease_table, Item=lease.to_item())
    with renewing(world, lease.key) if renews else nullcontext():
        yield


# -- submit


@pytest.mark.parametrize("target", [SERVERLESS, EKS, STEP])
def test_job_is_uploaded_submitted_and_followed(cli: Cli, target: str) -> None:
    place = cli.place
    place.emr.on_look = lambda run: setattr(run, "state", "RUNNING")
    answer = cli.submit(target)
    run = place.emr.only()
    assert (answer["submitted"], answer["run"]["id"], answer["run"]["state"]) == (True, run.id, "running")
    assert sorted(place.s3) == [
        f"jobs/environments/{answer['archive']}/environment.tar.gz",
        f"jobs/programs/{answer['program']}/archive.py",
    ]
    assert "uploaded s3://artifacts/jobs/environments/" in cli.err
    assert f"{run.id} RUNNING" in cli.err
    submitted = json.dumps(run.request)
    assert f"s3://artifacts/jobs/programs/{answer['program']}/archive.py" in submitted
    assert f'"--manifest", "ssm://{MANIFEST}", "--output", "s3://lake/raw"' in submitted
    assert f"spark.kinesisEfo.fingerprint={answer['fingerprint']}" in submitted
    assert ("spark.kinesisEfo.stopMarker=s3://artifacts/jobs/stops/kinesis-efo-test-lake/" in submitted) is (
        target != SERVERLESS
    )


def airflow(page_request: dict[str, Any], run_id: str, attempt: int) -> dict[str, Any]:
    """What Airflow's operator sends for the request of the page's DAG (EmrServerlessStartJobOperator of its provider 9.39)."""
    given: dict[str, Any] = {}
    stubs = ModuleType("operators"), ModuleType("sdk")
    stubs[0].EmrServerlessStartJobOperator = lambda **values: given.update(values)  # type: ignore[attr-defined]
    stubs[1].DAG = lambda *_, **__: nullcontext()  # type: ignore[attr-defined]
    (dag,) = (block for block in blocks("python") if block.page == "docs/how-to/orchestrators.md")
    names = ("airflow.providers.amazon.aws.operators.emr", "airflow.sdk")
    with pytest.MonkeyPatch.context() as patch:
        for name, stub in zip(names, stubs, strict=True):
            patch.setitem(sys.modules, name, stub)
        patch.setattr(Path, "read_text", lambda _: json.dumps({"request": page_request}))
        exec(dag.text, {"__file__": "dags/lake.py"})
    template = given["config"].pop("clientToken")
    assert template == "{{ macros.uuid.uuid5(macros.uuid.NAMESPACE_OID, run_id ~ ti.try_number) }}"
    overrides = given["configuration_overrides"]
    return {
        "applicationId": given["application_id"],
        "executionRoleArn": given["execution_role_arn"],
        "jobDriver": given["job_driver"],
        **given["config"],
        "clientToken": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run_id}{attempt}")),
        **({"configurationOverrides": overrides} if overrides else {}),
    }


def test_orchestrators_retry_starts_a_new_run(cli: Cli) -> None:
    shown = cli.submit(SERVERLESS, "--dry-run", "--upload")
    assert len(cli.place.s3) == 2
    emr = cli.place.emr.client("emr-serverless")
    runs = [emr.start_job_run(**airflow(shown["request"], "one", attempt))["jobRunId"] for attempt in (1, 1, 2)]
    assert (runs[0], len(set(runs))) == (runs[1], 2), "the same request again gets the same run"
    # While a run lives, the next request can be made; a start is refused.
    assert cli.submit(SERVERLESS, "--dry-run", "--upload")["replaces"] == [runs[2], runs[0]]
    cli.submit(SERVERLESS, "--dry-run", code=3)


def test_request_for_an_orchestrator_stops_no_later_run(cli: Cli) -> None:
    for target in (EKS, STEP):
        assert "stopMarker" in json.dumps(cli.submit(target, "--dry-run")["request"])
        shown = cli.submit(target, "--dry-run", "--upload")
        assert "stopMarker" not in json.dumps(shown)
    assert shown["parameters"] == shown["request"], "steps are written so already"
    with raises(UsageError, "--upload goes with --dry-run: without it, files are uploaded anyway; leave it out"):
        submit(Submit(aws=AwsSettings(), upload=True))


@pytest.fixture
def unpacked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line without an archive, where packing is not to begin."""

    def never(*_: object) -> None:
        raise AssertionError("packed")

    monkeypatch.setattr("kinesis_efo_tools.cli.emr.package.build", never)
    cli.place.deploy(target=SERVERLESS, roleArn=ROLE, program="jobs/archive.py")
    return cli


@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_refusal_comes_before_packing(unpacked: Cli, more: list[str]) -> None:
    unpacked.place.emr.site = {"state": "TERMINATED"}
    named = ["submit", "-e", "test", "-a", "lake", "--project", str(unpacked.place.project)]
    unpacked(*named, *more, code=3)
    assert "not submitted:\n  EMR Serverless application 00f1abcdefgh2025 is TERMINATED" in unpacked.err
    unpacked(*named, *more, "--conf", "nonsense.x=1", code=2)
    assert "--conf 'nonsense.x': the name of a setting must match spark" in unpacked.err
    unpacked.place.emr.site = {}
    unpacked.place.emr.refusal = "AccessDeniedException"
    if not more:
        unpacked(*named, code=1)
        assert "AccessDeniedException" in unpacked.err


def test_dry_run_names_what_it_could_not_check(cli: Cli) -> None:
    cli.place.emr.refusal = "AccessDeniedException"
    shown = cli.submit(SERVERLESS, "--dry-run")
    assert shown["request"]["executionRoleArn"] == ROLE
    told = shown["notChecked"]
    assert told[0].startswith(
        f"whether {SERVERLESS} is as the job needs it: cannot look at the EMR Serverless application"
    )
    assert told[1].startswith("whether the application runs there already: cannot list the job runs")
    assert told[2:] == [
        f"whether you may pass on the role {ROLE}, and whether it allows what the job does",
        "whether the image of the release has Python 3.11",
        "whether archive.py takes these arguments",
    ]
    assert all(f"not checked: {each}" in cli.err for each in told)


def test_job_without_a_target_is_not_undeclared(cli: Cli) -> None:
    for declared, said in (
        ({"program": "jobs/archive.py"}, "the job of lake is declared in test without a place to run"),
        ({}, "no job of lake is declared in test"),
    ):
        cli.place.deploy(**declared)
        cli("submit", "-e", "test", "-a", "lake", "--dry-run", code=2)
        assert f"--target is missing: {said}; give cluster:" in cli.err


@pytest.mark.parametrize(("days", "renewed"), [(0, False), (31, True)])
def test_files_of_an_unchanged_job_do_not_expire(
    cli: Cli, days: int, renewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.submit(SERVERLESS, "--no-follow")
    now = datetime.now(UTC)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return now.astimezone(tz) + timedelta(days=days)

    monkeypatch.setattr("kinesis_efo_tools.emr.artifacts.datetime", Later)
    assert cli.submit(SERVERLESS, "--no-follow", "--if-changed")["submitted"] is False
    assert cli.err.count("uploaded s3://artifacts/jobs/") == 2 * renewed
    assert cli.err.count("is there already: s3://artifacts/jobs/") == 2 * (not renewed)


@pytest.mark.parametrize("checksum", [{}, {"ChecksumAlgorithm": "SHA256"}])
def test_foreign_object_in_place_of_the_program_is_replaced(cli: Cli, checksum: dict[str, str]) -> None:
    cli.submit(SERVERLESS, "--no-follow")
    s3 = cli.place.clients["s3"]
    (key,) = [each for each in cli.place.s3 if each.endswith("archive.py")]
    s3.put_object(Bucket="artifacts", Key=key, Body=b"print('evil')\n", **checksum)
    cli.place.emr.only().state = "FAILED"
    cli.submit(SERVERLESS, "--no-follow")
    assert f"uploaded s3://artifacts/{key}" in cli.err
    assert "is there already: s3://artifacts/jobs/environments/" in cli.err
    assert s3.get_object(Bucket="artifacts", Key=key)["Body"].read() == b"print('a job')\n"


@pytest.mark.parametrize("target", [SERVERLESS, EKS])
def test_only_a_changed_job_replaces_the_run(cli: Cli, target: str) -> None:
    emr = cli.place.emr
    first = cli.submit(target, "--if-changed", "--no-follow")
    same = cli.submit(target, "--if-changed")
    assert (same["submitted"], same["run"]["id"], len(emr.runs)) == (False, first["run"]["id"], 1)
    (cli.place.project / "jobs" / "archive.py").write_text("print('another job')\n")

    def heed(run: FakeRun) -> None:
        if any("stops/" in key for key in cli.place.s3):
            run.state = "COMPLETED"

    emr.on_look = heed
    other = cli.submit(target, "--if-changed", "--no-follow")
    assert (other["submitted"], other["replaced"]) == (True, [first["run"]["id"]])
    assert other["fingerprint"] != first["fingerprint"]


def test_only_a_live_run_elsewhere_blocks_the_job(cli: Cli) -> None:
    with leased(cli.place):
        cli.submit(SERVERLESS, code=3)
        assert "application 'lake' is read by host:1:ab, which renews its leases in lease table" in cli.err
    assert cli.place.emr.runs == {}
    with leased(cli.place, renews=False):
        assert cli.submit(SERVERLESS, "--no-follow")["submitted"]


def test_all_obstacles_are_named_before_uploading(cli: Cli) -> None:
    world = cli.place.world
    world.kinesis.deregister_stream_consumer(ConsumerARN=world.consumers["orders"])
    world.dynamodb.delete_table(TableName=world.lease_table)
    cli.place.emr.site = {"releaseLabel": "emr-7.13.0", "architecture": "X86_64", "state": "TERMINATED"}
    stream = world.consumers["orders"].partition("/consumer")[0]
    wait_until(lambda: not world.kinesis.list_stream_consumers(StreamARN=stream)["Consumers"])
    cli.submit(SERVERLESS, code=3)
    for reason in (
        f"EMR Serverless application {APPLICATION} is TERMINATED",
        "is of release emr-7.13.0, but kinesis-efo needs Spark 4",
        "the environment archive is for arm64, but serverless:00f1abcdefgh2025 runs on x86_64",
        f"consumer {world.consumers['orders']} of stream 'orders' does not exist (any more)",
        f"lease table {world.lease_table} in us-east-1 does not exist",
    ):
        assert reason in cli.err
    assert (cli.place.emr.runs, cli.place.s3) == ({}, [])


@pytest.mark.parametrize(
    ("target", "folder"),
    [
        (SERVERLESS, f"applications/{APPLICATION}/jobs/{{id}}/attempts/2/SPARK_DRIVER"),
        (EKS, f"{VIRTUAL_CLUSTER}/jobs/{{id}}/containers/spark-1/spark-1-driver"),
        (STEP, f"{CLUSTER}/containers/application_1700000000000_0007/container_1700000000000_0007_02_000001"),
    ],
)
def test_log_of_a_run_ends_with_the_reason(cli: Cli, target: str, folder: str) -> None:
    if target == STEP:
        cli.place.emr.site["LogUri"] = f"s3n://{BUCKET}/logs/"
    logs = ("--logs", f"s3://{BUCKET}/logs", "--release-label", "emr-spark-8.0.0")
    run = cli.submit(target, "--no-follow", *logs)["run"]

    def put(key: str, *lines: str) -> None:
        body = gzip.compress("\n".join(lines).encode())
        cli.place.clients["s3"].put_object(Bucket=BUCKET, Key=f"logs/{key}", Body=body)

    cli("logs", *_named(target), code=1)
    assert "has no log of its driver" in cli.err
    where = folder.format(id=run["id"])
    put(f"{CLUSTER}/steps/{run['id']}/stderr.gz", "INFO Client: Submitted application application_1700000000000_0007")
    put(f"{where}/stdout.gz", "hello")
    reason = "kinesis_efo.errors.DataLossError: gone"
    put(f"{where}/stderr.gz", "Traceback (most recent call last):", reason, "ERROR over: stopped")
    for this, former in (("attempts/2", "attempts/1"), ("_02_", "_01_"), ("0007", "0006")):
        if (earlier := where.replace(this, former)) != where:
            put(f"{earlier}/stderr.gz", "kinesis_efo.errors.LeaseLostError: of another attempt, or another job")
    answer = cli.json("logs", *_named(target))
    assert answer["reason"] == reason
    assert answer["lines"][-1] == "ERROR over: stopped"
    assert cli("logs", *_named(target), "--run", run["id"], "--lines", "2") == f"{reason}\nERROR over: stopped\n"
    assert cli.err.splitlines()[-1] == f"the driver: {reason}"


def test_a_deployed_application_is_submitted_by_its_name_alone(cli: Cli) -> None:
    cli.place.deploy(
        target=SERVERLESS,
        roleArn=ROLE,
        logs=f"s3://{BUCKET}/logs/lake",
        program="jobs/archive.py",
        arguments=["--output", "s3://lake/raw"],
        spark={"spark.executor.instances": "7"},
    )
    named = ["--environment", "test", "--application", "lake"]
    build = ["--project", str(cli.place.project), "--archive", str(cli.place.archive)]
    answer = cli.json("submit", *named, *build, "--no-follow", "--conf", "spark.executor.cores=2")
    request = cli.place.emr.only().request
    driver = request["jobDriver"]["sparkSubmit"]
    assert driver["entryPointArguments"] == ["--manifest", f"ssm://{MANIFEST}", "--output", "s3://lake/raw"]
    assert "spark.executor.instances=7" in driver["sparkSubmitParameters"]
    assert "spark.executor.cores=2" in driver["sparkSubmitParameters"]
    assert request["executionRoleArn"] == ROLE
    assert answer["run"]["logs"][0].startswith(f"s3://{BUCKET}/logs/lake/applications/")
    assert cli.json("status", *named)["runs"][0]["fingerprint"] == answer["fingerprint"]
    cli.place.emr.only().state = "CANCELLED"
    assert cli.json("status", *named, code=1)["live"] is False


WRONG = [
    (["submit"], 2, "give --environment and --application, or --manifest with --target"),
    (["submit", "-e", "test"], 2, "--environment and --application go together"),
    (["status", "-m", f"ssm://{MANIFEST}"], 2, "--target is missing; give cluster:j-<id>"),
    (["status", "-m", "ssm:///gone", "-t", SERVERLESS], 1, "manifest ssm:///gone cannot be loaded: ParameterNotFound"),
    (["submit", "-m", f"ssm://{MANIFEST}", "-t", SERVERLESS], 2, "--job is missing: the program to run"),
    (["submit", "-m", f"ssm://{MANIFEST}", "-t", SERVERLESS, "--conf", "a"], 2, "--conf must be NAME=VALUE"),
    (["package", "--python", "3.9"], 2, "--python must be one that EMR has with Spark 4"),
    (["submit", "--grace", "-1"], 2, "must be a duration such as 10s; got '-1'"),
]


def test_wrong_options_are_named(cli: Cli) -> None:
    for arguments, code, said in WRONG:
        project = ["--project", str(cli.place.project)] if arguments[0] != "status" else []
        cli(*arguments, *project, code=code)
        assert "Traceback" not in cli.err
        assert re.search(said, cli.err), cli.err


def test_manifest_of_another_application_is_refused(cli: Cli) -> None:
    cli.place.deploy(target=SERVERLESS, roleArn=ROLE)
    other = json.loads(cli.place.world.manifest.read_text()) | {"application": "orders"}
    cli.place.clients["ssm"].put_parameter(Name="/other", Type="String", Value=json.dumps(other), Overwrite=True)
    cli("status", "--environment", "test", "--application", "lake", "--manifest", "ssm:///other", code=2)
    assert "name test/lake, but the manifest ssm:///other is that of test/orders; omit --manifest" in cli.err


def test_missing_options_are_named(cli: Cli) -> None:
    for option, value, code, said in (
        ("--execution-role", "", 2, "--execution-role is missing: a job on serverless runs with a role of its own"),
        ("--artifacts", "", 2, "--artifacts is missing: give s3://bucket"),
        ("--artifacts", "s3://gone", 1, "cannot write s3://gone/environments/.*NoSuchBucket"),
    ):
        cli.submit(SERVERLESS, option, value, "--no-follow", code=code)
        assert re.search(said, cli.err), cli.err
    assert cli.place.emr.runs == {}


# -- stop and status


def _named(target: str) -> list[str]:
    return ["--target", target, "--manifest", f"ssm://{MANIFEST}"]


@pytest.mark.parametrize(
    "where", ["s3://{bucket}/tables/orders", "s3://{bucket}/stops/{name}/../../x", "s3://victim/key"]
)
def test_marker_of_a_foreign_run_is_not_written(cli: Cli, where: str) -> None:
    cli.place.deploy(target=STEP)
    cli.submit(STEP, "--no-follow")
    before, run = cli.place.s3, cli.place.emr.only()
    foreign = where.format(bucket=BUCKET, name="kinesis-efo-test-lake")
    run.request["HadoopJarStep"]["Args"] += ["--conf", f"spark.kinesisEfo.stopMarker={foreign}"]
    looks: list[bool] = []

    def look(run: FakeRun) -> None:
        looks.append(bool(run.cancelled))
        run.state = "CANCELLED" if run.cancelled else "RUNNING"

    cli.place.emr.on_look = look
    (stopped,) = cli.json("stop", "-e", "test", "-a", "lake", "--grace", "1s")["stopped"]
    assert (stopped["graceful"], cli.place.s3) == (False, before)
    assert looks == [False, False, True], "it is found, looked up, and ended at once"
    assert (
        f"not written: stop marker {foreign}, which is not below s3://{BUCKET}/stops/kinesis-efo-test-lake/" in cli.err
    )


def test_stopping_at_once_is_emrs_business(cli: Cli) -> None:
    cli.submit(SERVERLESS, "--no-follow")
    cli.place.emr.only().state = "RUNNING"
    cli.place.emr.on_look = lambda run: setattr(run, "state", "CANCELLED" if run.cancelled else run.state)
    assert [each["graceful"] for each in cli.json("stop", *_named(SERVERLESS), "--grace", "0")["stopped"]] == [False]
    assert cli.place.emr.only().cancelled == [{"applicationId": APPLICATION, "shutdownGracePeriodInSeconds": "0"}]
    said = cli("stop", *_named(SERVERLESS))
    assert f"nothing runs on {SERVERLESS} for lake" in cli.err
    assert "ended" in said


def test_reader_after_the_stop_is_named(cli: Cli) -> None:
    cli.place.deploy(target=SERVERLESS, arguments=["--option", "leaseTimeout=1s"])
    with leased(cli.place):
        assert cli.json("stop", "-e", "test", "-a", "lake", code=1)["leaseOwners"] == ["host:1:ab"]
        assert "host:1:ab still renews leases of lake" in cli.err
        # Its leases are in the manifest's region.
        elsewhere = ["--manifest", str(cli.place.world.manifest), "--target", SERVERLESS, "--region", "eu-west-1"]
        assert cli.json("stop", *elsewhere, code=1)["leaseOwners"] == ["host:1:ab"]


def test_interrupt_while_following_leaves_the_run(place: Place) -> None:
    place.emr.on_look = lambda run: setattr(run, "state", "PENDING")
    command = [
        sys.executable, "-c", "from kinesis_efo_tools.cli import main; main()", "emr", "submit", "--target", EKS,
        "--manifest", f"ssm://{MANIFEST}", "--artifacts", f"s3://{BUCKET}", "--job", "archive", "--project",
        str(place.project), "--archive", str(place.archive), "--execution-role", ROLE,
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: place.emr.calls.count("DescribeJobRun") > 1 or process.poll() is not None, 60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert f"the submitted job continues. See: kinesis-efo emr status --target {EKS}" in err
    assert "Traceback" not in err
    assert place.emr.only().cancelled == []
