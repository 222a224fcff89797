"""`kinesis-efo leases`: guarded changes, and what must not be changed."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END, Position
from kinesis_efo_local import NoFaults
from tests.integration.cli.conftest import AN_HOUR_FAST, Cli, Here, process
from tests.support.aggregates import aggregated
from tests.support.fetching import reading
from tests.support.world import World, create_lease_table, renewing, wait_until

QUICKLY = ("--lease-timeout", "3s")
"""Where an owner lives: the thread that renews for it may have to wait for a busy machine."""
AT_ONCE = ("--lease-timeout", "100ms")
"""Where every owner is dead."""


def _checkpoints(here: World) -> dict[str, str]:
    return {key: row["checkpoint"]["S"] for key, row in here.leases().items()}


OWNED = Lease(run_key("orders"), owner="host:1:abc", checkpoint=None, epoch=3)
"""A run's lease."""


def test_list_shows_leases_and_runs(cli: Cli) -> None:
    here = cli.world({"orders": 2})
    first, second = (shard["ShardId"] for shard in here.shards())
    checkpoint = Lease(f"orders:{first}", checkpoint=Position.after(7), epoch=3)
    before = Lease(first, checkpoint=Position.after(6))
    here.rows(OWNED, before, checkpoint, Lease(f"orders:{second}", checkpoint=Position.at_timestamp(1_700_000_000_000)))
    here.dynamodb.put_item(TableName=here.lease_table, Item={"leaseKey": {"S": "broken"}})
    found = here.run("leases list", "--json")
    assert found.code == 0
    assert [(row["shardId"], row["checkpoint"], row["epoch"], row["owner"]) for row in found.data["leases"]] == [
        (first, "AFTER:7", 3, "host:1:abc"),
        (second, "AT_TIMESTAMP:1700000000000", 0, "host:1:abc"),
    ]
    assert [(row["stream"], row["owner"], row["epoch"]) for row in found.data["runs"]] == [("orders", "host:1:abc", 3)]
    shown = here.run("leases list", "--shard", second)
    assert "AT_TIMESTAMP:2023-11-14T22:13:20.000Z" in shown.out
    assert first not in shown.out
    assert "not listed: lease row 'broken' has no attribute 'leaseCounter'" in shown.err


@pytest.mark.parametrize("command", ["release", "reset --to TRIM_HORIZON"])
def test_nothing_is_taken_from_a_live_worker(cli: Cli, command: str) -> None:
    here, resets = cli.world(), command.startswith("reset")
    here.rows(OWNED)
    with renewing(here, OWNED.key):
        found = here.run(f"leases {command}", *QUICKLY, "--yes", "--json")
        assert (found.code, found.out) == (3, "")
        error = json.loads(found.err.splitlines()[-1])["error"]
        assert (error["kind"], error["exitCode"]) == ("Refused", 3)
        assert "is in use: host:1:abc renews #run:orders. Nothing was changed" in error["message"]
        assert here.leases()[OWNED.key]["leaseOwner"] == {"S": "host:1:abc"}
        here.run(f"leases {command}", *QUICKLY, "--dry-run").ends(3, "is in use: host:1:abc", out="")
        forced = here.run(f"leases {command}", *QUICKLY, "--yes", "--force", "--json")
        if resets:  # although nothing would be changed
            here.run(f"leases {command}", *QUICKLY, "--yes").ends(3, "is in use")
    assert (forced.code, forced.data["written"]) == (0, True)
    assert ("leaseOwner" in here.leases()[OWNED.key]) == resets


def test_nothing_is_changed_without_consent(here: Here) -> None:
    here.rows(OWNED)
    before = here.leases()
    here.run("leases release", *AT_ONCE).ends(3, "Standard input is not a terminal: nothing was changed. Use --yes")
    tried = here.run("leases release", *AT_ONCE, "--dry-run", "--json")
    assert (tried.code, tried.data["written"], len(tried.data["changes"])) == (0, False, 1)
    here.run("leases release", *AT_ONCE, stdin="n\n", typed=True).ends(3, "nothing was changed")
    assert here.leases() == before
    assert here.run("leases release", *AT_ONCE, stdin="y\n", typed=True).code == 0
    assert here.leases() != before


def test_reset_of_a_stream_follows_its_lineage(here: Here) -> None:
    parent = here.shards()[0]["ShardId"]
    here.split()
    split = time.monotonic()
    left, right = (shard["ShardId"] for shard in here.shards()[1:])
    here.rows(Lease(left, checkpoint=Position.after(7)), Lease(f"orders:{right}", checkpoint=Position.after(8)))
    oldest = here.run("leases reset", "--to", "TRIM_HORIZON", "--yes")
    assert oldest.code == 0
    assert _checkpoints(here) == {f"orders:{parent}": "TRIM_HORIZON"}
    assert "A query with a checkpoint continues from it" in oldest.err
    # Kinesis' clock tells whole seconds, and `LATEST` is never later: until then, the parent was still open.
    wait_until(lambda: time.monotonic() - split > 2)
    assert here.run("leases reset", "--to", "LATEST", "--yes").code == 0
    assert _checkpoints(here) == {f"orders:{left}": "AT_TIMESTAMP", f"orders:{right}": "AT_TIMESTAMP"}
    assert here.leases()[f"orders:{left}"]["parentShardId"] == {"SS": [parent]}
    assert here.run("leases reset", "--to", "AFTER:123", "--shard", left, "--yes").code == 0
    assert _checkpoints(here) == {f"orders:{left}": "123", f"orders:{right}": "AT_TIMESTAMP"}


def test_reset_needs_only_one_list_of_shards(cli: Cli) -> None:
    class Outdated(NoFaults):
        """Later answers come from a server that does not list the first shard yet."""

        answers = 0

        async def before(self, request: Any) -> None:
            if request.operation == "ListShards":
                self.answers += 1
                if self.answers > 1:
                    request.params["ExclusiveStartShardId"] = first

    here = cli.world({"orders": 2})
    first, second = (shard["ShardId"] for shard in here.shards())
    cli.switch.faults = Outdated()
    assert here.run("leases reset", "--to", "TRIM_HORIZON", "--yes").code == 0
    assert _checkpoints(here).keys() == {f"orders:{first}", f"orders:{second}"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("reset", "--to", "yesterday"), 2, "--to must be TRIM_HORIZON"),
        (("reset", "--to", "2026-11-20T08:00"), 2, "must include its time zone, as 2026-11-20T08:00:00Z does for UTC"),
        (("reset", "--to", "TRIM_HORIZON", "--shard", "shardId-9"), 1, "has no lease for shardId-9 of orders"),
        (("import-kcl",), 2, "needs --from-table or --from-file, one of them"),
        (("import-kcl", "--from-table", "no-such-table"), 1, "lease table no-such-table in us-east-1 does not exist"),
        (("export", "--output", "/no/such/folder/x"), 1, "cannot be written: No such file"),
    ],
)
def test_bad_input(cli: Cli, arguments: tuple[str, ...], code: int, said: str) -> None:
    cli.run("leases", *arguments, "--manifest", cli.world().manifest).ends(code, said, out="")


def test_missing_or_refusing_table_is_named(cli: Cli, here: Here) -> None:
    cli.refuse("Scan")
    here.run("leases list").ends(1, "not allowed: dynamodb:Scan")
    cli.refuse()
    here.dynamodb.delete_table(TableName=here.lease_table)
    here.run("leases release").ends(1, "does not exist; it is declared by application 'lake' in environment")


def test_export_is_imported_again(cli: Cli, tmp_path: Path) -> None:
    here = cli.world({"orders": 2, "clicks": 1})
    rows = [
        Lease("orders:shardId-000000000000", checkpoint=Position.after(5), sub=2, parents=frozenset({"shardId-9"})),
        Lease(
            "orders:shardId-000000000001", checkpoint=Position.at_timestamp(44), stream=StreamIdentity("arn:orders", 5)
        ),
        Lease("clicks:shardId-000000000000", owner="host:1:abc"),
    ]
    here.rows(OWNED, *rows)
    file = tmp_path / "leases.json"
    assert here.run("leases export", "--output", file).code == 0
    printed = here.run("leases export")
    assert {item["leaseKey"]["S"] for item in json.loads(printed.out)["Items"]} == {row.key for row in rows}
    for key in here.leases():
        here.dynamodb.delete_item(TableName=here.lease_table, Key={"leaseKey": {"S": key}})
    back = cli.run("leases", "import-kcl", "--from-file", file, "--manifest", here.manifest, "--yes", "--json")
    assert (back.code, len(back.data["changes"])) == (0, 3)
    imported = {key: Lease.from_item(row) for key, row in here.leases().items()}
    # Parents and hash keys are those that Kinesis lists.
    assert all(row is not None and row.starting_hash_key and not row.parents for row in imported.values())
    bare: dict[str, Any] = {"parents": frozenset(), "starting_hash_key": None, "ending_hash_key": None}
    found = {key: replace(row, **bare) for key, row in imported.items() if row is not None}
    assert found["orders:shardId-000000000000"] == replace(rows[0], **bare)
    assert found["orders:shardId-000000000001"] == rows[1]
    assert found["clicks:shardId-000000000000"] == Lease("clicks:shardId-000000000000")
    again = cli.run("leases", "import-kcl", "--from-file", file, "--manifest", here.manifest)
    assert "nothing to change" in again.err


def test_positions_of_kcl_are_imported(cli: Cli) -> None:
    here = cli.world({"orders": 2, "clicks": 1})
    one, two = (shard["ShardId"] for shard in here.shards())
    table = kcl_table(here, Lease(one, owner="kcl", checkpoint=Position.after(5)), Lease(two, checkpoint=None))
    command = ("leases", "import-kcl", "--from-table", table, "--manifest", here.manifest, *QUICKLY, "--yes")
    cli.run(*command).ends(
        1,
        "its keys are such as 'shardId-000000000000', and the application reads clicks, orders",
        "select with --stream the one to which",
    )
    latest = (*command, "--stream", "orders", "--initial-position", "LATEST")
    with renewing(here, one, table):
        cli.run(*latest).ends(3, "is in use: kcl renews shardId-000000000000")
    cli.run(*command, "--stream", "orders").ends(
        1,
        f"{table} has no position of orders:{two}: the KCL application had not begun them",
        "give its initial position, as it is configured, with --initial-position",
    )
    assert here.leases() == {}
    cli.run(*latest).ends(0, f"orders:{two} begins at AT_TIMESTAMP:")
    assert _checkpoints(here) == {f"orders:{one}": "5", f"orders:{two}": "AT_TIMESTAMP"}
    own = cli.run("leases", "import-kcl", "--from-table", here.lease_table, "--manifest", here.manifest)
    assert "is the application's own lease table" in own.err


def _of_an_earlier_stream(here: Here, shard: str) -> Lease:
    return Lease(f"orders:{shard}", checkpoint=Position.after(7), stream=StreamIdentity(here.arn(), 1_500_000_000))


def kcl_table(here: Here, *rows: Lease) -> str:
    """The lease table of a KCL application, with its leader and some leases."""
    table = f"OrdersKcl-{here.lease_table}"
    create_lease_table(here.dynamodb, table)
    here.rows(*rows, table=table)
    here.dynamodb.put_item(TableName=table, Item={"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}})
    return table


def test_checkpoints_of_an_earlier_stream_are_not_exported(cli: Cli, here: Here) -> None:
    [shard] = (each["ShardId"] for each in here.shards())
    here.rows(_of_an_earlier_stream(here, shard))
    told = f"checkpoint orders:{shard} is from another stream: arn:"
    listed = here.run("leases list", "--json")
    assert listed.code == 0
    assert told in listed.err
    assert "created 2017-07-14T02:40:00+00:00. The stream is now arn:" in listed.err
    assert [row["streamCreated"] for row in listed.data["leases"]] == [1_500_000_000]
    lag = here.run("lag", "--json")
    assert (lag.code, told in lag.err) == (0, True)
    assert lag.data["applications"][0]["shards"][0]["position"] is None
    table = kcl_table(here)
    cli.run("leases", "export-kcl", "--table", table, "--manifest", here.manifest, *AT_ONCE, "--yes").ends(1, told)
    assert _table(here, table).keys() == {"Leader"}
    cli.refuse("DescribeStreamSummary")
    unsure = here.run("leases list")
    assert (unsure.code, unsure.err) == (0, "")
    cli.refuse()
    # Whatever is set by hand is of the stream as it is.
    assert cli.run("leases", "reset", "--to", "TRIM_HORIZON", "--manifest", here.manifest, "--yes", *AT_ONCE).code == 0
    assert "is from another stream" not in here.run("leases list").err
    assert "streamArn" not in here.leases()[f"orders:{shard}"]


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_kcl_continues_where_the_query_stopped(cli: Cli, several: bool) -> None:
    here = cli.world({"orders": 2, **({"clicks": 1} if several else {})})
    aggregate = next(aggregated([("a", b"%d" % number) for number in range(5)]))["Data"]
    one, two = (shard["ShardId"] for shard in here.shards())
    where = {"StreamName": here.streams["orders"], "PartitionKey": "k", "ExplicitHashKey": "1"}
    here.kinesis.put_record(Data=b"x", **where)
    last = here.kinesis.put_record(Data=aggregate, **where)
    assert last["ShardId"] == one
    with reading(here, leaseTimeout="8s") as query:
        query.until(6)
        query.commit()
    table = kcl_table(here, Lease("shardId-9", checkpoint=Position.after(5)), Lease("1:other:2:shardId-9"))
    command = ("leases", "export-kcl", "--table", table, "--manifest", here.manifest, *AT_ONCE)
    kinds = ("--multi-stream",) if several else ()
    if several:
        cli.run(*command, "--yes").ends(2, "this one reads clicks, orders: say with --stream which one")
    assert cli.run(*command, *kinds, "--dry-run").code == 0
    assert len(_table(here, table)) == 3
    here.rows(OWNED)
    with renewing(here, OWNED.key):
        cli.run(*command[:-2], *QUICKLY, *kinds, "--yes").ends(3, "is in use: host:1:abc renews #run:orders")
    assert cli.run(*command, *kinds, "--yes").code == 0
    found = _table(here, table)
    summary = here.kinesis.describe_stream_summary(StreamName=here.streams["orders"])["StreamDescriptionSummary"]
    stream = f"123456789012:{here.streams['orders']}:{int(summary['StreamCreationTimestamp'].timestamp())}"
    prefix = f"{stream}:" if several else ""
    shard = next(each for each in here.shards() if each["ShardId"] == one)
    assert found[f"{prefix}{one}"] == {
        "leaseKey": {"S": f"{prefix}{one}"},
        **({"streamName": {"S": stream}, "shardId": {"S": one}} if several else {}),
        "leaseCounter": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": last["SequenceNumber"]},
        "checkpointSubSequenceNumber": {"N": "4"},
        "startingHashKey": {"S": shard["HashKeyRange"]["StartingHashKey"]},
        "endingHashKey": {"S": shard["HashKeyRange"]["EndingHashKey"]},
    }
    assert found[f"{prefix}{two}"]["checkpoint"] == {"S": "TRIM_HORIZON"}
    assert "Leader" in found, "KCL's own rows stay"
    assert "1:other:2:shardId-9" in found, "and other streams'"
    assert ("shardId-9" in found) == several, "a row of this stream that nobody needs goes"
    cli.run(*command, *kinds, "--yes").ends(0, "nothing to change")


def test_reset_does_not_skip_an_open_shard(here: Here) -> None:
    (shard,) = (each["ShardId"] for each in here.shards())
    here.rows(Lease(f"orders:{shard}", checkpoint=Position.after(7)))
    command = ("leases reset", "--to", "SHARD_END", "--shard", shard, "--yes")
    here.run(*command).ends(2, f"--to SHARD_END: shard {shard} of stream 'orders' is open")
    assert _checkpoints(here) == {f"orders:{shard}": "7"}
    here.split()
    assert here.run(*command).code == 0
    assert _checkpoints(here) == {f"orders:{shard}": "SHARD_END"}


def _table(here: World, name: str) -> dict[str, Any]:
    return {item["leaseKey"]["S"]: item for item in here.dynamodb.scan(TableName=name)["Items"]}


def test_ages_follow_the_clock_of_aws(here: Here) -> None:
    here.rows(Lease(run_key("orders"), owner="a", checkpoint=None, lag=Lag(1, 0, at=round(time.time() * 1000))))
    with process("leases", "list", "--manifest", here.manifest, program=AN_HOUR_FAST) as running:
        out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert re.search(r" (\d+m)?[\d.]+s ago", out), out


def test_reset_with_an_unreadable_row_is_refused(cli: Cli) -> None:
    here = cli.world({"orders": 1})
    here.rows(Lease(f"orders:{here.shards()[0]['ShardId']}", checkpoint=Position.after(7)))
    here.dynamodb.put_item(TableName=here.lease_table, Item={"leaseKey": {"S": "broken"}})
    command = ("leases", "reset", "--to", "TRIM_HORIZON", "--manifest", here.manifest, *AT_ONCE, "--yes")
    cli.run(*command).ends(3, "lease row 'broken' has no attribute 'leaseCounter'", "Correct or delete the row first")
    assert cli.run(*command, "--force").code == 0


def test_reset_that_a_query_would_ignore_is_refused(here: Here) -> None:
    (parent,) = (each["ShardId"] for each in here.shards())
    here.split()
    left, right = sorted(each["ShardId"] for each in here.shards() if each["ShardId"] != parent)
    above = frozenset({parent})
    here.rows(
        Lease(f"orders:{parent}", checkpoint=SHARD_END),
        Lease(f"orders:{left}", checkpoint=Position.after(7), parents=above),
        Lease(f"orders:{right}", checkpoint=Position.parse("TRIM_HORIZON"), parents=above),
    )
    again = ("--to", "TRIM_HORIZON", "--yes", "--shard", parent)
    here.run("leases reset", *again).ends(2, f"reset those first: --shard {left} --to TRIM_HORIZON")
    assert _checkpoints(here)[f"orders:{parent}"] == "SHARD_END"
    assert here.run("leases reset", *again, "--shard", left).code == 0
    assert set(_checkpoints(here).values()) == {"TRIM_HORIZON"}
    here.run("leases reset", "--to", "AFTER:9", "--yes", "--shard", left).ends(
        2, f"{parent}, which comes before it, is not read to its end"
    )
