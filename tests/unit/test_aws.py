"""Sessions: which credentials, region and endpoint requests really go out with, by the requests that arrive.

A server of a few lines stands in for STS and for the services, because what matters is on the wire: moto accepts every signature.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol
from urllib.parse import parse_qs

import boto3
import botocore.session
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import ClientError, CredentialRetrievalError, SSLError

from kinesis_efo.aws import AsyncClients, SyncClients
from kinesis_efo.aws_errors import SignInError
from kinesis_efo.errors import AccessRefusedError, ConfigurationError, TableUnavailableError
from kinesis_efo.kinesis.faults import Verdict, classify, fatal
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import AwsSettings
from kinesis_efo.patience import passes
from kinesis_efo.producer.service import connect
from tests.support.answers import FixedClock
from tests.support.authority import Authority
from tests.support.http_server import Handler, served
from tests.support.messages import raises

ROLE = "arn:aws:iam::123456789012:role/reader"
STREAM = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")


class Endpoint(Handler):
    aws: Aws

    def do_POST(self) -> None:
        self.answer(*self.aws.answer(self.headers, self.body()))

    def do_GET(self) -> None:
        self.answer(200, self.aws.credentials(self.headers["Authorization"]))


class Aws:
    """An endpoint that hands out credentials and notes who asks for what.

    Attributes:
        assumed: Parameters of the AssumeRole calls.
        signed: Of every other request: access key, session token and region.
        lifetimes: Seconds for which the credentials of each AssumeRole hold; the last one for all that follow.
        refusal: Error code that AssumeRole answers with.
        expired: Access keys whose requests are refused as expired.
        identified: The tokens with which pods asked for credentials, as of the EKS Pod Identity Agent.
    """

    url: str

    def __init__(self) -> None:
        self.assumed: list[dict[str, str]] = []
        self.signed: list[tuple[str, str | None, str]] = []
        self.lifetimes = [3600.0]
        self.refusal: str | None = None
        self.expired: set[str] = set()
        self.identified: list[str] = []

    def answer(self, headers: Any, body: bytes) -> tuple[int, bytes]:
        key, region = re.findall(r"Credential=(\w+)/\d+/([\w-]+)/", headers["Authorization"])[0]
        if headers.get("X-Amz-Target"):
            self.signed.append((key, headers.get("X-Amz-Security-Token"), region))
            if key in self.expired:
                return 400, b'{"__type":"ExpiredTokenException","message":"The security token is expired"}'
            return 200, b'{"TableNames":[],"Shards":[]}'
        if self.refusal:
            error = f"<Error><Code>{self.refusal}</Code><Message>User: arn:aws:iam::1:user/me</Message></Error>"
            return 403, f"<ErrorResponse>{error}</ErrorResponse>".encode()
        self.assumed.append({name: values[0] for name, values in parse_qs(body.decode()).items()} | {"key": key})
        expiration = self._expiration()
        number = len(self.assumed)
        credentials = (
            f"<AccessKeyId>ASSUMED{number}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
            f"<SessionToken>token{number}</SessionToken><Expiration>{expiration}</Expiration>"
        )
        result = f"<AssumeRoleResult><Credentials>{credentials}</Credentials></AssumeRoleResult>"
        return 200, f"<AssumeRoleResponse>{result}</AssumeRoleResponse>".encode()

    def credentials(self, token: str) -> bytes:
        self.identified.append(token)
        number = len(self.identified)
        given = {"AccessKeyId": f"POD{number}", "SecretAccessKey": "s", "Token": f"session{number}"}
        return json.dumps(given | {"Expiration": self._expiration()}).encode()

    def _expiration(self) -> str:
        lifetime = self.lifetimes.pop(0) if len(self.lifetimes) > 1 else self.lifetimes[0]
        return (datetime.now(UTC) + timedelta(seconds=lifetime)).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def serving(certificate: str | None = None) -> Iterator[Aws]:
    aws = Aws()
    with served(Endpoint, certificate, aws=aws) as aws.url:
        yield aws


@pytest.fixture
def aws() -> Iterator[Aws]:
    with serving() as aws:
        yield aws


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials from variables, and nothing else: no profile, no instance role, no region."""
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "BASE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    return monkeypatch


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(0.0)


class Calls(Protocol):
    """Makes one request of DynamoDB for each step, and one of Kinesis at the end unless there is a clock."""

    def __call__(self, settings: AwsSettings, steps: Iterable[object], clock: FixedClock | None = None) -> None: ...


def in_threads(settings: AwsSettings, steps: Iterable[object], clock: FixedClock | None = None) -> None:
    """With botocore."""
    clients = SyncClients(settings, "eu-west-1", clock=clock)
    with closing(clients.client("dynamodb")) as table:
        for _ in steps:
            table.list_tables()
    if clock is None:
        with closing(clients.client("kinesis")) as kinesis:
            kinesis.list_shards(StreamName="orders")


def in_a_loop(settings: AwsSettings, steps: Iterable[object], clock: FixedClock | None = None) -> None:
    """The same with aiobotocore."""

    async def main() -> None:
        clients = AsyncClients(settings, "eu-west-1", clock)
        async with await clients.open("dynamodb") as table:
            for _ in steps:
                await table.list_tables()
        if clock is None:
            async with await clients.open("kinesis") as kinesis:
                await kinesis.list_shards(StreamName="orders")

    asyncio.run(main())


both = pytest.mark.parametrize("call", [in_threads, in_a_loop])


@pytest.fixture
def pod(aws: Aws, environment: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment that EKS gives to a pod with an association, and the file with the pod's token."""
    token = tmp_path / "eks-pod-identity-token"
    token.write_text("first")
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    environment.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{aws.url}/v1/credentials")
    environment.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    return token


@pytest.mark.slow
@both
def test_credentials_of_a_pod_renew_with_its_token(aws: Aws, call: Calls, pod: Path) -> None:
    aws.lifetimes = [30]
    call(AwsSettings(endpoint_url=aws.url), range(1))
    pod.write_text("second")
    before = len(aws.identified)
    call(AwsSettings(endpoint_url=aws.url), range(1))
    assert set(aws.identified[:before]) == {"first"}
    assert set(aws.identified[before:]) == {"second"}
    keys = [key for key, _, _ in aws.signed]
    assert len(set(keys)) == len(keys), "none is signed with credentials that are about to expire"


def profile(environment: pytest.MonkeyPatch, path: Path, lines: str) -> None:
    """Let the SDK use a profile, and no keys of the environment."""
    path.write_text(f"[default]\nrole_arn = {ROLE}\n{lines}\n")
    environment.setenv("AWS_CONFIG_FILE", str(path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name, raising=False)


@both
@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize("base", ["POD1", "HELPER"])
def test_profile_assumes_its_role(
    aws: Aws, call: Calls, environment: pytest.MonkeyPatch, tmp_path: Path, base: str
) -> None:
    (tmp_path / "key.json").write_text('{"Version": 1, "AccessKeyId": "HELPER", "SecretAccessKey": "b"}')
    helper = f"source_profile = base\n[profile base]\ncredential_process = /bin/cat {tmp_path / 'key.json'}"
    profile(environment, tmp_path / "config", helper if base == "HELPER" else "credential_source = EcsContainer")
    environment.setenv("AWS_ENDPOINT_URL", aws.url)
    call(AwsSettings(), range(1))
    assert {assumed["key"] for assumed in aws.assumed} == {base}
    assert {key for key, _, _ in aws.signed} <= {"ASSUMED1", "ASSUMED2"}


BLOCKING = "SyncClients(AwsSettings(), 'eu-west-1', seconds=1.0).client('dynamodb').list_tables()"
AWAITED = """import asyncio
async def main():
    async with await AsyncClients(AwsSettings(), 'eu-west-1', seconds=1.0).open('dynamodb') as client:
        await client.list_tables()
asyncio.run(main())"""


@pytest.mark.slow
@pytest.mark.parametrize("calls", [BLOCKING, AWAITED])
def test_mfa_code_may_take_longer_than_a_call(
    aws: Aws, environment: pytest.MonkeyPatch, tmp_path: Path, calls: str
) -> None:
    keys = "[profile base]\naws_access_key_id = a\naws_secret_access_key = b"
    profile(environment, tmp_path / "config", f"source_profile = base\nmfa_serial = arn:aws:iam::1:mfa/me\n{keys}")
    environment.setenv("AWS_ENDPOINT_URL", aws.url)
    program = (
        f"from kinesis_efo.aws import AsyncClients, SyncClients\nfrom kinesis_efo.options import AwsSettings\n{calls}"
    )
    ours, its = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stdin=its, stderr=its, start_new_session=True) as running:
        os.close(its)
        said = b""
        while b"MFA code" not in said:
            said += os.read(ours, 1024)
        time.sleep(2.0)  # longer than a call may take
        os.write(ours, b"123456\n")
        assert running.wait(60) == 0
    os.close(ours)
    assert [assumed["TokenCode"] for assumed in aws.assumed] == ["123456"]


@both
def test_role_is_assumed_once_for_all_clients(aws: Aws, call: Calls) -> None:
    settings = AwsSettings(
        region="us-west-2", endpoint_url=aws.url, role_arn=ROLE, external_id="tenant 7", role_session_name="lake"
    )
    call(settings, range(3))
    assert aws.signed == [("ASSUMED1", "token1", "us-west-2")] * 4
    (assumed,) = aws.assumed
    assert (assumed["Action"], assumed["RoleArn"], assumed["key"]) == ("AssumeRole", ROLE, "BASE")
    assert (assumed["ExternalId"], assumed["RoleSessionName"]) == ("tenant 7", "lake")


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    ("code", "verdict", "said"),
    [
        ("AccessDenied", Verdict.REFUSED, "Allow sts:AssumeRole on it to arn:aws:iam::1:user/me"),
        ("ExpiredToken", Verdict.EXPIRED, "The credentials have expired and do not refresh themselves"),
    ],
)
def test_refused_role_is_an_error(aws: Aws, call: Calls, code: str, verdict: Verdict, said: str) -> None:
    aws.refusal = code
    with pytest.raises(ClientError) as caught:
        call(AwsSettings(endpoint_url=aws.url, role_arn=ROLE), range(1))
    fault = classify(caught.value)
    assert fault.verdict is verdict
    error = fatal(fault, STREAM, "shardId-000000000000", "manifest.json")
    assert isinstance(error, AccessRefusedError)
    assert said in str(error)
    assert aws.signed == []


@both
def test_role_without_base_credentials_is_an_error(aws: Aws, call: Calls, environment: pytest.MonkeyPatch) -> None:
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    with raises(
        ConfigurationError,
        "kinesis-efo option 'roleArn' is 'arn:aws:iam::123456789012:role/reader', but there are no AWS credentials to "
        "assume it with; give the process credentials that may do so, by a role, a profile or its environment",
    ):
        call(AwsSettings(endpoint_url=aws.url, role_arn=ROLE), range(1))


def authorities(directory: Path) -> tuple[Authority, Authority]:
    """The one that issued the server's certificate, and another one."""
    for name in ("ours", "others"):
        (directory / name).mkdir()
    return Authority(directory / "ours"), Authority(directory / "others")


@pytest.mark.parametrize("source", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "profile", ""])
def test_unknown_issuer_names_the_authorities_in_use(
    tmp_path: Path, environment: pytest.MonkeyPatch, source: str
) -> None:
    ours, others = authorities(tmp_path)
    for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        environment.delenv(variable, raising=False)
    named = f"{others.path}, from {source}"
    if source == "profile":
        config = tmp_path / "config"
        config.write_text(f"[profile dev]\nca_bundle = {others.path}\n")
        environment.setenv("AWS_CONFIG_FILE", str(config))
        environment.setenv("AWS_PROFILE", "dev")
        named = f"{others.path}, from ca_bundle of AWS profile 'dev' \\(of .*{config}\\)"
    elif source:
        environment.setenv(source, str(others.path))
    else:
        named = r"/.*\.pem, from the SDK; AWS_CA_BUNDLE selects another"
    once = AioConfig(retries={"total_max_attempts": 1})

    async def check(settings: AwsSettings) -> None:
        async with await AsyncClients(settings, "eu-west-1").open("dynamodb", once) as client:
            await LeaseTable(client, "leases", declared_by="x").check()

    with serving(ours.certificate("127.0.0.1")) as aws:
        settings = AwsSettings(endpoint_url=aws.url)
        with pytest.raises(SSLError, match=rf"CERTIFICATE_VERIFY_FAILED.*\(CA bundle: {named}\)$"):
            SyncClients(settings, "eu-west-1", {"retries": {"total_max_attempts": 1}}).client("ssm").get_parameter(
                Name="x"
            )
        with pytest.raises(TableUnavailableError, match=rf"CERTIFICATE_VERIFY_FAILED.*\(CA bundle: {named}\)"):
            asyncio.run(check(settings))


def test_missing_region_is_an_error() -> None:
    assert SyncClients(AwsSettings()).region is None
    with raises(
        ConfigurationError,
        "no AWS region for ssm: set kinesis-efo option 'region' (on the command line, --region) or the environment's "
        "AWS_REGION",
    ):
        SyncClients(AwsSettings()).client("ssm")


# -- sessions of the caller


def made_by_botocore(kind: type[botocore.session.Session] = botocore.session.Session) -> Any:
    session = kind()
    session.set_credentials("GIVEN", "s", "token")
    session.set_config_variable("region", "eu-north-1")
    return session


def list_shards(session: Any, settings: AwsSettings, times: int = 1) -> None:
    async def main() -> None:
        async with connect("orders", settings, 1, session) as service:
            for _ in range(times):
                await service.shards()

    asyncio.run(main())


def test_producers_take_credentials_and_region_of_a_session(aws: Aws) -> None:
    by_boto3 = boto3.Session("GIVEN", "s", "token", region_name="eu-north-1")
    for number, session in enumerate((made_by_botocore(), made_by_botocore(AioSession), by_boto3), 1):
        list_shards(session, AwsSettings(endpoint_url=aws.url))
        assert aws.signed[-1] == ("GIVEN", "token", "eu-north-1")
        list_shards(session, AwsSettings(endpoint_url=aws.url, role_arn=ROLE))
        assert aws.assumed[-1]["key"] == "GIVEN" and aws.signed[-1][0] == f"ASSUMED{number}"


def test_producers_take_the_profile_of_a_session(aws: Aws, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = "aws_access_key_id = LAKE\naws_secret_access_key = s"
    (tmp_path / "config").write_text(f"[profile lake]\nregion = eu-north-1\nendpoint_url = {aws.url}\n{keys}\n")
    environment.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    list_shards(boto3.Session(profile_name="lake"), AwsSettings())
    assert aws.signed == [("LAKE", None, "eu-north-1")]


def test_session_renews_credentials_outside_the_event_loop(aws: Aws) -> None:
    threads = []

    def renewed() -> dict[str, str]:
        threads.append(threading.current_thread())
        expiry = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
        return {"access_key": f"KEY{len(threads)}", "secret_key": "s", "token": "t", "expiry_time": expiry}

    found = RefreshableCredentials.create_from_metadata(renewed(), renewed, "test")
    session = SimpleNamespace(get_credentials=lambda: found, region_name="eu-north-1", profile_name="default")
    list_shards(session, AwsSettings(endpoint_url=aws.url), times=2)
    assert len({key for key, _, _ in aws.signed}) == 2, "each request has its own"
    assert threading.current_thread() not in threads[1:]


# -- credentials that change


@pytest.fixture
def keys(environment: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Writes the shared file of credentials as tools that rotate keys do: by a rename."""
    file = tmp_path / "credentials"
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def write(key: str) -> None:
        new = tmp_path / "new"
        new.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=s\naws_session_token=of{key}\n")
        new.rename(file)

    write("FIRST")
    return write


def keys_of(aws: Aws, call: Calls, clock: FixedClock, *between: Callable[[], object], **settings: Any) -> list[str]:
    """The keys that sign requests, between which something is done each time."""

    def steps() -> Iterator[None]:
        yield
        for act in between:
            act()
            yield

    call(AwsSettings(endpoint_url=aws.url, **settings), steps(), clock)
    return [key for key, *_ in aws.signed]


Keys = Callable[[str], None]


@both
def test_keys_of_a_missing_file_stay(
    aws: Aws, call: Calls, clock: FixedClock, keys: Keys, environment: pytest.MonkeyPatch
) -> None:
    def remove() -> None:
        Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).unlink()
        environment.setenv("AWS_ACCESS_KEY_ID", "ELSEWHERE")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "s")
        clock.pass_by(61)

    def bring_back() -> None:
        environment.delenv("AWS_ACCESS_KEY_ID")
        environment.delenv("AWS_SECRET_ACCESS_KEY")
        keys("SECOND")
        clock.pass_by(61)

    assert keys_of(aws, call, clock, remove, bring_back) == ["FIRST", "FIRST", "SECOND"]


# Shows keys change.
@pytest.mark.slow
@both
def test_expired_keys_are_read_again_at_once(aws: Aws, call: Calls, clock: FixedClock, keys: Keys) -> None:
    def expire() -> None:
        keys("SECOND")
        aws.expired.add("FIRST")
        clock.pass_by(5)

    # The very call that was refused is signed once more.
    assert keys_of(aws, call, clock, expire) == ["FIRST", "FIRST", "SECOND"]


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    "half", ["", "[default]\naws_access_key_id=SECOND\n", "[default", "[default]\ncredential_process=/no/such/tool\n"]
)
def test_half_written_file_changes_nothing(
    aws: Aws, call: Calls, clock: FixedClock, keys: Keys, tmp_path: Path, half: str
) -> None:
    def write_half() -> None:
        (tmp_path / "credentials").write_text(half)
        clock.pass_by(61)

    def write_whole() -> None:
        keys("SECOND")
        clock.pass_by(61)

    assert keys_of(aws, call, clock, write_half, write_whole) == ["FIRST", "FIRST", "SECOND"]


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("kinesis.eu-west-1.amazonaws.com", True),
        ("vpce-0a1b.kinesis.eu-west-1.vpce.amazonaws.com", True),
        ("123456789012.data-kinesis.cn-north-1.amazonaws.com.cn", True),
        ("kinesis-fips.us-east-1.api.aws", True),
        ("kinesis.us-iso-east-1.c2s.ic.gov", True),
        ("kinesis-fips.us-isob-east-1.sc2s.sgov.gov", True),
        ("123456789012.control-kinesis.us-isof-south-1.csp.hci.ic.gov", True),
        ("kinesis.eu-isoe-west-1.cloud.adc-e.uk", True),
        ("kinesis.eusc-de-east-1.amazonaws.eu", True),
        ("acme-kinesis.s3.eu-west-1.amazonaws.com", False),  # a bucket
        ("dynamodb.eu-west-1.amazonaws.com", False),
        ("kinesis", False),  # the local AWS in a container, for example
        ("kinesis.eu-west-1.example.com", False),
    ],
)
def test_other_services_are_not_called_at_kinesis_endpoint(host: str, refused: bool) -> None:
    def sent(**_: object) -> None:
        raise ConnectionResetError("sent")

    clients = SyncClients(
        AwsSettings(endpoint_url=f"https://{host}"), "eu-west-1", {"retries": {"total_max_attempts": 1}}
    )
    calls = {
        "dynamodb": "list_tables",
        "ssm": "describe_parameters",
        "sts": "get_caller_identity",
        "kinesis": "list_streams",
    }
    for service, call in calls.items():
        client = clients.client(service)
        client.meta.events.register("before-send", sent)
        kind, text = (
            (ConfigurationError, f"{host} .*{service}; ")
            if refused and service != "kinesis"
            else (ConnectionResetError, "sent")
        )
        with pytest.raises(kind, match=text):
            getattr(client, call)()


def test_lease_table_at_kinesis_endpoint_is_refused() -> None:
    async def main() -> None:
        settings = AwsSettings(endpoint_url="https://kinesis.eu-west-1.amazonaws.com")
        async with await AsyncClients(settings, "eu-west-1").open("dynamodb") as dynamodb:
            await LeaseTable(dynamodb, "leases", declared_by="x").check()

    with raises(
        ConfigurationError,
        "kinesis.eu-west-1.amazonaws.com is an endpoint of Kinesis only, but was given for every service, including "
        "dynamodb; set AWS_ENDPOINT_URL_KINESIS instead of kinesis-efo option 'endpointUrl' (on the command line, "
        "--endpoint-url) and AWS_ENDPOINT_URL",
    ):
        asyncio.run(main())


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.parametrize(
    ("content", "cause"),
    [(None, "No such file or directory"), (b"", "no certificate in PEM format"), ("directory", "it is a directory")],
)
def test_unusable_authorities_fail_at_once(
    tmp_path: Path, environment: pytest.MonkeyPatch, variable: str, content: bytes | str | None, cause: str
) -> None:
    bundle = tmp_path / "authorities.pem"
    if content == "directory":
        bundle.mkdir()
    elif isinstance(content, bytes):
        bundle.write_bytes(content)
    environment.delenv("AWS_CA_BUNDLE", raising=False)
    environment.setenv(variable, str(bundle))
    settings = AwsSettings(endpoint_url="https://localhost:1")
    with pytest.raises(ConfigurationError, match=f"{variable}.* '{bundle}': .*{cause}"):
        SyncClients(settings, "us-east-1").client("ssm").get_parameter(Name="x")

    async def call() -> None:
        async with await AsyncClients(settings, "us-east-1").open("kinesis") as client:
            await client.list_shards(StreamName="x")

    with pytest.raises(ConfigurationError, match=cause):
        asyncio.run(call())


def test_unusable_authorities_of_a_profile_name_its_file(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text("[profile dev]\nca_bundle = /no/such.pem\n")
    environment.delenv("AWS_CA_BUNDLE", raising=False)
    environment.setenv("AWS_PROFILE", "dev")
    environment.setenv("AWS_CONFIG_FILE", str(config))
    client = SyncClients(AwsSettings(endpoint_url="https://localhost:1"), "us-east-1").client("ssm")
    with raises(
        ConfigurationError,
        "ca_bundle of AWS profile 'dev' (of /dev/null and ...) names '/no/such.pem': No such file or directory; give a "
        "file of certificates in PEM format, or remove the setting",
    ):
        client.get_parameter(Name="x")


def test_old_sdk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiobotocore.__version__", "3.8.0")
    with raises(
        ConfigurationError,
        "aiobotocore 3.8.0: it does not verify the host name in AWS' certificates and, behind a proxy, accepts any "
        "certificate; install aiobotocore 3.9 or newer, with a boto3 that it allows, here and in the image or archive of "
        "the job",
    ):
        asyncio.run(AsyncClients(AwsSettings(region="eu-west-1"), "eu-west-1").credentials())


# -- the options awsProfile and credentialProvider


@both
def test_profile_precedes_keys_of_the_environment(
    aws: Aws, call: Calls, environment: pytest.MonkeyPatch, tmp_path: Path, clock: FixedClock
) -> None:
    config = tmp_path / "config"
    environment.setenv("AWS_CONFIG_FILE", str(config))

    def write(key: str) -> None:
        config.write_text(f"[profile lake]\naws_access_key_id = {key}\naws_secret_access_key = s\n")
        clock.pass_by(61)

    write("FIRST")
    assert keys_of(aws, call, clock, lambda: write("SECOND"), profile="lake") == ["FIRST", "SECOND"]
    call(AwsSettings(endpoint_url=aws.url, profile="lake", role_arn=ROLE), range(1))
    assert (aws.assumed[-1]["key"], aws.signed[-1][0]) == ("SECOND", "ASSUMED1")


@both
def test_missing_profile_is_an_error(call: Calls) -> None:
    with pytest.raises(SignInError, match=r"^there is no AWS profile 'gone' \(.*\) on host .+"):
        call(AwsSettings(profile="gone"), range(1))


PROVIDER = """
import boto3, itertools
from botocore.credentials import Credentials
from datetime import UTC, datetime, timedelta

numbers = itertools.count(1)

def key(**more):
    return {"AccessKeyId": f"KEY{next(numbers)}", "SecretAccessKey": "s", "SessionToken": "t", **more}

def lasting():
    return key(Expiration=datetime.now(UTC) + timedelta(hours=1))

def expiring():
    return key(Expiration=(datetime.now(UTC) + timedelta(seconds=30)).isoformat())

def credentials():
    return Credentials(f"KEY{next(numbers)}", "s", "t")

def session():
    return boto3.Session(f"KEY{next(numbers)}", "s", "t")

class Vault:
    failure = None

    def keys():
        if Vault.failure:
            raise Vault.failure
        return expiring()

def past():
    return key(Expiration="2020-01-01T00:00:00Z")

def zoneless():
    return key(Expiration="2030-01-01T00:00:00")
"""


@pytest.fixture
def provider(environment: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module `acme_keys`, and the entry point `acme-keys`."""
    (tmp_path / "acme_keys.py").write_text(PROVIDER)
    about = tmp_path / "acme_keys-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-keys\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[kinesis_efo.credentials]\nacme-keys = acme_keys:lasting\n")
    environment.syspath_prepend(str(tmp_path))
    yield importlib.import_module("acme_keys")
    del sys.modules["acme_keys"]


@pytest.mark.slow
@both
@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("name", ["acme_keys:lasting", "acme_keys:credentials", "acme_keys:session", "acme-keys"])
def test_provider_is_called_once_and_again_if_expired(aws: Aws, call: Calls, clock: FixedClock, name: str) -> None:
    def expire() -> None:
        aws.expired.add("KEY1")
        clock.pass_by(5)

    kept = keys_of(aws, call, clock, lambda: clock.pass_by(61), expire, credential_provider=name)
    assert kept == ["KEY1", "KEY1", "KEY1", "KEY2"]
    assert {token for _, token, _ in aws.signed} == {"t"}
    call(AwsSettings(endpoint_url=aws.url, credential_provider=name, role_arn=ROLE), range(1))
    assert aws.assumed[0]["key"].startswith("KEY") and aws.signed[-1][0] == "ASSUMED1"


BAD_PROVIDERS = {
    "no_such_keys:get": "ModuleNotFoundError: No module named 'no_such_keys'",
    "acme_keys:gone": "AttributeError: module 'acme_keys' has no attribute 'gone'",
    "no-such-entry": "no installed package has such an entry point in the group 'kinesis_efo.credentials'",
    "acme_keys:Vault.keys": "KeyError: 'role'",
    "acme_keys:numbers": "TypeError: 'itertools.count' object is not callable",
    "acme_keys:past": "RuntimeError: Credentials were refreshed, but the refreshed credentials are still expired",
    "acme_keys:zoneless": "it returned a dict; return a session or credentials",
    "acme_keys:PROVIDER.split": "AttributeError",
    "builtins:dict": "it returned a dict; return a session or credentials",
    "builtins:list": "it returned a list; return a session or credentials",
}


@both
@pytest.mark.parametrize(("name", "why"), BAD_PROVIDERS.items())
def test_broken_provider_fails_at_once(call: Calls, provider: Any, name: str, why: str) -> None:
    provider.Vault.failure = KeyError("role")
    told = f"option 'credentialProvider' '{name}' on host .+ fails: {re.escape(why)}"
    with pytest.raises(SignInError, match=told) as caught:
        call(AwsSettings(credential_provider=name), range(1))
    assert not passes(caught.value)


def test_provider_that_fails_for_a_time_is_called_again(aws: Aws, provider: Any) -> None:
    async def main() -> None:
        provider.Vault.failure = ConnectionRefusedError("vault")
        settings = AwsSettings(endpoint_url=aws.url, credential_provider="acme_keys:Vault.keys")
        clients = AsyncClients(settings, "eu-west-1")
        for failure in (ConnectionRefusedError("vault"), None, KeyError("vault"), None):
            provider.Vault.failure = failure
            if failure is None:
                assert (await clients.credentials()).access_key.startswith("KEY")
                continue
            told = f"'acme_keys:Vault.keys' on host .*: {type(failure).__name__}: '?vault"
            with pytest.raises(CredentialRetrievalError, match=told) as caught:
                await clients.credentials()
            assert passes(caught.value), "a query waits for it"

    asyncio.run(main())


def test_session_and_provider_are_refused() -> None:
    with raises(ConfigurationError, "give a session, or a profile or credential_provider in AwsSettings, but not both"):
        list_shards(made_by_botocore(), AwsSettings(profile="lake"))
