"""`kinesis-efo lag` beside a real fetcher, beside dead and silent ones, and where permissions are missing."""

import base64
import json
import re
import signal
import time
from typing import Any

import pytest

import kinesis_efo_tools
from kinesis_efo.calls.address import FetcherAddress, network_namespace
from kinesis_efo.fetcher.status import StatusAccess
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from tests.integration.cli.conftest import Cli, Here, Result, process
from tests.integration.cli.test_leases import QUICKLY
from tests.support.fetching import reading
from tests.support.ports import free_ports
from tests.support.world import renewing, wait_until


def _shards(found: Result) -> dict[str, dict[str, Any]]:
    [application] = found.data["applications"]
    return {f"{row['stream']}:{row['shardId'][-1]}": row for row in application["shards"]}


@pytest.mark.slow
def test_reading_query_is_asked_and_not_disturbed(cli: Cli) -> None:
    here = cli.world({"orders": 1})
    here.aws.backdate(here.streams["orders"], 100)
    here.put([(str(number), b"x") for number in range(40)])
    # Renewed so patiently that a busy machine does not lose a lease meanwhile.
    with reading(here, leaseTimeout="8s") as query:
        query.until(40)
        query.commit()
        # As if no checkpoint had been written since.
        wait_until(lambda: any(not key.startswith("#") for key in here.leases()))
        [key] = [key for key in here.leases() if not key.startswith("#")]
        here.rows(Lease(key, checkpoint=TRIM_HORIZON, written=time.time() - 90))
        before = len(here.calls())
        found = here.run("lag", "--lease-timeout", "8s", "--fail-above", "60s", "--json")
        assert "SubscribeToShard" not in [call.operation for call in here.calls(before)]
        shown = here.run("lag")
        assert query.batch() == []
    [run_] = found.data["applications"][0]["runs"]
    assert (run_["stream"], run_["state"], run_["asked"], run_["lag"]["shards"]) == ("orders", "reading", True, 1)
    assert 0 <= run_["lag"]["millisBehindLatest"] < 60_000
    assert run_["lag"]["shardId"] == here.shards()[0]["ShardId"]
    [row] = _shards(found).values()
    assert (found.code, row["state"], bool(row["owner"]), row["recordsBehind"]) == (0, "reading", True, 0)
    assert 0 <= row["secondsBehind"] < 60, "the time since the last event counts"
    assert row["positionAgeSeconds"] < 10
    assert re.search(r"orders: 1 shard, [\d.]+s behind, 0 unread; positions from the run itself", shown.out)
    # Without the run, the table is all there is, and it says how old it is.
    here.rows(Lease(key, checkpoint=TRIM_HORIZON, written=time.time() - 100))
    shown = here.run("lag")
    # AWS' clock has whole seconds, and a busy machine takes some to ask.
    assert re.search(r"40 unread; positions from the lease table, up to 1m[345]", shown.out)


def test_run_that_does_not_answer_is_named(cli: Cli) -> None:
    here = cli.world({"orders": 1})
    shard = here.shards()[0]["ShardId"]
    here.rows(Lease(f"orders:{shard}", checkpoint=TRIM_HORIZON))
    closed = StatusAccess(FetcherAddress(network_namespace(), free_ports()[0]), "token").to_text()
    for status, reason in (
        (closed, "no fetcher answers at tcp://127.0.0.1:"),
        ("{", "Only base64 data is allowed"),
        (base64.b64encode(b"cut off").decode(), "not a valid status access: "),
        (None, "its row has no address for a status call"),
    ):
        row = Lease(run_key("orders"), checkpoint=None).taken("host", "grpc://127.0.0.1:1", 1, status)
        here.rows(row)
        found = here.run("lag", "--lease-timeout", "100ms", "--json")
        assert (found.code, found.data["applications"][0]["runs"][0]["asked"]) == (0, False)
        assert f"the run of host was not asked, so its positions are from the lease table: {reason}" in found.err


def test_watching_survives_an_outage_and_ends_cleanly(cli: Cli, here: Here) -> None:
    here.rows(Lease(here.shards()[0]["ShardId"], checkpoint=TRIM_HORIZON))
    options = ("--manifest", here.manifest, "--watch", "--interval", "100ms", "--json")
    with process("lag", *options) as running:
        looks = [json.loads(running.stdout.readline()) for _ in range(3)]
        cli.refuse("ListShards")
        assert "Trying again" in running.stderr.readline()
        cli.refuse()
        looks.append(json.loads(running.stdout.readline()))
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0
        assert "Traceback" not in running.stderr.read()
    assert all(look["applications"][0]["shards"][0]["state"] == "free" for look in looks)


def test_records_and_seconds_behind_are_shown(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    here.aws.backdate(here.streams["orders"], 10)  # Kinesis' clock tells whole seconds
    here.put([("k", b"x")] * 150)
    one = here.shards()[0]["ShardId"]
    here.rows(Lease(f"orders:{one}", checkpoint=TRIM_HORIZON))
    here.rows(Lease(f"clicks:{one}", checkpoint=Position.at_timestamp(1_700_000_000_000)))
    found = _shards(here.run("lag", "--json"))
    assert (found["orders:0"]["recordsBehind"], found["orders:0"]["recordsExact"]) == (100, False)
    assert 9 <= found["orders:0"]["secondsBehind"] < 60
    assert (found["clicks:0"]["recordsBehind"], found["clicks:0"]["secondsBehind"]) == (0, 0.0)
    [row] = _shards(here.run("lag", "--count", "1000", "--stream", "orders", "--json")).values()
    assert (row["recordsBehind"], row["recordsExact"], row["state"]) == (150, True, "free")
    (here_too,) = kinesis_efo_tools.lag(str(here.manifest), streams=["orders"], count=1000, lease_timeout=0.1)["shards"]
    assert here_too.keys() == row.keys()
    assert (here_too["recordsBehind"], here_too["state"]) == (150, "free")
    shown = here.run("lag")
    assert " 100+ " in shown.out
    assert "orders: 1 shard, " in shown.out
    assert "2023-11-14T22:13:20Z" in shown.out


def test_lag_is_an_upper_bound_without_permission(cli: Cli, here: Here) -> None:
    put = here.kinesis.put_record(StreamName=here.streams["orders"], PartitionKey="k", Data=b"x")
    here.put([("k", b"x")] * 2)
    here.rows(Lease(put["ShardId"], checkpoint=Position.after(int(put["SequenceNumber"]))))
    cli.refuse("GetRecords")
    found = here.run("lag", "--json")
    [row] = _shards(found).values()
    assert found.code == 0
    assert (row["recordsBehind"], row["secondsExact"]) == (None, False)
    assert 0 <= row["secondsBehind"] < 60
    assert "an upper bound: AccessDeniedException" in found.err
    cli.refuse("GetMetricData")
    assert not _shards(here.run("lag", "--count", "0", "--json"))["orders:0"]["secondsExact"]


def test_threshold_sets_the_exit_code(here: Here) -> None:
    here.aws.backdate(here.streams["orders"], 10)  # Kinesis' clock tells whole seconds
    here.put([("k", b"x")])
    shard = here.shards()[0]["ShardId"]
    here.run("lag", "--fail-above", "1h").ends(4, "the lag is unknown", "no leases: lake has never read it")
    here.rows(Lease(shard, checkpoint=TRIM_HORIZON))
    assert here.run("lag", "--fail-above", "1h").code == 0
    assert here.run("lag", "--fail-above", "1ms").code == 4
    here.rows(Lease(shard, checkpoint=SHARD_END))
    assert here.run("lag", "--fail-above", "0s").code == 0


def test_lag_in_the_rows_of_runs_is_shown(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    lag = Lag(8_000, 64_000_000, 2_500, "shardId-000000000123", 7_000, 1_700_000_000_000)
    for stream in ("orders", "clicks"):
        here.rows(Lease(run_key(stream), 1, f"{stream}-host", checkpoint=None, epoch=3, lag=lag))
    with renewing(here, run_key("orders")):
        found = here.run("lag", *QUICKLY, "--json")
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
    (row,) = [
        text for line in here.run("leases list").out.splitlines() if "clicks-host" in (text := " ".join(line.split()))
    ]
    assert re.fullmatch(rf"clicks {run_key('clicks')} clicks-host 8,000 .* shardId-000000000123 61.0 MiB.*", row)
    assert [row["lag"] for row in here.run("leases list", "--json").data["runs"]] == [told] * 2


def test_maximum_of_cloudwatch_is_shown(here: Here) -> None:
    here.measured("SubscribeToShardEvent.MillisBehindLatest", 4_200)
    assert here.run("lag", "--json").data["applications"][0]["cloudWatchMillisBehindLatest"] == {"orders": 4_200}
    assert "CloudWatch saw at most orders 4.2 s" in here.run("lag").out


def test_several_applications_are_shown(cli: Cli) -> None:
    one, two = cli.world(), cli.world()
    assert len(one.run("lag", "--manifest", two.manifest, "--json").data["applications"]) == 2


def test_missing_stream_does_not_hide_others(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    shard = here.shards()[0]["ShardId"]
    here.rows(Lease(f"orders:{shard}", checkpoint=TRIM_HORIZON))
    here.kinesis.delete_stream(StreamName=here.streams["clicks"], EnforceConsumerDeletion=True)
    found = here.run("lag", "--json")
    assert (found.code, set(_shards(found))) == (5, {"orders:0"})
    [missing] = found.data["applications"][0]["missing"]
    assert (missing["stream"], "does not exist (any more)" in missing["error"]) == ("clicks", True)
    assert "lake: not shown: stream 'clicks'" in found.err
    # It cannot be told how far it is behind.
    assert here.run("lag", "--fail-above", "1h").code == 4
    assert here.run("lag", "--stream", "orders", "--fail-above", "1h").code == 0
    here.run("lag", "--stream", "clicks").ends(1, "stream 'clicks'", out="")
