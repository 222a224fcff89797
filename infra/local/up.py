"""Declares an environment in local AWS, so that a job can be tried with it before it is deployed.

boto3 does it, without a network beyond local AWS; or Terraform, if asked, which may download the AWS provider. What the stack
declares is in `infra.stacks`: tests/integration/infra/test_up.py holds every type and attribute of it against what is declared here.
"""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.errors import UpError
from infra.settings import manifest, pods
from infra.settings.access import EmrServerless, OtherAccount
from infra.settings.load import load_environments
from infra.settings.model import AdoptedStream, Application, Environment, OwnStream, ServerlessApplication
from infra.settings.names import Names, application_name
from kinesis_efo_infra.document import StreamRef
from kinesis_efo_infra.pipeline.terraform import find_binary, missing_binary

logger = logging.getLogger(__name__)
Way = Literal["boto3", "terraform"]
_SERVERLESS = "serverless:"
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1", "local-aws", "host.docker.internal")


def up(
    directory: Path,
    name: str,
    endpoint: str,
    *,
    through: Way = "boto3",
    wait_seconds: float = 30.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Declare an environment in local AWS. Resources that exist already are kept.

    Args:
        directory: Directory of the environment files.
        name: The environment.
        endpoint: URL of local AWS, for example `http://127.0.0.1:4566`.
        through: `boto3`, or `terraform`: the stack that would be deployed, applied to local AWS.
        wait_seconds: How long to wait for the endpoint, and for each resource to become ACTIVE.
        clock: A monotonic clock, in seconds.
        sleep: Waits for a number of seconds.

    Raises:
        SettingsError: The environment file is wrong.
        UpError: The endpoint is not local, does not answer, or refuses something; or Terraform is wanted, and is missing or fails.
    """
    host = urlsplit(endpoint).hostname
    if host not in _LOCAL_HOSTS:
        raise UpError(f"--endpoint must be local AWS ({', '.join(_LOCAL_HOSTS)}), never AWS itself; got {endpoint!r}")
    (environment,) = load_environments(directory, [name])
    local = localized(environment)
    wait = _Waiter(wait_seconds, clock, sleep)
    declare = _Boto3(local, endpoint, wait)
    with _refusals(endpoint):
        declare.reach()
        if through == "terraform":
            declare.given_bucket()
            _apply(local, directory, endpoint)
        else:
            declare.everything()
        declare.check()
    logger.info("declared %s at %s through %s", local.environment, endpoint, through)
    for key, application in local.applications.items():
        if not isinstance(application.access, OtherAccount):
            logger.info("%s: .option(%r, %r)", key, "manifest", Names(local).manifest_location(key))
    # boto3 reads AWS_DEFAULT_REGION, every other SDK AWS_REGION.
    logger.info("export AWS_ENDPOINT_URL=%s AWS_REGION=%s AWS_DEFAULT_REGION=%s", endpoint, local.region, local.region)
    logger.info("export AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local")


def localized(environment: Environment) -> Environment:
    """The environment for local AWS, where adopted and imported things do not exist and so are declared.

    Raises:
        UpError: Two streams have one name: local AWS is one account, where both cannot exist.
    """
    streams: dict[str, OwnStream] = {}
    for key, stream in environment.streams.items():
        own = stream
        if isinstance(own, AdoptedStream):
            own = OwnStream(name=Names(environment).stream_name(key), mode="provisioned", shards=1)
        streams[key] = own.model_copy(update={"import_existing": False, "import_consumers": {}})
    changes = {"streams": streams, "applications": _applications(environment), **_jobs(environment)}
    local = pods.without_associations(environment.model_copy(update=changes))
    used: dict[str, str] = {}
    for key in streams:
        name = Names(local).stream_name(key)
        if name in used:
            raise UpError(
                f"streams.{used[name]} and streams.{key} are both called {name}, in different accounts; local AWS is "
                "one account: leave one of them out"
            )
        used[name] = key
    return local


def _applications(environment: Environment) -> Mapping[str, Application]:
    """The applications, without what is taken over, and on the application of EMR Serverless that is declared."""
    local = {}
    for key, application in environment.applications.items():
        access = application.access
        if isinstance(access, EmrServerless):
            access = access.model_copy(update={"application_id": None})
        local[key] = application.model_copy(update={"import_lease_table": False, "access": access})
    return local


def _jobs(environment: Environment) -> dict[str, Any]:
    """Where jobs run: on an application of EMR Serverless outside of any VPC. Nothing runs in local AWS, and no schedule starts it."""
    emr = environment.emr
    if emr is not None:
        elsewhere = any((job.target or "").startswith(_SERVERLESS) for job in environment.jobs)
        serverless = emr.serverless or (ServerlessApplication() if elsewhere else None)
        network: dict[str, list[str]] = {"subnets": [], "security_groups": []}
        emr = emr.model_copy(update={"serverless": serverless and serverless.model_copy(update=network)})
    jobs = []
    for job in environment.jobs:
        target = None if (job.target or "").startswith(_SERVERLESS) else job.target
        jobs.append(job.model_copy(update={"schedule": None, "time_zone": None, "target": target}))
    return {"emr": emr, "jobs": jobs}


@contextmanager
def _refusals(endpoint: str) -> Iterator[None]:
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise UpError(f"local AWS at {endpoint}: {error}") from error


class _Waiter:
    """Waits for conditions, each with a deadline of its own."""

    def __init__(self, seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._seconds, self._clock, self._sleep = seconds, clock, sleep

    def until(self, condition: Callable[[], bool], problem: str, remedy: str = "look into its log") -> None:
        """Return when the condition holds.

        Raises:
            UpError: It does not hold in time; the message has `problem` and `remedy`.
        """
        deadline = self._clock() + self._seconds
        while not condition():
            if self._clock() >= deadline:
                raise UpError(f"local AWS: {problem} within {self._seconds:g} s; {remedy}")
            self._sleep(0.1)


class _Boto3:
    """Declares an environment with API calls."""

    def __init__(self, environment: Environment, endpoint: str, wait: _Waiter) -> None:
        self._environment, self._endpoint, self._wait = environment, endpoint, wait
        session = boto3.session.Session(
            aws_access_key_id="local", aws_secret_access_key="local", region_name=environment.region
        )
        config = Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1})

        def client(service: str) -> Any:
            return session.client(service, endpoint_url=endpoint, config=config)

        self._kinesis, self._dynamodb, self._ssm = client("kinesis"), client("dynamodb"), client("ssm")
        self._s3, self._emr = client("s3"), client("emr-serverless")
        self._tags = Names(environment).tags

    def reach(self) -> None:
        """Return once Kinesis answers at the endpoint.

        Raises:
            UpError: It does not answer in time.
        """

        def answers() -> bool:
            try:
                self._kinesis.list_streams(Limit=1)
            except BotoCoreError:
                return False
            return True

        self._wait.until(answers, f"nothing answers at {self._endpoint}", "start it with `kinesis-efo local`")

    def everything(self) -> None:
        """Declare streams, consumers, lease tables and manifests, and for jobs the bucket and their descriptions."""
        environment = self._environment
        self.given_bucket()
        if environment.emr is not None:
            self._bucket(Names(environment).artifacts_bucket)
        for key, stream in environment.streams.items():
            assert isinstance(stream, OwnStream), "localized"
            self._stream(Names(environment).stream_name(key), stream)
        for key, application in environment.applications.items():
            references = {each: self._read(each, key) for each in application.streams}
            if not isinstance(application.access, OtherAccount):
                table = Names(environment).lease_table_name(key)
                document = manifest.manifest(
                    environment, key, table_name=table, table_arn=self._table(table), streams=references
                )
                self._manifest(key, document)
        if environment.emr is not None:
            self._jobs()

    def check(self) -> None:
        """Check that every manifest arrived: a Terraform provider that talks to another endpoint raises no error.

        Raises:
            ClientError: A manifest is missing.
        """
        for key, application in self._environment.applications.items():
            if not isinstance(application.access, OtherAccount):
                if bucket := Names(self._environment).manifest_bucket:
                    self._s3.head_object(Bucket=bucket, Key=Names(self._environment).manifest_key(key))
                else:
                    self._ssm.get_parameter(Name=Names(self._environment).parameter_name(key))

    def _stream(self, name: str, stream: OwnStream) -> None:
        capacity = {"ShardCount": stream.shards} if stream.shards else {}
        mode = {"StreamMode": stream.mode.upper().replace("-", "_")}
        size = {"MaxRecordSizeInKiB": stream.max_record_kib} if stream.max_record_kib > 1024 else {}
        with _already_there():
            self._kinesis.create_stream(StreamName=name, StreamModeDetails=mode, Tags=self._tags, **capacity, **size)
        problem = f"stream {name} does not become ACTIVE"
        self._wait.until(lambda: self._summary(name)["StreamStatus"] == "ACTIVE", problem)
        if stream.retention_hours > self._summary(name)["RetentionPeriodHours"]:
            hours = stream.retention_hours
            self._kinesis.increase_stream_retention_period(StreamName=name, RetentionPeriodHours=hours)

    def _summary(self, name: str) -> dict[str, Any]:
        summary: dict[str, Any] = self._kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        return summary

    def _read(self, key: str, application: str) -> StreamRef:
        """What an application reads: its consumer, which is declared, or the stream if it only polls."""
        stream = Names(self._environment).stream_name(key)
        arn = self._summary(stream)["StreamARN"]
        if not self._environment.applications[application].subscribes:
            return StreamRef(stream, arn, None)
        name = application_name(application, self._environment.applications[application])
        with _already_there():
            self._kinesis.register_stream_consumer(StreamARN=arn, ConsumerName=name, Tags=self._tags)

        def description() -> dict[str, Any]:
            answer = self._kinesis.describe_stream_consumer(StreamARN=arn, ConsumerName=name)
            consumer: dict[str, Any] = answer["ConsumerDescription"]
            return consumer

        problem = f"consumer {name} of stream {stream} does not become ACTIVE"
        self._wait.until(lambda: description()["ConsumerStatus"] == "ACTIVE", problem)
        return StreamRef(stream, arn, description()["ConsumerARN"])

    def _table(self, name: str) -> str:
        with _already_there():
            self._dynamodb.create_table(
                TableName=name,
                KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
                Tags=[{"Key": name, "Value": value} for name, value in self._tags.items()],
            )

        def table() -> dict[str, Any]:
            description: dict[str, Any] = self._dynamodb.describe_table(TableName=name)["Table"]
            return description

        self._wait.until(lambda: table()["TableStatus"] == "ACTIVE", f"table {name} does not become ACTIVE")
        if [each["AttributeName"] for each in table()["KeySchema"]] != ["leaseKey"]:
            raise UpError(f"table {name} in local AWS has another key than leaseKey; delete it, or restart local AWS")
        return str(table()["TableArn"])

    def _jobs(self) -> None:
        """Declare the description of each application's jobs."""
        environment = self._environment
        serverless = self._serverless()
        for key, application in environment.applications.items():
            if isinstance(application.access, OtherAccount):
                continue
            job = environment.job(key)
            target = job.target if job else None
            if target is None and isinstance(application.access, EmrServerless):
                target = serverless
            document = manifest.deployment(
                environment,
                key,
                bucket=Names(environment).artifacts_bucket,
                key_arn=None,
                target=target,
                role_arn=manifest.runtime_role(application.access, Names(environment).role_arn(key)),
            )
            self._parameter(Names(environment).deployment_parameter_name(key), document)

    def _serverless(self) -> str | None:
        """The application of EMR Serverless as a target; it is declared if it is not there."""
        emr = self._environment.emr
        if emr is None or emr.serverless is None:
            return None
        name = Names(self._environment).stack_name
        there = self._emr.list_applications(states=["CREATED", "STARTED", "STOPPED"])["applications"]
        found = next((each["id"] for each in there if each.get("name") == name), None)
        if found is None:
            created = self._emr.create_application(
                name=name,
                type="Spark",
                releaseLabel=emr.release_label,
                architecture=emr.architecture.upper(),
                tags=self._tags,
            )
            found = created["applicationId"]
        return f"{_SERVERLESS}{found}"

    def given_bucket(self) -> None:
        """Make the bucket of manifests, if it is one that must exist: in local AWS it does not."""
        if (bucket := self._environment.manifest_bucket) is not None:
            self._bucket(bucket)

    def _bucket(self, name: str) -> None:
        # S3 refuses us-east-1 as a constraint: that is where a bucket is without one.
        elsewhere = {"CreateBucketConfiguration": {"LocationConstraint": self._environment.region}}
        with _already_there():
            self._s3.create_bucket(Bucket=name, **(elsewhere if self._environment.region != "us-east-1" else {}))

    def _manifest(self, key: str, document: Mapping[str, Any]) -> None:
        if (bucket := Names(self._environment).manifest_bucket) is None:
            self._parameter(Names(self._environment).parameter_name(key), document)
        else:
            body, kind = _json(document), "application/json"
            at = Names(self._environment).manifest_key(key)
            self._s3.put_object(Bucket=bucket, Key=at, Body=body.encode(), ContentType=kind)

    def _parameter(self, name: str, document: Mapping[str, Any]) -> None:
        self._ssm.put_parameter(Name=name, Type="SecureString", Value=_json(document), Overwrite=True)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


@contextmanager
def _already_there() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("ResourceInUseException", "BucketAlreadyOwnedByYou"):
            raise


def _apply(environment: Environment, directory: Path, endpoint: str) -> None:
    """Apply the synthesized stack.

    Raises:
        UpError: Terraform is missing, or fails.
    """
    terraform = find_binary()
    if terraform is None:
        raise UpError(f"{missing_binary()}; or leave out `--through terraform` (THROUGH=)")
    from infra.stacks.app import synthesize

    with TemporaryDirectory(prefix="kinesis-efo-up-") as scratch:
        written = synthesize([environment], directory, outdir=Path(scratch), local_endpoint=endpoint)
        stack = written / "stacks" / Names(environment).stack_name
        init = _terraform(terraform, stack, "init", "-input=false")
        if init.returncode:
            # Warnings come first; what matters is the error.
            reason = " ".join(init.stderr.rpartition("Error: ")[2].split())
            raise UpError(
                f"{Path(terraform).name} init failed (is the AWS provider installed, or its registry reachable?): {reason[:300]}; "
                "mend that, or leave out `--through terraform` (THROUGH=)"
            )
        applied = _terraform(terraform, stack, "apply", "-input=false", "-auto-approve")
        if applied.returncode:
            raise UpError(f"{Path(terraform).name} apply against {endpoint} failed:\n{applied.stderr.strip()}")


def _terraform(terraform: str, stack: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [terraform, f"-chdir={stack}", *arguments, "-no-color"]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
