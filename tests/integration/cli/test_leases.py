"""`kinesis-efo leases`: guarded changes, and what must not be changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinesis_efo.leases import Lease
from kinesis_efo.positions import Position
from tests.integration.cli.conftest import Result, Switch
from tests.integration.cli.test_manifest import Refusing
from tests.support.world import World, create_lease_table

Run = Callable[..., Result]
QUICKLY = ("--lease-timeout", "1s")
AT_ONCE = ("--lease-timeout", "100ms")
"""Where every owner is dead."""


def _put(here: World, *leases: Lease, table: str | None = None) -> None:
    for lease in leases:
        here.dynamodb.put_item(TableName=table or here.lease_table, Item=lease.to_item())


def _checkpoints(here: World) -> dict[str, str]:
    return {key: row["checkpoint"]["S"] for key, row in here.leases().items()}


@contextmanager
def renewing(here: World, key: str, table: str | None = None) -> Iterator[None]:
    """A worker somewhere else, which renews a lease."""
    stopped = threading.Event()

    def work() -> None:
        while not stopped.wait(0.1):
            here.dynamodb.update_item(
                TableName=table or here.lease_table,
                Key={"leaseKey": {"S": key}},
                UpdateExpression="ADD leaseCounter :one",
                ExpressionAttributeValues={":one": {"N": "1"}},
            )

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _owned(here: World, number: int = 0) -> Lease:
    return Lease(here.shards()[number]["ShardId"], owner="host:1:abc", checkpoint=Position.after(7), run="r")


def test_list(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 2})
    first, second = (shard["ShardId"] for shard in here.shards())
    _put(here, _owned(here), Lease(second, checkpoint=Position.at_timestamp(1_700_000_000_000)))
    here.dynamodb.put_item(TableName=here.lease_table, Item={"leaseKey": {"S": "broken"}})
    found = run("leases", "list", "--manifest", here.manifest, "--json")
    assert found.code == 0
    assert [(row["shardId"], row["checkpoint"], row["owner"]) for row in found.data["leases"]] == [
        (first, "AFTER:7", "host:1:abc"),
        (second, "AT_TIMESTAMP:1700000000000", None),
    ]
    shown = run("leases", "list", "--manifest", here.manifest, "--shard", second)
    assert "AT_TIMESTAMP:2023-11-14T22:13:20.000Z" in shown.out
    assert first not in shown.out
    assert "not listed: lease row 'broken' has no attribute 'leaseCounter'" in shown.err


def test_release_frees_what_a_dead_worker_left(run: Run, world: Callable[..., World]) -> None:
    here = world()
    _put(here, _owned(here))
    found = run("leases", "release", "--manifest", here.manifest, *AT_ONCE, "--yes", "--json")
    assert found.code == 0
    assert [(each["change"], each["owner"]) for each in found.data["changes"]] == [("released", "host:1:abc")]
    assert found.data["written"]
    [row] = here.leases().values()
    assert "leaseOwner" not in row
    assert row["checkpoint"] == {"S": "7"}
    again = run("leases", "release", "--manifest", here.manifest, *AT_ONCE)
    assert (again.code, "nothing to change" in again.err) == (0, True)


@pytest.mark.parametrize("command", [("release",), ("reset", "--to", "TRIM_HORIZON")])
def test_nothing_is_taken_from_a_live_worker(run: Run, world: Callable[..., World], command: tuple[str, ...]) -> None:
    here = world()
    lease = _owned(here)
    _put(here, lease)
    with renewing(here, lease.key):
        found = run("leases", *command, "--manifest", here.manifest, *QUICKLY, "--yes", "--json")
        assert (found.code, found.out) == (3, "")
        assert "is in use: host:1:abc renews shardId-000000000000. Nothing was changed" in found.err
        assert here.leases()[lease.key]["leaseOwner"] == {"S": "host:1:abc"}
        forced = run("leases", *command, "--manifest", here.manifest, *QUICKLY, "--yes", "--force", "--json")
    assert (forced.code, forced.data["written"]) == (0, True)
    assert "leaseOwner" not in here.leases()[lease.key]


def test_nothing_is_changed_without_a_yes(run: Run, world: Callable[..., World]) -> None:
    here = world()
    _put(here, _owned(here))
    before = here.leases()
    asked = run("leases", "release", "--manifest", here.manifest, *AT_ONCE)
    assert asked.code == 3
    assert "Nobody can be asked here: nothing was changed. Say --yes" in asked.err
    tried = run("leases", "release", "--manifest", here.manifest, *AT_ONCE, "--dry-run", "--json")
    assert (tried.code, tried.data["written"], len(tried.data["changes"])) == (0, False, 1)
    no = run("leases", "release", "--manifest", here.manifest, *AT_ONCE, stdin="n\n", typed=True)
    assert (no.code, "nothing was changed" in no.err) == (3, True)
    assert here.leases() == before
    assert run("leases", "release", "--manifest", here.manifest, *AT_ONCE, stdin="y\n", typed=True).code == 0
    assert here.leases() != before


def test_reset_of_a_stream_follows_its_lineage(run: Run, world: Callable[..., World]) -> None:
    here = world()
    parent = here.shards()[0]["ShardId"]
    here.kinesis.split_shard(StreamName=here.streams["orders"], ShardToSplit=parent, NewStartingHashKey=str(2**127))
    here.wait_active()
    left, right = (shard["ShardId"] for shard in here.shards()[1:])
    _put(here, Lease(left, checkpoint=Position.after(7)), Lease(right, checkpoint=Position.after(8)))
    oldest = run("leases", "reset", "--to", "TRIM_HORIZON", "--manifest", here.manifest, "--yes")
    assert oldest.code == 0
    assert _checkpoints(here) == {parent: "TRIM_HORIZON"}
    assert "A query that has a checkpoint goes on from it" in oldest.err
    assert run("leases", "reset", "--to", "LATEST", "--manifest", here.manifest, "--yes").code == 0
    assert _checkpoints(here) == {left: "AT_TIMESTAMP", right: "AT_TIMESTAMP"}
    assert here.leases()[left]["parentShardId"] == {"SS": [parent]}
    one = run("leases", "reset", "--to", "AFTER:123", "--shard", left, "--manifest", here.manifest, "--yes")
    assert one.code == 0
    assert _checkpoints(here) == {left: "123", right: "AT_TIMESTAMP"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("reset", "--to", "yesterday"), "--to must be TRIM_HORIZON"),
        (("reset", "--to", "AFTER:5"), "--to AFTER is a position inside one shard: say which with --shard"),
        (("reset", "--to", "TRIM_HORIZON", "--shard", "shardId-9"), "has no lease for shardId-9 of orders"),
        (("release", "--lease-timeout", "soon"), "--lease-timeout must be a duration such as 10s; got 'soon'"),
        (("list", "--stream", "nope"), "'nope', but the manifest"),
        (("import-kcl",), "needs --from-table or --from-file, one of them"),
        (("import-kcl", "--from-table", "no-such-table"), "lease table no-such-table in us-east-1 does not exist"),
        (("import-kcl", "--from-file", "none.json"), "--from-file none.json cannot be read: No such file"),
        (("export", "--output", "/no/such/folder/x"), "cannot be written: No such file"),
        (("list", "--external-id", "x"), "--external-id goes with --role-arn"),
    ],
)
def test_bad_input(run: Run, world: Callable[..., World], arguments: tuple[str, ...], said: str) -> None:
    found = run("leases", *arguments, "--manifest", world().manifest)
    assert (found.code, found.out) == (1, "")
    assert said in found.err


def test_a_table_that_is_missing_or_refuses(run: Run, world: Callable[..., World], switch: Switch) -> None:
    here = world()
    switch.faults = Refusing("Scan")
    refused = run("leases", "list", "--manifest", here.manifest)
    assert refused.code == 1
    assert "not allowed: dynamodb:Scan" in refused.err
    switch.faults = Refusing()
    here.dynamodb.delete_table(TableName=here.lease_table)
    gone = run("leases", "release", "--manifest", here.manifest)
    assert gone.code == 1
    assert "does not exist; it is declared by the stack of application 'lake'" in gone.err


def test_an_export_comes_back(run: Run, world: Callable[..., World], tmp_path: Path) -> None:
    here = world({"orders": 2, "clicks": 1})
    rows = [
        Lease("orders:shardId-000000000000", checkpoint=Position.after(5), sub=2, parents=frozenset({"shardId-9"})),
        Lease("orders:shardId-000000000001", checkpoint=Position.at_timestamp(44)),
        Lease("clicks:shardId-000000000000", owner="host:1:abc"),
    ]
    _put(here, *rows)
    file = tmp_path / "leases.json"
    assert run("leases", "export", "--manifest", here.manifest, "--output", file).code == 0
    printed = run("leases", "export", "--manifest", here.manifest)
    assert {item["leaseKey"]["S"] for item in json.loads(printed.out)["Items"]} == {row.key for row in rows}
    for key in here.leases():
        here.dynamodb.delete_item(TableName=here.lease_table, Key={"leaseKey": {"S": key}})
    back = run("leases", "import-kcl", "--from-file", file, "--manifest", here.manifest, "--yes", "--json")
    assert (back.code, len(back.data["changes"])) == (0, 3)
    found = {key: Lease.from_item(row) for key, row in here.leases().items()}
    assert found["orders:shardId-000000000000"] == rows[0]
    assert found["clicks:shardId-000000000000"] == Lease("clicks:shardId-000000000000")
    again = run("leases", "import-kcl", "--from-file", file, "--manifest", here.manifest)
    assert "nothing to change" in again.err


def test_positions_of_a_kcl_application(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 2, "clicks": 1})
    table = f"OrdersKcl-{here.lease_table}"
    create_lease_table(here.dynamodb, table)
    one, two = (shard["ShardId"] for shard in here.shards())
    _put(here, Lease(one, owner="kcl", checkpoint=Position.after(5)), Lease(two, checkpoint=None), table=table)
    leader = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}
    here.dynamodb.put_item(TableName=table, Item=leader)
    command = ("leases", "import-kcl", "--from-table", table, "--manifest", here.manifest, *QUICKLY, "--yes")
    unsaid = run(*command)
    assert unsaid.code == 1
    assert "its keys are such as 'shardId-000000000000', and the application reads clicks, orders" in unsaid.err
    assert "say with --stream to which of them" in unsaid.err
    with renewing(here, one, table):
        alive = run(*command, "--stream", "orders")
    assert alive.code == 3
    assert "is in use: kcl renews shardId-000000000000" in alive.err
    assert here.leases() == {}
    done = run(*command, "--stream", "orders")
    assert done.code == 0
    assert f"orders:{two} begins now: KCL had stored no position" in done.err
    assert _checkpoints(here) == {f"orders:{one}": "5", f"orders:{two}": "AT_TIMESTAMP"}
    own = run("leases", "import-kcl", "--from-table", here.lease_table, "--manifest", here.manifest)
    assert "is the application's own lease table" in own.err
