"""The installed command as a process: exit codes, what goes where, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.leases.row import Lease
from tests.integration.cli.conftest import Cli, Here, process

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "kinesis-efo")


def shell(command: str, here: Here, **pipes: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a shell, with a redirection."""
    name, _, redirection = command.partition(" <>")
    line = f'exec "$0" {name} --manifest {here.manifest} {redirection}'
    return subprocess.run(["sh", "-c", line, PROGRAM], text=True, timeout=60, check=False, **pipes)


def one_record(cli: Cli) -> Here:
    here = cli.world()
    here.put([("key", b"value")])
    return here


FULL = "standard output: No space left on device; free space there, or write to another disk"
CLOSED = "standard output: Bad file descriptor; it is closed: redirect it to a file, or to /dev/null"


@pytest.mark.parametrize(
    ("command", "redirection", "said"),
    [
        ("tail --limit 1 --from TRIM_HORIZON --stream orders", ">/dev/full", FULL),
        ("shards", ">&-", CLOSED),
        ("shards --json", ">/dev/full", FULL),
    ],
)
def test_unusable_standard_output_is_named(cli: Cli, command: str, redirection: str, said: str) -> None:
    here = one_record(cli)
    ran = shell(f"{command} <>{redirection}", here, stderr=subprocess.PIPE)
    message = json.loads(ran.stderr)["error"]["message"] if "--json" in command else ran.stderr.splitlines()[-1]
    assert message.removeprefix("kinesis-efo: ") == said
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 1


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_result_is_printed_without_standard_error(cli: Cli, redirection: str) -> None:
    here = one_record(cli)
    command = "tail --limit 1 --from TRIM_HORIZON --stream orders"
    ran = shell(f"{command} <>{redirection}", here, stdout=subprocess.PIPE)
    assert (ran.stdout, ran.returncode) == ("value\n", 0)


def test_closed_standard_input_is_named(cli: Cli) -> None:
    ran = shell("put --stream orders <><&-", cli.world(), stderr=subprocess.PIPE)
    assert "standard input: Bad file descriptor; it is closed" in ran.stderr
    assert ran.returncode == 1


def test_pipe_without_reader_ends_quietly(cli: Cli) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = shell("shards <>", cli.world(), stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (ran.stderr, ran.returncode) == ("", 1)


def test_interrupt_while_owners_are_watched_changes_nothing(here: Here) -> None:
    lease = Lease(here.shards()[0]["ShardId"], owner="host:1:abc")
    here.rows(lease)
    command = ("leases", "release", "--manifest", here.manifest, "--lease-timeout", "60s", "--yes")
    with process(*command, program=[PROGRAM]) as running:
        assert "is an owner alive?" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        assert "Traceback" not in running.stderr.read()
    assert here.leases()[lease.key]["leaseOwner"] == {"S": "host:1:abc"}
