"""A proxy that accepts connections but never connects: calls, commands and starts fail in time, and their errors name the proxy."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from secrets import token_urlsafe

import pytest

from kinesis_efo.aws import AsyncClients, SyncClients
from kinesis_efo.aws_errors import Cause, NoAnswerError, cause_of
from kinesis_efo.batch.planning import plan
from kinesis_efo.calls.address import Listening
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.leases.table import LeaseTable, client_config
from kinesis_efo.manifest import resolve_manifest
from kinesis_efo.options import AwsSettings, BatchOptions, SourceOptions
from kinesis_efo.patience import Patience
from kinesis_efo.positions import Position
from kinesis_efo.run.thread import RunThread
from kinesis_efo_tools.cli import main
from tests.support.stalled_proxy import STALLS, stalled_proxy

STREAM = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
ROLE = "arn:aws:iam::123456789012:role/reader"
COMMAND = [sys.executable, "-c", "from kinesis_efo_tools.cli import main; main()"]


one_stall = pytest.mark.parametrize("proxy", STALLS[-1:], indirect=True)
"""For what makes the calls that are tested with each way to stall."""


@pytest.fixture(params=STALLS)
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a stalled proxy, through which all AWS calls of this process go."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with stalled_proxy(request.param) as url:
        for name, value in (("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"), ("HTTPS_PROXY", url)):
            monkeypatch.setenv(name, value)
        yield url


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    document = {
        "schemaVersion": 1,
        "application": "lake",
        "environment": "test",
        "region": "us-east-1",
        "leaseTable": {"name": "leases", "arn": "arn:aws:dynamodb:us-east-1:123456789012:table/leases"},
        "streams": {
            "orders": {"streamName": "orders", "streamArn": STREAM, "consumerArn": f"{STREAM}/consumer/lake:1700000000"}
        },
    }
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(document))
    return file


async def lists_shards(clients: AsyncClients) -> None:
    async with await clients.open("kinesis") as client:
        await Topology(client).shards(STREAM)


async def reads_leases(clients: AsyncClients) -> None:
    async with await clients.open("dynamodb", client_config(30.0)) as client:
        await LeaseTable(client, "leases", declared_by="the manifest").scan()


async def signs_in(clients: AsyncClients) -> None:
    await clients.credentials()


@pytest.mark.parametrize(("call", "role"), [(lists_shards, None), (reads_leases, None), (signs_in, ROLE)])
def test_a_control_call_fails_at_its_deadline(
    proxy: str, call: Callable[[AsyncClients], object], role: str | None
) -> None:
    clients = AsyncClients(AwsSettings(role_arn=role), "us-east-1", seconds=1.0)
    began = time.monotonic()
    with pytest.raises(Exception, match=r"no answer from https://.* within 1 s") as failed:
        asyncio.run(call(clients))  # type: ignore[arg-type]
    assert time.monotonic() - began < 6
    assert proxy in str(failed.value)
    assert isinstance(failed.value, KinesisEfoError) or cause_of(failed.value) is Cause.PASSING


def test_a_blocking_call_fails_at_its_deadline(proxy: str) -> None:
    began = time.monotonic()
    with (
        closing(SyncClients(AwsSettings(), "us-east-1", seconds=1.0).client("ssm")) as client,
        pytest.raises(NoAnswerError, match="GetParameter: no answer") as failed,
    ):
        client.get_parameter(Name="/app")
    assert time.monotonic() - began < 6
    assert proxy in str(failed.value)


def manifest_from_ssm(options: SourceOptions, file: Path) -> None:
    def load() -> None:
        resolve_manifest(options, SyncClients(options.aws, "us-east-1").client)

    Patience(options.retry, SystemClock()).load("ssm:///app", load)


def run(options: SourceOptions, file: Path) -> None:
    runtime = RunThread(
        resolve_manifest(SourceOptions.parse({"manifest": str(file)}), SyncClients(options.aws).client),
        options,
        Listening(),
        token_urlsafe(32),
    )
    try:
        runtime.start()
    finally:
        runtime.stop()


def batch_read(options: SourceOptions, file: Path) -> None:
    given = BatchOptions(options)
    asyncio.run(plan(resolve_manifest(options, SyncClients(options.aws).client), given, Position.at_timestamp(0)))


@one_stall
@pytest.mark.parametrize(
    ("start", "more"),
    [(manifest_from_ssm, {"manifest": "ssm:///app"}), (run, {}), (run, {"roleArn": ROLE}), (batch_read, {})],
)
def test_a_start_fails_after_the_retry_timeout(
    proxy: str, manifest: Path, start: Callable[[SourceOptions, Path], None], more: dict[str, str]
) -> None:
    options = SourceOptions.parse({"manifest": str(manifest), "retryTimeout": "2s", **more})
    began = time.monotonic()
    with pytest.raises(KinesisEfoError) as failed:
        start(options, manifest)
    assert 1.5 < time.monotonic() - began < 8
    assert proxy in str(failed.value)


@one_stall
@pytest.mark.slow
def test_doctor_names_the_proxy(proxy: str, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--manifest", str(manifest), "--json"])
    first = json.loads(capsys.readouterr().out)["findings"][0]
    assert (first["subject"], proxy in first["detail"]) == ("HTTP path", True)


@one_stall
@pytest.mark.slow
def test_commands_fail_after_ten_seconds(proxy: str, manifest: Path) -> None:
    lines = [
        f"leases list --manifest {manifest}",
        f"tail --stream orders --manifest {manifest}",
        f"lag --manifest {manifest}",
        "top --manifest ssm:///app --region us-east-1",
        f"put --stream orders --manifest {manifest}",
    ]
    began = time.monotonic()
    with ExitStack() as stack:
        running = []
        for line in lines:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            running.append(stack.enter_context(subprocess.Popen([*COMMAND, *line.split()], text=True, **pipes)))
            stack.callback(running[-1].kill)
        for line, process in zip(lines, running, strict=True):
            out, err = process.communicate(timeout=60)
            # The limit leaves room for programs that start at once on a busy machine: without a deadline, each takes three minutes.
            assert time.monotonic() - began < 60, line
            assert (process.returncode, out, "Traceback" in err) == (1, "", False)
            assert proxy in err
            assert "within 10 s" in err or "imeout" in err  # of the SDK, which may be sooner
