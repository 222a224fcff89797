"""Sign-ins that no waiting mends, with real profiles, files and programs: they fail at once, and say which of them is wrong."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from botocore.exceptions import CredentialRetrievalError, EndpointConnectionError

from kinesis_efo import credentials
from kinesis_efo.aws import AsyncClients, SyncClients
from kinesis_efo.aws_errors import Cause, SignInError, cause_of
from kinesis_efo.calls.address import Listening
from kinesis_efo.clock import deadline
from kinesis_efo.errors import AccessRefusedError
from kinesis_efo.kinesis.topology import explained
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import AwsSettings, SourceOptions
from kinesis_efo.patience import passes
from kinesis_efo.run.thread import RunThread
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.findings import LOG_IN
from kinesis_efo_tools.operate.obstacles import obstacles
from tests.support.answers import ForwardClock
from tests.support.commands import outcome
from tests.support.messages import raises

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
ROLE = "role_arn = arn:aws:iam::123456789012:role/reader"
BASE = "[profile base]\naws_access_key_id = a\naws_secret_access_key = b"
SSO = """sso_session = s
sso_account_id = 123456789012
sso_role_name = x
[sso-session s]
sso_start_url = https://x
sso_region = eu-west-1"""
NOWHERE = AwsSettings(endpoint_url="http://127.0.0.1:9")

FILE = "/no/token: No such file or directory"
TOKEN, CONTAINER = "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
CASES: dict[str, tuple[str, dict[str, str], str]] = {
    "process fails": ("credential_process = /bin/sh -c 'echo session is over >&2; exit 3'", {}, "/bin/sh ended with exit code 3. session is over"),
    "process fails silently": ("credential_process = /bin/false", {}, "/bin/false ended with exit code 1"),
    "no such process": ("credential_process = /no/such/tool", {}, r"/no/such/tool: No such file or directory \(setting credential_process\)"),
    "process prints text": ("credential_process = /bin/echo hello", {}, "cannot parse a file .* credential_process"),
    "process prints a list": ("credential_process = /bin/echo []", {}, "cannot parse a file .* credential_process"),
    "open quotation": ("credential_process = /bin/echo 'hello", {}, "No closing quotation"),
    "token of the profile": (f"{ROLE}\nweb_identity_token_file = /no/token", {}, rf"{FILE} \(setting web_identity_token_file\)"),
    "token of the environment": ("", {"AWS_ROLE_ARN": ROLE.removeprefix("role_arn = "), TOKEN: "/no/token"}, rf"{FILE} \(setting {TOKEN}\)"),
    "token of the container": (
        "", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/x", CONTAINER: "/no/token"}, rf"{FILE} \(setting {CONTAINER}\)"
    ),
    "broken file": ("]\n[[", {}, "Unable to parse config file: .*config"),
    "no source": (f"{ROLE}\nsource_profile = gone", {}, 'source_profile "gone" .* does not exist'),
    "no credentials in the source": (f"{ROLE}\ncredential_source = Environment", {}, "credential_source"),
    "no SSO session": (SSO, {}, "Token for s does not exist"),
    "half a key": ("aws_access_key_id = a", {}, "missing: aws_secret_access_key"),
}  # fmt: skip

Home = Callable[[str, dict[str, str]], Path]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Gives this process a profile `dev` with these lines, and these variables."""

    def make(lines: str, variables: dict[str, str]) -> Path:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        config = tmp_path / ".aws" / "config"
        config.parent.mkdir()
        config.write_text(f"[profile dev]\n{lines}\n{BASE}\n")
        given = {"HOME": str(tmp_path), "AWS_PROFILE": "dev", "AWS_EC2_METADATA_DISABLED": "true", **variables}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        return config

    return make


class Tool:
    """A program for `credential_process`, which notes the processes that hang."""

    def __init__(self, directory: Path) -> None:
        self.path, self.started = directory / "tool", directory / "started"

    def runs(self, script: str) -> None:
        self.path.write_text(f"#!/bin/sh\n{script}\n")
        self.path.chmod(0o755)

    def hangs(self) -> None:
        self.runs(f"echo $$ >> {self.started}\nexec sleep 60")

    def prints_a_key(self, *, soon_expired: bool = True, unless: str = "false") -> None:
        """Prints a key, which the SDK renews at every call if it expires soon; `unless` may do something else."""
        soon = {"Expiration": (datetime.now(UTC) + timedelta(minutes=5)).isoformat()} if soon_expired else {}
        key = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", **soon}
        self.runs(f"if {unless}; else echo '{json.dumps(key)}'; fi" if ";" in unless else f"echo '{json.dumps(key)}'")

    def assert_killed(self, count: int = 1) -> None:
        processes = [int(process) for process in self.started.read_text().split()]
        assert len(processes) == count
        for process in processes:
            with pytest.raises(ProcessLookupError):
                os.kill(process, 0)


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)


async def _list_shards() -> None:
    async with await AsyncClients(NOWHERE, "eu-west-1").open("kinesis") as kinesis:
        await kinesis.list_shards(StreamARN=ARN)


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "variables", "says"), CASES.values(), ids=CASES)
def test_a_broken_sign_in_fails_at_once(
    home: Home, lines: str, variables: dict[str, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = home(lines, variables)
    with pytest.raises(AccessRefusedError, match=says) as caught:
        asyncio.run(explained(_list_shards(), StreamRef("orders", "orders", ARN, None), "m.json"))
    assert f"with AWS profile 'dev' (of {config})" in str(caught.value) or says.startswith("Unable")
    assert len(re.findall("log in|give the process", str(caught.value), re.IGNORECASE)) == 1, "one remedy"
    error = caught.value.__cause__
    assert error is not None
    assert not passes(error)

    with pytest.raises(Exception, match=says) as also:
        SyncClients(NOWHERE, "eu-west-1").client("kinesis").list_shards(StreamARN=ARN)
    assert cause_of(also.value) is Cause.NO_CREDENTIALS
    assert not [record for record in caplog.records if record.levelname != "INFO"], "the SDK does not log it, too"

    async def look() -> list[str]:
        async with Access(NOWHERE, "eu-west-1") as access:
            return [each.fix for each in await obstacles(access) if each.subject == "credentials"]

    assert asyncio.run(look()) == [LOG_IN], "doctor says it, too"


def test_a_hanging_program_fails_the_sign_in(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "PROCESS_SECONDS", 0.5)
    home("credential_process = /bin/sleep 3", {})
    said = "with AWS profile 'dev' .* from custom-process: it did not end within 0 s; it may wait for input"

    async def main() -> None:
        with raises(
            AccessRefusedError,
            "stream 'orders': arn:aws:kinesis:eu-west-1:123456789012:stream/orders (from m.json): there are no AWS "
            "credentials to list its shards with: the sign-in with AWS profile 'dev' (of ...) fails: "
            "CredentialRetrievalError: Error when retrieving credentials from custom-process: it did not end within 0 s; "
            "it may wait for input; correct that, or log in",
        ):
            await explained(_list_shards(), StreamRef("orders", "orders", ARN, None), "m.json")

    asyncio.run(main())
    with pytest.raises(SignInError, match=said):
        SyncClients(NOWHERE, "eu-west-1").client("kinesis").list_shards(StreamARN=ARN)


def test_credential_process_ends_with_its_call(home: Home, tool: Tool) -> None:
    """First at a sign-in, then when the credentials of a client are renewed, and also of a client that waits."""
    tool.hangs()
    home(f"credential_process = {tool.path}", {})
    with deadline(1.5), pytest.raises(SignInError, match="it did not end within 1 s"):
        SyncClients(NOWHERE, "eu-west-1").client("kinesis")
    tool.prints_a_key()
    client = SyncClients(NOWHERE, "eu-west-1", seconds=1.5).client("kinesis")
    tool.hangs()
    with pytest.raises(SignInError, match="it did not end within 1 s"):
        client.list_shards(StreamARN=ARN)
    with pytest.raises(SignInError, match="it did not end within 2 s"):
        asyncio.run(AsyncClients(NOWHERE, "eu-west-1", seconds=1.5).credentials())
    tool.assert_killed(3)


@pytest.mark.parametrize("awaits", [False, True])
def test_helper_of_source_profile_ends_with_call(home: Home, tool: Tool, awaits: bool) -> None:
    tool.hangs()
    home(f"{ROLE}\nsource_profile = other\n[profile other]\ncredential_process = {tool.path}", {})
    began = time.monotonic()
    if awaits:
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(_list_shards(), 1.5))
    else:
        with deadline(1.5), pytest.raises(SignInError, match="it did not end within 1 s"):
            SyncClients(NOWHERE, "eu-west-1").client("kinesis")
    assert time.monotonic() - began < 10
    tool.assert_killed()


def test_hanging_helper_of_changed_files_is_killed(home: Home, tool: Tool, caplog: pytest.LogCaptureFixture) -> None:
    tool.prints_a_key(soon_expired=False)
    config = home(f"credential_process = {tool.path}", {})
    clock = ForwardClock()
    once = {"retries": {"total_max_attempts": 1}}
    client = SyncClients(NOWHERE, "eu-west-1", once, clock, 2.0).client("kinesis")
    tool.hangs()
    config.touch()
    clock.offset = credentials.LOOK_SECONDS + 1
    with pytest.raises(EndpointConnectionError):
        client.list_shards(StreamARN=ARN)
    assert "credentials cannot be reloaded, so the current ones stay in use" in caplog.text
    tool.assert_killed()


def test_run_reports_a_failed_sign_in_with_its_remedy(home: Home) -> None:
    home("credential_process = /no/such/tool", {})
    manifest = Manifest("lake", "test", "eu-west-1", "leases", {}, "manifest.json", {})
    runtime = RunThread(manifest, SourceOptions.parse({"manifest": "manifest.json"}), Listening(), "secret")
    with pytest.raises(AccessRefusedError, match=r"^application lake: the sign-in with .*; correct that, or log in$"):
        runtime.start()


@pytest.mark.slow
def test_mfa_without_a_terminal_is_explained(home: Home) -> None:
    home(f"{ROLE}\nsource_profile = base\nmfa_serial = arn:aws:iam::123456789012:mfa/me", {})
    program = (
        "from kinesis_efo.aws import SyncClients; from kinesis_efo.options import AwsSettings\n"
        "SyncClients(AwsSettings(), 'eu-west-1').client('kinesis').list_streams()"
    )
    # A session of its own has no terminal, wherever this test runs.
    ended = outcome([sys.executable, "-c", program], stdin=subprocess.DEVNULL, start_new_session=True)
    assert "it asks for a code (MFA), and this process has no terminal" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("then", ["echo the network is away >&2; exit 1", "echo '<html>'"])
def test_program_that_worked_is_run_again(home: Home, tool: Tool, tmp_path: Path, then: str) -> None:
    offline = tmp_path / "offline"
    tool.prints_a_key(unless=f"[ -e {offline} ]; then {then}")
    home(f"credential_process = {tool.path}", {})

    async def main() -> None:
        clients = AsyncClients(NOWHERE, "eu-west-1")
        assert (await clients.credentials()).access_key == "a"
        offline.touch()
        with pytest.raises(CredentialRetrievalError) as caught:
            await clients.credentials()
        assert passes(caught.value), "a running query waits for it"
        offline.unlink()
        assert (await clients.credentials()).access_key == "a"

    asyncio.run(main())
