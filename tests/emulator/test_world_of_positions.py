"""Whole programs and positions: where queries start and end, options that change between two starts, lease rows that others change."""

import json
from itertools import permutations

import pytest

from kinesis_efo.errors import ConfigurationError, DataLossError, LeaseTableError, StreamReplacedError
from kinesis_efo.leases.row import Lease
from tests.emulator.world import World, world
from tests.support.messages import raises

SHARDS = tuple(f"shardId-{number:012d}" for number in range(4))
NEXT_CENTURY = 4_102_444_800
KCL = ("leaseCounter", "checkpoint", "checkpointSubSequenceNumber", "ownerSwitchesSinceCheckpoint")
WAYS = {
    "subscriptions": {"readMode": "efo"},
    "polling": {"readMode": "polling"},
    "small buffer": {"bufferBytes": "1m", "maxBytesPerTrigger": "2000"},
    "other retries": {"retryTimeout": "3m", "leaseTimeout": "60s", "checkpointWritesPerSecond": "1"},
}


@pytest.mark.parametrize(("before", "after"), [*permutations(WAYS, 2)])
def test_query_continues_with_other_options(before: str, after: str) -> None:
    with world(shards=2) as w:
        w.warns("counts the data of records since 0.3", "earlier runs read it as")
        w.put(60)
        query = w.query(**WAYS[before])
        query.reads(60)
        query.stop()
        w.split()
        w.put(30)
        query.reads_only(["orders"], **WAYS[after])
        query.start()
        query.reads(90)


# Shows 76, invariant 10, lease rows changed.
def test_changed_lease_rows_do_not_change_the_rows_read() -> None:
    with world(shards=2) as w:
        query = w.query()
        w.put(20)
        query.reads(20)
        query.stop()
        rows = dict(w.kinesis.table.items)
        for read, changed in ((40, {}), (60, rows), (80, {})):
            w.put(20)
            query.start()
            query.reads(read)
            query.stop()
            w.kinesis.table.items = dict(changed)


# Shows leases of another stream, stream created again.
def test_checkpoints_of_a_former_stream_are_replaced() -> None:
    with world(shards=2) as w:
        w.put(20)
        former = w.query()
        former.reads(20)
        w.later(60)
        former.stop()
        w.later(3600)
        w.kinesis.recreate("orders", 1)
        w.put(20)
        w.warns("is from another stream", "this query is new, without a checkpoint")
        query = w.query()
        query.reads(20)
        w.later(60)
        query.stop()
        assert [key for key in w.kinesis.table.items if not key.startswith("#")] == [f"orders:{SHARDS[0]}"]
        w.put(20)
        w.query(startingPosition="LEASES").reads(20)


# Shows leases of another stream, stream created again.
def test_rows_of_a_former_stream_stay_until_a_query_reads() -> None:
    with world(shards=2) as w:
        w.put(20)
        former = w.query()
        former.reads(20)
        w.later(60)
        former.stop()
        w.kinesis.recreate("orders", 2)
        w.put(10)
        w.warns("is from another stream", "earlier runs read it as")
        former.start()
        former.fails(StreamReplacedError)
        w.later(60)
        assert "leases reset" in w.query(startingPosition="LEASES").fails(StreamReplacedError)


# A run that stayed alive for another query knew the list and the creation time of the former stream.
def test_stream_created_again_while_only_another_query_ran() -> None:
    with world(streams=("orders", "events"), options={"readMode": "polling"}) as w:
        stopped, _ = w.query(), w.query(["events"])
        w.later(10)
        stopped.stop()
        w.later(1000)
        w.kinesis.recreate("orders", 1)
        w.put(8, "orders")
        w.warns("created again", "earlier runs read it as", "is from another stream")
        stopped.start()
        stopped.fails(StreamReplacedError)
        assert stopped.rows == 0
        assert f"orders:{SHARDS[0]}" in w.kinesis.table.items, "the new stream is not read"


# Once a silent loss: the new stream's rows kept the positions of the former one, so that a start from them skipped records.
def test_stream_created_again_has_rows_of_its_own() -> None:
    with world(streams=("orders", "events"), retention_seconds=3600.0, options={"readMode": "polling"}) as w:
        w.warns("is new, without a checkpoint", "is from another stream")
        reader, _ = w.query(), w.query(["orders"])
        w.put(4, "orders")
        w.split("events")
        w.put(8, "events")
        reader.reads(12)
        w.later(30)
        reader.stop()
        w.later(10)
        w.kinesis.recreate("events", 3)
        w.put(16, "events")
        after = w.query(["orders", "events"])
        after.reads(20)
        w.later(30)
        after.stop()
        w.put(16, "events")
        w.later(10)
        w.kill_program()
        w.query(["events"], startingPosition="LEASES").reads(16)


# A run that replaced a dead one did not write lease rows before the next micro-batch.
def test_idle_shards_stay_proven_while_a_new_run_waits_for_a_trigger() -> None:
    with world(shards=2, retention_seconds=3600.0, options={"session.listens": "true"}) as w:
        w.put(8)
        query = w.query(trigger=3900.0)
        query.reads(8)
        w.later(60)
        w.kill_run()
        w.warns("LimitExceeded", "not renewed")
        w.later(4000)
        w.put(8)
        query.reads(16, within=4000)


def test_start_from_leases_reports_expired_generations_as_lost() -> None:
    with world(retention_seconds=3600.0) as w:
        w.put(10)
        query = w.query()
        query.reads(10)
        query.stop()
        for reshard in (w.split, w.merge, w.split):
            w.put(5)
            w.later(60)
            reshard()
        w.later(5400)
        w.put(5)
        w.warns("does not exist any more", "are gone", "LimitExceededException")
        assert "acceptDataLoss" in w.query(startingPosition="LEASES").fails(DataLossError)
        w.kill_program()
        w.query(startingPosition="LEASES", failOnDataLoss="false").reads(5, within=120)


# Once silent: a row at TRIM_HORIZON made the start one at today's trim horizon, although shards before it were trimmed.
def test_start_from_leases_reports_the_lost_beginning_of_a_child() -> None:
    with world(shards=2, retention_seconds=3600.0) as w:
        w.put(10)
        query = w.query()
        query.reads(10)
        w.later(60)
        query.stop()
        w.merge()
        w.put(5)
        w.later(4000)
        w.put(5)
        row = w.kinesis.table.items[f"orders:{SHARDS[1]}"]
        row["checkpoint"] = {"S": "TRIM_HORIZON"}  # as of a child that an earlier query has begun
        del row["continuation"]
        row.pop("readSince", None)
        w.warns("are gone")
        w.query(startingPosition="LEASES", failOnDataLoss="false").reads(5, within=120)
        assert [text for text in w.kinesis.reports if f"{SHARDS[2]} has not been read yet" in text.text]


def test_start_from_leases_with_losses_names_the_missing_row() -> None:
    with world(shards=3, retention_seconds=3600.0) as w:
        w.put(9)
        query = w.query()
        query.reads(9)
        w.later(60)
        query.stop()
        w.merge()
        w.later(5400)
        del w.kinesis.table.items[f"orders:{SHARDS[2]}"]
        assert f"no readable row for {SHARDS[2]} of" in w.query(startingPosition="LEASES").fails(LeaseTableError)


def test_start_from_leases_without_rows_is_an_error() -> None:
    with world() as w:
        query = w.query(startingPosition="LEASES")
        query.fails(LeaseTableError)
        with raises(
            LeaseTableError,
            "kinesis-efo option 'startingPosition' is LEASES, but lease table memory has no readable rows for stream "
            "'orders'. Copy them from the KCL application's table with `kinesis-efo leases import-kcl`, or start at "
            "TRIM_HORIZON or LATEST",
        ):
            query.reads(1)


def test_start_from_leases_uses_only_imported_kcl_rows() -> None:
    with world() as w:
        w.put(10)
        query = w.query()
        query.reads(10)
        w.later(60)
        query.stop()
        w.put(5)
        row = w.kinesis.table.items.pop(f"orders:{SHARDS[0]}")
        row = {name: row[name] for name in KCL if name in row} | {"leaseKey": {"S": SHARDS[0]}}
        w.kinesis.table.items = {SHARDS[0]: row}
        assert "import-kcl --from-table" in w.query(startingPosition="LEASES").fails(LeaseTableError)
        key = f"orders:{SHARDS[0]}"
        w.kinesis.table.items = {key: {**row, "leaseKey": {"S": key}}}
        w.query(startingPosition="LEASES").reads(5)


@pytest.mark.parametrize(("key", "position"), [(SHARDS[0], "AT_TIMESTAMP"), (f"orders:{SHARDS[0]}", "LATEST")])
def test_start_at_a_position_only_kcl_knows_is_refused(key: str, position: str) -> None:
    with world() as w:
        w.put(10)
        w.kinesis.table.items = {key: {**Lease(key).to_item(), "checkpoint": {"S": position}}}
        assert "import-kcl --from-table" in w.query(startingPosition="LEASES").fails(LeaseTableError)


def time(w: World, ago: float = 0.0) -> str:
    return f"AT_TIMESTAMP:{int((w.kinesis.now - ago) * 1000)}"


def test_query_begins_at_the_start_of_each_shard() -> None:
    with world(streams=("orders", "clicks"), shards=2) as w:
        w.put(10, key="key0")
        w.put(7, key="key1")
        w.put(7, "clicks")
        w.later(60)
        shard, other = (w.shard_of(key) for key in ("key0", "key1"))
        assert shard != other
        begin = {"orders": {shard: "TRIM_HORIZON", "*": time(w)}, "clicks": time(w)}
        w.split()
        w.put(20)
        w.put(5, "clicks")
        w.query(startingPosition=json.dumps(begin)).reads(35)


def test_streams_and_shards_have_separate_ends() -> None:
    with world(streams=("orders", "clicks"), shards=2) as w:
        shard = w.shard_of("key0")
        w.put(10, key="key0")
        w.put(10, key="key1")
        w.later(60)
        end = {"orders": {shard: time(w), "*": "LATEST"}, "clicks": time(w, 30)}
        w.later(60)
        w.put(7, key="key0")
        w.put(5, key="key1")
        w.put(5, "clicks")
        w.query(available_now=True, endingPosition=json.dumps(end)).ends(25)


@pytest.mark.parametrize("how", [{"available_now": True}, {"once": True}])
@pytest.mark.parametrize("closed", [False, True])
def test_end_before_the_start_reads_nothing(closed: bool, how: dict[str, bool]) -> None:
    with world() as w:
        w.put(10)
        end = f"AFTER:{w.kinesis.facts['orders'].shards[SHARDS[0]].records[4].sequence}"
        w.later(60)
        start = time(w)
        w.later(5)
        if closed:
            w.split()
        w.put(7)
        bounds = {"startingPosition": start, "endingPosition": json.dumps({"orders": {SHARDS[0]: end}})}
        query = w.query(**how, **bounds)
        query.ends(0)
        query.reads_only(["orders"], endingPosition="LATEST")
        query.start()
        query.ends(7)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("AT_TIMESTAMP:2999-01-01T00:00:00Z", "must not be in the future: "),
        ('{"clicks": "LATEST"}', "names 'clicks', but the query reads 'orders'"),
        ('{"orders": {"shardId-000000000009": "AFTER:1"}}', "names shard 'shardId-000000000009', which"),
        (
            f'{{"orders": {{"{SHARDS[0]}": "AFTER:{2 << 184 | NEXT_CENTURY << 148 | NEXT_CENTURY << 36 | 2}"}}}}',
            "of shard shardId-000000000000 is 2100-01-01",
        ),
        (f'{{"orders": {{"{SHARDS[0]}": "SHARD_END"}}}}', "is still open: LATEST is its tip"),
    ],
)
def test_impossible_end_is_an_error(end: str, message: str) -> None:
    with world() as w:
        assert message in w.query(available_now=True, endingPosition=end).fails(ConfigurationError)


@pytest.mark.parametrize("begin", ['{"visits": "LATEST"}', '{"orders": {"shardId-000000000009": "LATEST"}}'])
def test_impossible_start_is_an_error(begin: str) -> None:
    with world() as w:
        assert "names" in w.query(startingPosition=begin).fails(ConfigurationError)


@pytest.mark.parametrize("empties", [False, True])
@pytest.mark.parametrize("hours", [3, 26])
def test_offset_proves_an_idle_polled_shard_empty(hours: int, empties: bool) -> None:
    with world(shards=2) as w:
        mine, other = w.query(readMode="polling"), w.query(readMode="polling")
        other.stop()
        for _ in range(3):
            w.later(90)
            mine.stop()
            w.later(20 * 3600)
            mine.start()
        w.later(90)
        mine.stop()
        w.put(40)
        other.start()
        other.reads(40)
        other.stop()
        if empties:
            w.kinesis.table.items.clear()
        w.later(hours * 3600)
        mine.start()
        if hours < 24:
            mine.reads(40)
        else:
            w.warns("are gone")
            mine.fails(DataLossError)


def test_offset_of_one_query_hides_no_loss_of_another() -> None:
    with world(shards=2) as w:
        late = w.query(readMode="polling")
        w.later(1)
        late.stop()
        w.put(8)
        w.later(26 * 3600)
        other = w.query(readMode="polling")
        w.later(90)
        other.stop()
        other.start()
        w.later(5)
        w.warns("are gone")
        late.start()
        late.fails(DataLossError)


@pytest.mark.parametrize("is_job", [False, True])
@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_job_with_another_query_proves_an_idle_shard_empty(mode: str, is_job: bool) -> None:
    with world(shards=3) as w:
        w.later(30 * 3600)
        w.put(1, key="a")
        w.put(6)
        other = w.query(available_now=is_job, readMode=mode)
        job = w.query(available_now=True, startingPosition="LATEST", readMode=mode)
        for rows in range(4):
            job.ends(rows)
            w.later(90)
            other.stop()
            w.later(10 * 3600)
            w.put(1, key="a")
            other.start()
            job.start()
        job.ends(4)
        other.reads(11)


@pytest.mark.parametrize("mode", ["efo", "polling"])
@pytest.mark.parametrize("empties", [False, True])
@pytest.mark.parametrize("fetchers", [0, 2])
def test_job_that_ends_proves_idle_shards_of_an_old_stream_empty(fetchers: int, empties: bool, mode: str) -> None:
    with world(shards=3, fetchers=fetchers) as w:
        w.put(1, key="b")
        w.later(30 * 3600)
        w.put(1, key="a")
        job = w.query(available_now=True, readMode=mode)
        job.ends(1)
        w.put(1, key="b")
        for rows in range(3, 14):
            w.later(5 * 3600)
            if empties:
                w.kinesis.table.items.clear()
            w.put(1, key="a")
            job.start()
            job.ends(rows)


def test_daily_job_proves_an_idle_shard_of_a_long_retention_empty() -> None:
    with world(shards=2, options={"readMode": "polling"}, retention_seconds=7 * 24 * 3600.0) as w:
        w.put(4)
        job = w.query(available_now=True)
        for rows in range(4, 14):
            job.ends(rows)
            w.later(25 * 3600)
            w.put(1, key="key1")
            job.start()
        job.ends(14)


@pytest.mark.parametrize("interval", ["50s", "10m"])
def test_accepted_loss_of_one_query_hides_no_loss_of_another(interval: str) -> None:
    with world(shards=1, options={"idleCheckpointInterval": interval}) as w:
        w.put(4)
        one, other = w.query(), w.query()
        one.reads(4)
        other.reads(4)
        w.kill_program()
        w.later(1800)
        w.put(3)
        w.later(26 * 3600)
        w.warns("are gone")
        one.start()
        one.fails(DataLossError)
        one.accepts_one_loss()
        w.later(40)
        w.kill_program()
        w.later(60)
        other.start()
        other.fails(DataLossError)


def test_job_with_another_query_ends_after_one_proof() -> None:
    with world(shards=4, options={"readMode": "polling"}) as w:
        keys: dict[str, str] = {}
        for key in map(str, range(50)):
            keys.setdefault(w.shard_of(key), key)
        w.query().reads(0)
        for key in keys.values():
            w.put(1, key=key)
            w.later(60)
        w.later(1800 - 3 * 60)
        job = w.query(available_now=True, trigger=90.0)
        job.ends(4, within=900)
        assert job.batches <= 2


@pytest.mark.parametrize("is_first", [False, True])
def test_offset_proves_a_stream_that_other_queries_do_not_read(is_first: bool) -> None:
    with world(shards=1, streams=("orders", "clicks"), options={"readMode": "polling"}) as w:
        queries = both, _ = w.query(("orders", "clicks")), w.query(("clicks",))
        for _ in range(2):
            w.later(90)
            for each in queries:
                each.stop()
            w.kinesis.table.items.clear()
            w.later(15 * 3600)
            for each in queries[:: -1 if is_first else 1]:
                each.start()
                w.later(5)
        w.put(8, "orders")
        both.reads(8, within=900)


def test_query_that_has_passed_a_shard_lends_it_no_horizon() -> None:
    with world(shards=2, options={"readMode": "polling"}) as w:
        w.later(25 * 3600)
        busy = next(key for key in map(str, range(50)) if w.shard_of(key).endswith("1"))
        w.put(8, key=busy)
        query = w.query()
        query.reads(8)
        w.later(900)
        w.split()
        w.split()
        for rows in (12, 16):
            w.put(4, key=busy)
            query.reads(rows)
            w.later(90)
        w.query().reads(16)


def test_first_batch_does_not_begin_where_its_end_is_proven() -> None:
    with world() as w:
        w.put(5)
        w.later(18 * 3600)
        w.put(5)
        w.later(2 * 3600)
        query = w.query(once=True, catchUp="true")
        query.pause_sink(3600)
        query.plans()
        w.kill_program()
        w.later(10 * 3600)
        w.warns("are gone")
        query.start()
        query.fails(DataLossError)


def test_second_start_at_the_horizon_does_not_warn() -> None:
    with world() as w:
        w.later(30 * 3600)
        w.put(8)
        w.query().reads(8)
        w.later(60)
        w.query().reads(8)
