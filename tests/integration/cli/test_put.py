"""`kinesis-efo put`: what was given is in the stream, and what is not is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_local import AwsError, NoFaults, Request
from tests.integration.cli.conftest import Result, Switch
from tests.integration.cli.test_manifest import Refusing
from tests.support.ports import free_ports
from tests.support.world import World, wait_until

Run = Callable[..., Result]


def _records(here: World) -> list[tuple[str, bytes]]:
    """Partition key and data of all records, shard by shard."""
    found: list[tuple[str, bytes]] = []
    for shard in here.shards():
        iterator = here.kinesis.get_shard_iterator(
            StreamName=here.streams["orders"], ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        page = here.kinesis.get_records(ShardIterator=iterator, Limit=10_000)
        found += [(record["PartitionKey"], record["Data"]) for record in page["Records"]]
    return found


def test_lines_of_standard_input(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 4})
    lines = [b"one", b"", b"\xff\x00", b"with \r inside", b"no end"]
    found = run("put", "--stream", here.streams["orders"], "--json", stdin=b"\n".join(lines))
    assert found.code == 0
    assert (found.data["records"], found.data["complete"]) == (5, True)
    written = _records(here)
    assert sorted(data for _, data in written) == sorted(lines)
    assert len({key for key, _ in written}) == 5
    shown = run("put", "--stream", "orders", "--manifest", here.manifest, "--key", "k", stdin="a\r\nb\r\n")
    assert shown.out.startswith(f"2 records, 4 bytes (keys included) written to {here.streams['orders']} in ")
    assert sorted(data for key, data in _records(here) if key == "k") == [b"a", b"b"]


def test_files_and_keys(run: Run, world: Callable[..., World], tmp_path: Path) -> None:
    here = world()
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text('{"user": "ann", "n": 1}\n{"user": 7, "n": 2}\n')
    two.write_text('{"user": "ann", "n": 3}')
    command = ("put", "--stream", here.streams["orders"], one, two)
    assert run(*command, "--key-field", "user", "--ordered").code == 0
    assert [key for key, _ in _records(here)] == ["ann", "7", "ann"]
    assert run(*command, "--whole", "--key", "file").code == 0
    assert {data for key, data in _records(here) if key == "file"} == {one.read_bytes(), two.read_bytes()}


def test_many_lines_keep_their_order(run: Run, world: Callable[..., World]) -> None:
    here = world()
    lines = [b"%d" % number for number in range(3_000)]
    command = ("put", "--stream", here.streams["orders"], "--key", "k", "--ordered", "--aggregate")
    assert run(*command, stdin=b"\n".join(lines)).code == 0
    read = run("tail", "--stream", here.streams["orders"], "--from", "TRIM_HORIZON", "--limit", "3000")
    assert read.out.split() == [line.decode() for line in lines]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "said"),
    [
        (
            ("--key-field", "user"),
            '{"user": 1}\nnope\n',
            1,
            "standard input, line 2: not JSON, which --key-field needs",
        ),
        (("--key-field", "user"), '{"name": 1}\n', 1, "standard input, line 1: no field 'user'"),
        (("--key", ""), "x\n", 1, "standard input, line 1: "),
        (("--key", "a", "--key-field", "b"), "", 2, "exclude each other"),
        (("--whole",), "", 2, "--whole needs files"),
        (("none.txt",), "", 1, "none.txt cannot be read: No such file or directory"),
        (("none.txt", "--whole"), "", 1, "none.txt cannot be read: No such file or directory"),
    ],
)
def test_bad_input(
    run: Run, world: Callable[..., World], arguments: tuple[str, ...], stdin: str, code: int, said: str
) -> None:
    here = world()
    found = run("put", "--stream", here.streams["orders"], *arguments, stdin=stdin)
    assert (found.code, found.out) == (code, "")
    assert said in found.err
    if "line 2" in said:
        assert "1 record acknowledged before the error" in found.err
        assert len(_records(here)) == 1


def test_what_is_too_large_is_named_or_left_out(run: Run, world: Callable[..., World], tmp_path: Path) -> None:
    here = world()
    file = tmp_path / "lines"
    file.write_bytes(b"small\n" + b"x" * (11 << 20) + b"\nsmall\n")
    failed = run("put", "--stream", here.streams["orders"], file)
    assert failed.code == 1
    assert f"{file}, line 2: " in failed.err
    skipped = run("put", "--stream", here.streams["orders"], file, "--skip-refused", "--json")
    assert (skipped.code, skipped.data["records"], skipped.data["refused"]) == (1, 2, 1)
    assert "1 record refused and left out" in skipped.err


def test_a_stream_that_is_none_or_refuses(run: Run, world: Callable[..., World], switch: Switch) -> None:
    none = run("put", "--stream", "nope", stdin="x\n")
    assert (none.code, "there is no stream 'nope'" in none.err) == (1, True)
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/nope"
    gone = run("put", "--stream", arn, stdin="x\n")
    assert (gone.code, "cannot be opened for writing: ResourceNotFound" in gone.err) == (1, True)
    assert "acknowledged" not in gone.err
    here = world()
    switch.faults = Refusing("PutRecords")
    refused = run("put", "--stream", here.streams["orders"], stdin="x\n")
    assert refused.code == 1
    assert "0 records acknowledged before the error" in refused.err
    assert "kinesis:PutRecords" in refused.err


def test_throttling_is_borne_and_counted(run: Run, world: Callable[..., World], switch: Switch) -> None:
    class Throttling(NoFaults):
        left = 2

        async def before(self, request: Request) -> None:
            if request.operation == "PutRecords" and self.left:
                self.left -= 1
                raise AwsError("ProvisionedThroughputExceededException", "slow down")

    here = world()
    switch.faults = Throttling()
    found = run("put", "--stream", here.streams["orders"], "--json", stdin="x\n")
    assert (found.code, found.data["records"]) == (0, 1)
    assert sum(found.data["retries"].values()) == 2


def test_ctrl_c_writes_what_was_read(world: Callable[..., World]) -> None:
    here = world()
    command: list[Any] = [sys.executable, "-c", "from kinesis_efo_tools.cli import main; main()"]
    command += ["put", "--stream", here.streams["orders"], "--key", "k"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(b"one\ntwo\n")
            process.stdin.flush()
            wait_until(lambda: len(_records(here)) == 2)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert process.stdout.read().startswith(b"2 records, 8 bytes (keys included) written")
            assert b"interrupted before the input's end" in process.stderr.read()
        finally:
            process.kill()


def test_an_endpoint_out_of_reach_is_told_soon(run: Run, world: Callable[..., World]) -> None:
    began = time.monotonic()
    words = ("--manifest", world().manifest, "--endpoint-url", f"http://127.0.0.1:{free_ports()[0]}")
    found = run("put", "--stream", "orders", *words, stdin="one\n")
    assert (found.code, found.out) == (1, "")
    assert "nothing was written" in found.err
    assert "look at the network path" in found.err
    assert time.monotonic() - began < 10
