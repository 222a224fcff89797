"""The rows for a KCL application: never one without the hash keys that say where it lies."""

import asyncio
from typing import Any

import pytest

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo_tools.operate.kcl_rows import Naming, kcl_rows, require_all
from tests.support import virtual_time
from tests.support.aggregates import aggregated
from tests.support.messages import raises

SHARDS = {"shardId-1": Shard("shardId-1", ("shardId-0",), (0, 9), first=5)}


def made(**rows: Lease) -> tuple[list[Lease], list[str]]:
    by_id = {f"shardId-{name[1:]}": row for name, row in rows.items()}
    return asyncio.run(kcl_rows(None, "arn:orders", by_id, SHARDS, Naming(None)))


def test_what_a_row_lacks_comes_from_the_listing() -> None:
    (row,), _ = made(s1=Lease("orders:shardId-1", checkpoint=TRIM_HORIZON))
    assert (row.parents, row.starting_hash_key, row.ending_hash_key) == ({"shardId-0"}, "0", "9")


@pytest.mark.parametrize(("empty", "sub"), [(3, 1), (9, 0)])
def test_few_empty_answers_do_not_lose_a_record(empty: int, sub: int) -> None:
    data = next(aggregated([("a", b"1"), ("b", b"2")]))["Data"]

    class Kinesis:
        answers = 0

        async def get_shard_iterator(self, **_: object) -> dict[str, str]:
            return {"ShardIterator": "first"}

        async def get_records(self, **_: object) -> dict[str, Any]:
            self.answers += 1
            records = [{"SequenceNumber": "7", "Data": data}]
            return {"Records": records if self.answers > empty else [], "NextShardIterator": "next"}

    row = Lease("orders:shardId-1", checkpoint=Position.after(7), continuation=9)
    rows, remarks = virtual_time.run(kcl_rows(Kinesis(), "arn:orders", {"shardId-1": row}, SHARDS, Naming(None)))
    assert [each.sub for each in rows] == [sub]
    assert ("cannot be read any more" in str(remarks)) == (not sub)


def test_unlisted_shard_is_left_out() -> None:
    rows, remarks = made(s0=Lease("orders:shardId-0", checkpoint=SHARD_END), s1=Lease("orders:shardId-1"))
    assert [row.key for row in rows] == ["shardId-1"]
    assert remarks == ["shardId-0 is left out: the stream does not list it any more, so nothing of it is left"]
    complete = Lease("orders:shardId-0", checkpoint=SHARD_END, starting_hash_key="0", ending_hash_key="9")
    assert [row.key for row in made(s0=complete)[0]] == ["shardId-0"]


def test_shard_not_listed_yet_is_an_error() -> None:
    with raises(
        ConfigurationError,
        "arn:orders does not list shard shardId-2 yet, whose parents and hash keys a KCL row needs: nothing was written; "
        "try again in a minute",
    ):
        made(s1=Lease("orders:shardId-1"), s2=Lease("orders:shardId-2"))


def test_table_without_a_row_of_each_shard_is_not_exported() -> None:
    shards = [Shard(name, (), (0, 9), first=1) for name in ("s1", "s2")]
    require_all("lease table t", "orders", {name: Lease(f"orders:{name}") for name in ("s1", "s2")}, shards)
    with raises(
        ConfigurationError,
        "lease table t has no row for s2 of stream orders, nor for a parent or child: a run has ended before it had written the rows of all "
        "shards. Start the query, wait a minute, stop it, and export again",
    ):
        require_all("lease table t", "orders", {"s1": Lease("orders:s1")}, shards)
