"""`kinesis-efo tail`: records on the terminal, with a consumer or without, and never at an application's expense."""

import json
import os
import pty
import signal
import time
from datetime import datetime
from random import Random
from typing import Any

import pytest

from kinesis_efo_local import NoFaults
from kinesis_efo_local.wrong_answers import WrongAnswers
from tests.integration.cli.conftest import Cli, Here, Result, process
from tests.support.world import wait_until

NOPE = "arn:aws:kinesis:us-east-1:123456789012:stream/nope"
ELSEWHERE = f"--region is 'eu-west-1', but stream {NOPE} is in 'us-east-1'; omit it"
OLDEST = ("--from", "TRIM_HORIZON")


def resharded(here: Here) -> None:
    """A record before a split, and eight behind it."""
    here.put([("a", b"before")])
    here.split()
    here.put([(str(number), b"after") for number in range(8)])


def by_shard(found: Result) -> dict[str, list[str]]:
    """The partition keys of each shard."""
    keys: dict[str, list[str]] = {}
    for line in found.out.splitlines():
        record = json.loads(line)
        keys.setdefault(record["shardId"], []).append(record["partitionKey"])
    return keys


@pytest.mark.parametrize("fan_out", [False, True])
def test_wanted_records_come_in_order(cli: Cli, here: Here, fan_out: bool) -> None:
    here.put([(f"user-{number % 3}", f'{{"n":{number}}}'.encode()) for number in range(30)])
    reader = ("--consumer-arn", here.consumer("mine")) if fan_out else ()
    command = ("tail", "--stream", here.streams["orders"], *reader, *OLDEST)
    before = len(here.calls())
    everything = cli.run(*command, "--limit", "30")
    assert everything.code == 0
    assert [json.loads(line)["n"] for line in everything.out.splitlines()] == list(range(30))
    some = cli.run(*command, "--key", "user-[12]", "--grep", r":1\d", "--limit", "6", "--json")
    records = [json.loads(line) for line in some.out.splitlines()]
    assert [record["data"]["n"] for record in records] == [10, 11, 13, 14, 16, 17]
    assert {record["partitionKey"] for record in records} == {"user-1", "user-2"}
    assert all(record["arrived"] and record["shardId"] for record in records)
    assert "6 records printed" in some.err
    calls = {call.operation for call in here.calls(before)}
    assert calls == {"ListShards", *(("SubscribeToShard",) if fan_out else ("GetShardIterator", "GetRecords"))} | (
        {"DescribeStreamSummary"} & calls
    )


def test_reshards_are_followed(cli: Cli, here: Here) -> None:
    resharded(here)
    for reader in ((), ("--consumer-arn", here.consumer("mine"))):
        found = cli.run("tail", "--stream", here.streams["orders"], *reader, *OLDEST, "--limit", "9")
        assert found.out.splitlines() == ["before", *["after"] * 8]
    first = here.shards()[0]["ShardId"]
    cli.run("tail", "--stream", here.streams["orders"], *OLDEST, "--shard", first).ends(
        0, "every shard has ended", out="before\n"
    )


def test_tail_begins_now_or_some_time_ago(cli: Cli, here: Here) -> None:
    here.aws.backdate(here.streams["orders"], 7_200)
    here.put([("k", str(number).encode()) for number in range(5)])
    command = ("tail", "--stream", here.streams["orders"])
    assert cli.run(*command, "--from", "3h", "--limit", "1").out == "0\n"
    assert cli.run(*command, "--for", "500ms").out == ""
    assert cli.run(*command, "--last", "2", "--until", "now").out == "3\n4\n", "found far back"


@pytest.mark.parametrize("fan_out", [False, True])
def test_last_records_of_each_shard_are_shown(cli: Cli, fan_out: bool) -> None:
    here = cli.world({"orders": 2})
    here.put([(str(number), str(number).encode()) for number in range(40)])
    command = ("tail", "--stream", here.streams["orders"], "--json")
    keys = by_shard(cli.run(*command, *OLDEST, "--limit", "40"))
    reader = ("--consumer-arn", here.consumer("mine")) if fan_out else ()
    last = by_shard(cli.run(*command, *reader, "--last", "3", "--limit", "6"))
    assert last == {shard: each[-3:] for shard, each in keys.items()}
    # Where there are fewer, all of them.
    assert len(cli.run(*command, *reader, "--last", "100", "--until", "now").out.splitlines()) == 40


def test_last_records_are_found_despite_empty_answers(cli: Cli, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    class SmallPages(NoFaults):
        async def before(self, request: Any) -> None:
            if request.operation == "GetRecords":
                request.params["Limit"] = 2

    here.put([("k", str(number).encode()) for number in range(5)])
    cli.switch.faults = SmallPages()
    monkeypatch.setattr(here.aws.kinesis, "wrong", WrongAnswers({"quiet"}, 1.0, 2, Random(1)))
    assert cli.run("tail", "--stream", here.streams["orders"], "--last", "1", "--limit", "1").out == "4\n"


def test_tail_ends_at_a_time_across_a_reshard(cli: Cli, here: Here) -> None:
    resharded(here)
    moment = time.time()
    wait_until(lambda: time.time() > moment + 0.01)
    end = datetime.fromtimestamp(moment + 0.01).astimezone().isoformat()
    here.put([(str(number), b"late") for number in range(8)])
    for reader in ((), ("--consumer-arn", here.consumer("mine"))):
        found = cli.run("tail", "--stream", here.streams["orders"], *reader, *OLDEST, "--until", end)
        assert (found.code, sorted(found.out.split())) == (0, [*["after"] * 8, "before"])


def test_shard_is_named_by_its_number(cli: Cli) -> None:
    here = cli.world({"orders": 2})
    here.put([(str(number), b"x") for number in range(20)])
    command = ("tail", "--stream", here.streams["orders"], *OLDEST, "--until", "now", "--json")
    for name in ("1", "shardId-000000000001"):
        shards = {json.loads(line)["shardId"] for line in cli.run(*command, "--shard", name).out.splitlines()}
        assert shards == {"shardId-000000000001"}


def test_consumer_of_an_application_is_refused(cli: Cli, here: Here) -> None:
    here.put([("k", b"x")])
    command = ("tail", "--stream", "orders", "--consumer-arn", here.consumers["orders"], *OLDEST, "--limit", "1")
    before = len(here.calls())
    cli.run(*command, "--manifest", here.manifest).ends(
        3, "is the consumer of application lake: reading with it would disconnect the application", out=""
    )
    assert "SubscribeToShard" not in {call.operation for call in here.calls(before)}
    assert cli.run(*command, "--manifest", here.manifest, "--take-over").out == "x\n"


def test_consumer_in_use_is_refused(cli: Cli, here: Here) -> None:
    here.put([("k", b"x")])
    mine = here.consumer("mine")
    here.measured("SubscribeToShardEvent.MillisBehindLatest", 0, "mine")
    command = ("tail", "--stream", here.streams["orders"], "--consumer-arn", mine, *OLDEST, "--limit", "1")
    cli.run(*command).ends(3, "was in use in the last")
    assert cli.run(*command, "--take-over").code == 0
    cli.refuse("GetMetricData")
    cli.run(*command).ends(0, "it is unknown whether the consumer is in use", out="x\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--stream", "nope"), 1, "there is no stream 'nope' in this account and region"),
        (("--stream", NOPE), 1, "does not exist (any more)"),
        (("--stream", "arn:aws:sqs:us-east-1:123456789012:nope"), 2, "is not the ARN of a Kinesis stream"),
        (("--stream", NOPE, "--region", "eu-west-1"), 2, ELSEWHERE),
        (("--stream", "HERE", "--from", "yesterday"), 2, "--from must be LATEST"),
        (("--stream", "HERE", "--last", "3", "--from", "10m"), 2, "--last and --from exclude each other"),
        (("--stream", "HERE", "--until", "soon"), 2, "--until must be a time"),
        (("--stream", "HERE", "--grep", "("), 2, "--grep must be a regular expression"),
        (("--stream", "HERE", "--for", "long"), 2, "--for must be a duration"),
        (("--stream", "HERE", "--shard", "shardId-9"), 1, "has no shard shardId-9"),
        (("--stream", "HERE", "--format", "xml"), 2, "'xml' is not one of"),
        (("--stream", "HERE", "--manifest", "none.json"), 1, "there is no such file"),
        ((), 2, "--stream"),
    ],
)
def test_wrong_input_is_named(cli: Cli, arguments: tuple[str, ...], code: int, said: str) -> None:
    name = cli.world().streams["orders"]
    cli.run("tail", *(name if each == "HERE" else each for each in arguments)).ends(code, said, out="")


def test_missing_or_foreign_consumer_is_named(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    mine = here.consumer("mine")
    cli.run("tail", "--stream", "clicks", "--manifest", here.manifest, "--consumer-arn", here.consumers["orders"]).ends(
        2, "is not a consumer of streamArn"
    )
    here.kinesis.deregister_stream_consumer(ConsumerARN=mine)
    stream = next(here.streams[name] for name in here.streams if f"/{here.streams[name]}/" in mine)
    cli.run("tail", "--stream", stream, "--consumer-arn", mine).ends(1, "does not exist (any more)")


@pytest.mark.parametrize("fan_out", [False, True])
def test_missing_permission_is_named(cli: Cli, here: Here, fan_out: bool) -> None:
    reader = ("--consumer-arn", here.consumer("mine")) if fan_out else ()
    cli.refuse("SubscribeToShard", "GetShardIterator")
    action = "kinesis:SubscribeToShard" if fan_out else "kinesis:GetRecords and kinesis:GetShardIterator"
    cli.run("tail", "--stream", here.streams["orders"], *reader).ends(1, f"Allow {action}", out="")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_cleanly(here: Here, number: signal.Signals) -> None:
    here.put([("k", b"x")] * 3)
    reader = ["--consumer-arn", here.consumer("mine")] if number is signal.SIGINT else []
    mine, terminal = pty.openpty()
    with process("tail", "--stream", here.streams["orders"], *OLDEST, *reader, stderr=terminal, text=False) as running:
        assert [running.stdout.readline() for _ in range(3)] == [b"x\n"] * 3
        shown = b""

        def status() -> bool:
            nonlocal shown
            shown += os.read(mine, 4096)
            return b"3 of 3 records | " in shown and b"1 shard | 0.0 s behind" in shown

        wait_until(status)
        running.send_signal(number)
        assert running.wait(30) == 0
    os.close(terminal)
    last = os.read(mine, 65_536)
    os.close(mine)
    assert last.endswith(b"3 records printed, 3 read\r\n")
    assert b"Traceback" not in shown + last


@pytest.mark.slow
def test_closed_pipe_ends_cleanly(here: Here) -> None:
    here.put([("k", b"x" * 1000)] * 400)
    with process("tail", "--stream", here.streams["orders"], *OLDEST, text=False) as running:
        running.stdout.readline()
        running.stdout.close()
        assert running.wait(30) == 0
        said = running.stderr.read()
    assert b"Error" not in said
    assert b"records printed" in said
    assert b"behind" not in said, "where standard error is no terminal, there is no status line"


@pytest.mark.slow
def test_stream_deleted_meanwhile_is_named(here: Here) -> None:
    here.put([("k", b"x")])
    command = ["--stream", here.streams["orders"], *OLDEST, "--consumer-arn", here.consumer("mine")]
    with process("tail", *command, text=False) as running:
        assert running.stdout.readline() == b"x\n"
        here.kinesis.delete_stream(StreamName=here.streams["orders"], EnforceConsumerDeletion=True)
        assert running.wait(60) == 1
        said = running.stderr.read()
    assert b"does not exist (any more)" in said
    assert b"Traceback" not in said
