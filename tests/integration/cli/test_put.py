"""`kinesis-efo put`: what was given is in the stream, and what is not is said."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Cli, Here, process
from tests.support.ports import free_ports
from tests.support.world import World, stored_records, wait_until


def _records(here: World) -> list[tuple[str, bytes]]:
    """Partition key and data of all records, shard by shard."""
    return [(each["PartitionKey"], each["Data"]) for each in stored_records(here.kinesis, here.streams["orders"])]


def test_lines_of_standard_input_are_written(cli: Cli) -> None:
    here = cli.world({"orders": 4})
    lines = [b"one", b"", b"\xff\x00", b"with \r inside", b"no end"]
    found = cli.run("put", "--stream", here.streams["orders"], "--json", stdin=b"\n".join(lines))
    assert found.code == 0
    assert (found.data["records"], found.data["complete"]) == (5, True)
    written = _records(here)
    assert sorted(data for _, data in written) == sorted(lines)
    assert len({key for key, _ in written}) == 5
    shown = cli.run("put", "--stream", "orders", "--manifest", here.manifest, "--key", "k", stdin="a\r\nb\r\n")
    assert shown.out.startswith(f"2 records, 4 bytes (keys included) written to {here.streams['orders']} in ")
    assert sorted(data for key, data in _records(here) if key == "k") == [b"a", b"b"]


def test_files_are_written_with_keys(cli: Cli, here: Here, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text('{"user": "ann", "n": 1}\n{"user": 7, "n": 2}\n')
    two.write_text('{"user": "ann", "n": 3}')
    command = ("put", "--stream", here.streams["orders"], one, two)
    assert cli.run(*command, "--key-field", "user", "--ordered").code == 0
    assert [key for key, _ in _records(here)] == ["ann", "7", "ann"]
    assert cli.run(*command, "--whole", "--key", "file").code == 0
    assert {data for key, data in _records(here) if key == "file"} == {one.read_bytes(), two.read_bytes()}


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "said"),
    [
        (("--key-field", "user"), '{"user": 1}\nnope\n', 1, "line 2: not JSON, which --key-field needs"),
        (("--key-field", "user"), '{"name": 1}\n', 1, "standard input, line 1: no field 'user'"),
        (("--key", ""), "x\n", 1, "standard input, line 1: "),
        (("--key", "a", "--key-field", "b"), "", 2, "exclude each other"),
        (("--whole",), "", 2, "--whole needs files"),
        (("none.txt",), "", 1, "none.txt cannot be read: No such file or directory"),
        (("none.txt", "--whole"), "", 1, "none.txt cannot be read: No such file or directory"),
    ],
)
def test_wrong_input_is_named(
    cli: Cli, here: Here, arguments: tuple[str, ...], stdin: str, code: int, said: str
) -> None:
    found = cli.run("put", "--stream", here.streams["orders"], *arguments, stdin=stdin)
    found.ends(code, said, out="")
    if "line 2" in said:
        assert "1 record acknowledged before the error" in found.err
        assert len(_records(here)) == 1


def test_large_record_is_named_or_left_out(cli: Cli, here: Here, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"small\n" + b"x" * (11 << 20) + b"\nsmall\n")
    cli.run("put", "--stream", here.streams["orders"], file).ends(1, f"{file}, line 2: ")
    skipped = cli.run("put", "--stream", here.streams["orders"], file, "--skip-refused", "--json")
    assert (skipped.code, skipped.data["records"], skipped.data["refused"]) == (1, 2, 1)
    assert "1 record refused and left out" in skipped.err


def test_missing_or_refusing_stream_is_named(cli: Cli) -> None:
    cli.run("put", "--stream", "nope", stdin="x\n").ends(1, "there is no stream 'nope'")
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/nope"
    gone = cli.run("put", "--stream", arn, stdin="x\n")
    assert (gone.code, "cannot be opened for writing: ResourceNotFound" in gone.err) == (1, True)
    assert "acknowledged" not in gone.err
    here = cli.world()
    cli.refuse("PutRecords")
    cli.run("put", "--stream", here.streams["orders"], stdin="x\n").ends(
        1, "0 records acknowledged before the error", "kinesis:PutRecords"
    )


def test_interrupt_writes_what_was_read(here: Here) -> None:
    command = ("put", "--stream", here.streams["orders"], "--key", "k")
    with process(*command, stdin=subprocess.PIPE) as running:
        running.stdin.write("one\ntwo\n")
        running.stdin.flush()
        wait_until(lambda: len(_records(here)) == 2)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        assert running.stdout.read().startswith("2 records, 8 bytes (keys included) written")
        assert "interrupted before the input's end" in running.stderr.read()


def test_unreachable_endpoint_is_reported_soon(cli: Cli) -> None:
    began = time.monotonic()
    words = ("--manifest", cli.world().manifest, "--endpoint-url", f"http://127.0.0.1:{free_ports()[0]}")
    cli.run("put", "--stream", "orders", *words, stdin="one\n").ends(
        1, "nothing was written", "look at the network path", out=""
    )
    assert time.monotonic() - began < 10
