"""`kinesis-efo lag` beside a real fetcher, beside dead and silent ones, and where permissions are missing."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress, network_namespace
from kinesis_efo.fetcher.status import StatusAccess
from kinesis_efo.leases.attributes import Lag
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo_local import NoFaults
from tests.integration.cli.conftest import Result, Switch
from tests.integration.cli.test_leases import QUICKLY, renewing
from tests.integration.cli.test_manifest import Refusing
from tests.support.fetching import reading
from tests.support.ports import free_ports
from tests.support.world import World, wait_until

Run = Callable[..., Result]


def _put(here: World, lease: Lease) -> None:
    here.dynamodb.put_item(TableName=here.lease_table, Item=lease.to_item())


def _shards(found: Result) -> dict[str, dict[str, Any]]:
    [application] = found.data["applications"]
    return {f"{row['stream']}:{row['shardId'][-1]}": row for row in application["shards"]}


@pytest.mark.slow
def test_a_query_that_reads_is_measured_and_not_disturbed(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 2})
    here.put([(str(number), b"x") for number in range(40)])
    # Renewed so patiently that a busy machine does not lose a lease meanwhile.
    with reading(here, leaseTimeout="8s") as query:
        query.until(40)
        before = len(here.aws.kinesis.trace)
        found = run("lag", "--manifest", here.manifest, "--lease-timeout", "8s", "--json")
        calls = [call.operation for call in list(here.aws.kinesis.trace)[before:]]
        assert query.batch() == []
    assert found.code == 0
    [run_] = found.data["applications"][0]["runs"]
    assert (run_["stream"], run_["state"], run_["asked"], run_["lag"]["shards"]) == ("orders", "reading", True, 2)
    assert 0 <= run_["lag"]["millisBehindLatest"] < 60_000
    assert run_["lag"]["shardId"] in {shard["ShardId"] for shard in here.shards()}
    rows = _shards(found)
    assert [(row["state"], row["recordsBehind"] is not None) for row in rows.values()] == [("reading", True)] * 2
    assert all(row["owner"] for row in rows.values())
    assert "SubscribeToShard" not in calls


def test_a_run_that_answers_is_believed_more_than_its_table(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 1})
    here.put([(str(number), b"x") for number in range(40)])
    with reading(here, leaseTimeout="8s") as query:
        query.until(40)
        query.commit()
        # As if no checkpoint had been written since.
        wait_until(lambda: any(not key.startswith("#") for key in here.leases()))
        [key] = [key for key in here.leases() if not key.startswith("#")]
        _put(here, Lease(key, checkpoint=TRIM_HORIZON, written=time.time() - 90))
        found = run("lag", "--manifest", here.manifest, "--fail-above", "1s", "--json")
        shown = run("lag", "--manifest", here.manifest)
    [row] = _shards(found).values()
    assert (found.code, row["recordsBehind"]) == (0, 0)
    assert 0 <= row["secondsBehind"] < 60, "the time since the last event counts"
    assert row["positionAgeSeconds"] < 10
    assert re.search(r"orders: 1 shard, [\d.]+s behind, 0 unread; positions from the run itself", shown.out)
    # Without the run, the table is all there is, and it says how old it is.
    _put(here, Lease(key, checkpoint=TRIM_HORIZON, written=time.time() - 100))
    shown = run("lag", "--manifest", here.manifest)
    # AWS' clock has whole seconds, and a busy machine takes some to ask.
    assert re.search(r"40 unread; positions from the lease table, up to 1m[345]", shown.out)


def test_a_run_that_cannot_be_asked_costs_little_time_and_is_named(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 1})
    shard = here.shards()[0]["ShardId"]
    _put(here, Lease(f"orders:{shard}", checkpoint=TRIM_HORIZON))
    closed = StatusAccess(FetcherAddress(network_namespace(), free_ports()[0]), "token").to_text()
    for status, reason in (
        (closed, "no fetcher answers at tcp://127.0.0.1:"),
        ("{", "Only base64 data is allowed"),
        (base64.b64encode(b"cut off").decode(), "not the access to a status: "),
        (None, "its row has no address for a status call"),
    ):
        row = Lease(run_key("orders"), checkpoint=None).taken("host", "grpc://127.0.0.1:1", 1, status)
        _put(here, row)
        found = run("lag", "--manifest", here.manifest, "--lease-timeout", "100ms", "--json")
        assert (found.code, found.data["applications"][0]["runs"][0]["asked"]) == (0, False)
        assert f"the run of host was not asked, so its positions are from the lease table: {reason}" in found.err


def test_watching_outlives_an_outage(world: Callable[..., World], switch: Switch) -> None:
    here = world()
    _put(here, Lease(here.shards()[0]["ShardId"], checkpoint=TRIM_HORIZON))
    command = [sys.executable, "-c", "from kinesis_efo_tools.cli import main; main()", "lag"]
    options = ["--manifest", str(here.manifest), "--watch", "--interval", "100ms", "--json"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        json.loads(process.stdout.readline())
        switch.faults = Refusing("ListShards")
        assert "Trying again" in process.stderr.readline()
        switch.faults = NoFaults()
        json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_records_and_seconds_behind(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 1, "clicks": 1})
    here.aws.backdate(here.streams["orders"], 10)  # Kinesis' clock tells whole seconds
    here.put([("k", b"x")] * 150)
    one = here.shards()[0]["ShardId"]
    _put(here, Lease(f"orders:{one}", checkpoint=TRIM_HORIZON))
    _put(here, Lease(f"clicks:{one}", checkpoint=Position.at_timestamp(1_700_000_000_000)))
    found = _shards(run("lag", "--manifest", here.manifest, "--json"))
    assert (found["orders:0"]["recordsBehind"], found["orders:0"]["recordsExact"]) == (100, False)
    assert 9 <= found["orders:0"]["secondsBehind"] < 60
    assert (found["clicks:0"]["recordsBehind"], found["clicks:0"]["secondsBehind"]) == (0, 0.0)
    all_of_them = run("lag", "--manifest", here.manifest, "--count", "1000", "--stream", "orders", "--json")
    [row] = _shards(all_of_them).values()
    assert (row["recordsBehind"], row["recordsExact"], row["state"]) == (150, True, "free")
    shown = run("lag", "--manifest", here.manifest)
    assert " 100+ " in shown.out
    assert "orders: 1 shard, " in shown.out
    assert "2023-11-14T22:13:20Z" in shown.out


def test_a_dead_owner_is_told_from_a_live_one(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 2})
    first, second = (shard["ShardId"] for shard in here.shards())
    _put(here, Lease(first, owner="alive"))
    _put(here, Lease(second, owner="dead"))
    with renewing(here, first):
        found = _shards(run("lag", "--manifest", here.manifest, *QUICKLY, "--json"))
    assert {row["owner"]: row["state"] for row in found.values()} == {"alive": "reading", "dead": "silent"}
    assert found["orders:1"]["secondsStill"] >= 1
    assert not found["orders:1"]["seenMoving"]


def test_without_permission_the_lag_is_bounded(run: Run, world: Callable[..., World], switch: Switch) -> None:
    here = world()
    here.put([("k", b"x")] * 3)
    shard = here.shards()[0]["ShardId"]
    iterator = here.kinesis.get_shard_iterator(
        StreamName=here.streams["orders"], ShardId=shard, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    number = here.kinesis.get_records(ShardIterator=iterator)["Records"][0]["SequenceNumber"]
    _put(here, Lease(shard, checkpoint=Position.after(number)))
    switch.faults = Refusing("GetRecords")
    found = run("lag", "--manifest", here.manifest, "--json")
    [row] = _shards(found).values()
    assert found.code == 0
    assert (row["recordsBehind"], row["secondsExact"]) == (None, False)
    assert 0 <= row["secondsBehind"] < 60
    assert "an upper bound: AccessDeniedException" in found.err
    switch.faults = Refusing("GetMetricData")
    unasked = run("lag", "--manifest", here.manifest, "--count", "0", "--json")
    assert not _shards(unasked)["orders:0"]["secondsExact"]


def test_a_threshold_is_an_exit_code(run: Run, world: Callable[..., World]) -> None:
    here = world()
    here.aws.backdate(here.streams["orders"], 10)  # Kinesis' clock tells whole seconds
    here.put([("k", b"x")])
    shard = here.shards()[0]["ShardId"]
    unknown = run("lag", "--manifest", here.manifest, "--fail-above", "1h")
    assert (unknown.code, "not known to be less" in unknown.err) == (4, True)
    assert "no leases: lake has never read it" in unknown.err
    _put(here, Lease(shard, checkpoint=TRIM_HORIZON))
    assert run("lag", "--manifest", here.manifest, "--fail-above", "1h").code == 0
    assert run("lag", "--manifest", here.manifest, "--fail-above", "1ms").code == 4
    _put(here, Lease(shard, checkpoint=SHARD_END))
    assert run("lag", "--manifest", here.manifest, "--fail-above", "0s").code == 0


def test_children_wait_for_their_parents(run: Run, world: Callable[..., World]) -> None:
    here = world()
    parent = here.shards()[0]["ShardId"]
    here.kinesis.split_shard(StreamName=here.streams["orders"], ShardToSplit=parent, NewStartingHashKey=str(2**127))
    here.wait_active()
    for shard in here.shards():
        _put(here, Lease(f"orders:{shard['ShardId']}", checkpoint=TRIM_HORIZON))
    states = [row["state"] for row in _shards(run("lag", "--manifest", here.manifest, "--json")).values()]
    assert states == ["free", "waiting", "waiting"]
    _put(here, Lease(f"orders:{parent}", checkpoint=SHARD_END))
    states = [row["state"] for row in _shards(run("lag", "--manifest", here.manifest, "--json")).values()]
    assert states == ["free", "free"]


def test_what_a_run_says_of_itself_is_shown_with_whether_it_is_alive(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 1, "clicks": 1})
    lag = Lag(8_000, 64_000_000, 2_500, "shardId-000000000123", 7_000, 1_700_000_000_000)
    for stream in ("orders", "clicks"):
        _put(here, Lease(run_key(stream), 1, f"{stream}-host", checkpoint=None, epoch=3, lag=lag))
    with renewing(here, run_key("orders")):
        found = run("lag", "--manifest", here.manifest, *QUICKLY, "--json")
        shown = run("lag", "--manifest", here.manifest, *QUICKLY)
    told = {
        "shards": 8_000,
        "millisBehindLatest": 2_500,
        "shardId": "shardId-000000000123",
        "bufferedBytes": 64_000_000,
        "bufferedRecords": 7_000,
        "at": "2023-11-14T22:13:20Z",
    }
    assert found.data["applications"][0]["runs"] == [
        {"stream": "clicks", "owner": "clicks-host", "state": "silent", "asked": False, "lag": told},
        {"stream": "orders", "owner": "orders-host", "state": "reading", "asked": False, "lag": told},
    ]
    # The lag is as old as the row: `lag` adds the time since then, so its text differs with each run.
    for told_of in ("orders reading orders-host 8,000", "clicks silent clicks-host 8,000"):
        (line,) = [text for line in shown.out.splitlines() if (text := " ".join(line.split())).startswith(told_of)]
        assert "shardId-000000000123 61.0 MiB" in line
    listed = run("leases", "list", "--manifest", here.manifest)
    (row,) = [text for line in listed.out.splitlines() if run_key("clicks") in (text := " ".join(line.split()))]
    assert row.startswith(f"clicks {run_key('clicks')} clicks-host 8,000 ")
    assert "shardId-000000000123 61.0 MiB" in row
    assert [row["lag"] for row in run("leases", "list", "--manifest", here.manifest, "--json").data["runs"]] == [
        told
    ] * 2


def test_what_cloudwatch_saw(run: Run, world: Callable[..., World]) -> None:
    here = world()
    here.aws.client("cloudwatch").put_metric_data(
        Namespace="AWS/Kinesis",
        MetricData=[
            {
                "MetricName": "SubscribeToShardEvent.MillisBehindLatest",
                "Dimensions": [
                    {"Name": "StreamName", "Value": here.streams["orders"]},
                    {"Name": "ConsumerName", "Value": "lake"},
                ],
                "Value": 4_200,
            }
        ],
    )
    found = run("lag", "--manifest", here.manifest, "--json")
    assert found.data["applications"][0]["cloudWatchMillisBehindLatest"] == {"orders": 4_200}
    assert "CloudWatch saw at most orders 4.2 s" in run("lag", "--manifest", here.manifest).out


def test_several_applications(run: Run, world: Callable[..., World]) -> None:
    one, two = world(), world()
    found = run("lag", "--manifest", one.manifest, "--manifest", two.manifest, "--json")
    assert len(found.data["applications"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--interval", "often"), 2, "--interval must be a duration such as 10s; got 'often'"),
        (("--fail-above", "much"), 2, "--fail-above must be a duration"),
        (("--stream", "nope"), 2, "--stream names 'nope', but the manifest"),
        (("--count", "-1"), 2, "--count"),
    ],
)
def test_bad_input(run: Run, world: Callable[..., World], arguments: tuple[str, ...], code: int, said: str) -> None:
    found = run("lag", "--manifest", world().manifest, *arguments)
    assert (found.code, found.out) == (code, "")
    assert said in found.err


def test_a_stream_that_is_gone_does_not_hide_the_others(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 1, "clicks": 1})
    shard = here.shards()[0]["ShardId"]
    _put(here, Lease(f"orders:{shard}", checkpoint=TRIM_HORIZON))
    here.kinesis.delete_stream(StreamName=here.streams["clicks"], EnforceConsumerDeletion=True)
    found = run("lag", "--manifest", here.manifest, "--json")
    assert (found.code, set(_shards(found))) == (5, {"orders:0"})
    [missing] = found.data["applications"][0]["missing"]
    assert (missing["stream"], "does not exist (any more)" in missing["error"]) == ("clicks", True)
    assert "lake: not shown: stream 'clicks'" in found.err
    # It cannot be told how far it is behind.
    assert run("lag", "--manifest", here.manifest, "--fail-above", "1h").code == 4
    assert run("lag", "--manifest", here.manifest, "--stream", "orders", "--fail-above", "1h").code == 0
    alone = run("lag", "--manifest", here.manifest, "--stream", "clicks")
    assert (alone.code, alone.out, "stream 'clicks'" in alone.err) == (1, "", True)


def test_a_table_that_is_gone(run: Run, world: Callable[..., World]) -> None:
    here = world()
    here.dynamodb.delete_table(TableName=here.lease_table)
    table = run("lag", "--manifest", here.manifest)
    assert (table.code, f"lease table {here.lease_table} in us-east-1 does not exist" in table.err) == (1, True)


def test_watching_ends_cleanly_with_ctrl_c(world: Callable[..., World]) -> None:
    here = world()
    _put(here, Lease(here.shards()[0]["ShardId"], checkpoint=TRIM_HORIZON))
    command = [sys.executable, "-c", "from kinesis_efo_tools.cli import main; main()", "lag"]
    options = ["--manifest", str(here.manifest), "--watch", "--interval", "200ms", "--json"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    assert all(look["applications"][0]["shards"][0]["state"] == "free" for look in looks)
