"""The installed command as a process: exit codes, what goes where, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from kinesis_efo.leases.row import Lease
from tests.support.world import World, wait_until

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "kinesis-efo")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, env=os.environ, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        (">/dev/full", "standard output: No space left on device; free space there, or write to another disk"),
        (">&-", "standard output: Bad file descriptor; it is closed: redirect it to a file, or to /dev/null"),
    ],
)
@pytest.mark.parametrize("command", ["tail --limit 1 --from TRIM_HORIZON --stream orders", "shards", "shards --json"])
def test_unusable_standard_output_is_named(
    command: str, redirection: str, said: str, world: Callable[..., World]
) -> None:
    here = world({"orders": 1})
    here.put([("key", b"value")])
    shell = f'exec "$0" {command} --manifest {here.manifest} {redirection}'
    ran = subprocess.run(["sh", "-c", shell, PROGRAM], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    message = json.loads(ran.stderr)["error"]["message"] if "--json" in command else ran.stderr.splitlines()[-1]
    assert message.removeprefix("kinesis-efo: ") == said
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 1


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_result_is_printed_without_standard_error(redirection: str, world: Callable[..., World]) -> None:
    here = world({"orders": 1})
    here.put([("key", b"value")])
    shell = f'exec "$0" tail --limit 1 --from TRIM_HORIZON --stream orders --manifest {here.manifest} {redirection}'
    ran = subprocess.run(["sh", "-c", shell, PROGRAM], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.returncode) == ("value\n", 0)


def test_closed_standard_input_is_named(world: Callable[..., World]) -> None:
    here = world({"orders": 1})
    shell = f'exec "$0" put --stream orders --manifest {here.manifest} <&-'
    ran = subprocess.run(["sh", "-c", shell, PROGRAM], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert "standard input: Bad file descriptor; it is closed" in ran.stderr
    assert ran.returncode == 1


@pytest.mark.parametrize("command", ["shards", "shards --json"])
def test_pipe_without_reader_ends_quietly(command: str, world: Callable[..., World]) -> None:
    here = world()
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [PROGRAM, *command.split(), "--manifest", str(here.manifest)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (ran.stderr, ran.returncode) == ("", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "doctor",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("manifest check", "shards", "lag", "leases list")),
    ],
)
def test_good_and_bad_exit_codes(world: Callable[..., World], command: str) -> None:
    name, *sub = command.split()
    here = str(world().manifest)
    good = _run(name, *sub, "--manifest", here, "--json")
    assert good.returncode == 0, good.stderr
    assert isinstance(json.loads(good.stdout), dict)
    bad = _run(name, *sub, "--manifest", "none.json")
    assert bad.returncode == 1
    assert "there is no such file" in bad.stdout + bad.stderr
    assert "Traceback" not in bad.stderr
    if name != "doctor":  # its answer has a line for it
        assert (bad.stdout, bad.stderr.count("\n")) == ("", 1)


def test_ctrl_c_while_owners_are_watched_changes_nothing(world: Callable[..., World]) -> None:
    here = world()
    lease = Lease(here.shards()[0]["ShardId"], owner="host:1:abc")
    here.dynamodb.put_item(TableName=here.lease_table, Item=lease.to_item())
    command = [PROGRAM, "leases", "release", "--manifest", str(here.manifest), "--lease-timeout", "60s", "--yes"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            assert process.stderr is not None
            assert "is an owner alive?" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert here.leases()[lease.key]["leaseOwner"] == {"S": "host:1:abc"}


def test_ctrl_c_while_a_shard_is_read_ends_quietly(world: Callable[..., World]) -> None:
    here = world()
    before = len(here.aws.kinesis.trace)
    command = [PROGRAM, "doctor", "--manifest", str(here.manifest), "--subscribe", "--for", "60s"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            wait_until(lambda: any(each.operation == "SubscribeToShard" for each in here.aws.kinesis.trace[before:]))
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
