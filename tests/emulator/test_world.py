"""Whole programs through stops, kills and reshards: one query."""

from typing import Any

import pytest

from kinesis_efo.errors import (
    AlreadyRunningError,
    ConfigurationError,
    DataLossError,
    FetcherError,
    LeaseLostError,
    RetriesExhaustedError,
)
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.leases.keys import run_key
from kinesis_efo.run.losses import Losses
from tests.emulator.loss_world import LossWorld
from tests.emulator.world import world
from tests.support.messages import raises

everywhere = pytest.mark.parametrize("fetchers", [0, 2])
both_modes = pytest.mark.parametrize("mode", ["efo", "polling"])
versions = pytest.mark.parametrize("spark", [(4, 0), (4, 3)])


# Shows 52, 53.
@both_modes
@everywhere
def test_shard_that_ends_while_its_query_is_stopped(fetchers: int, mode: str) -> None:
    with world(fetchers=fetchers, options={"readMode": mode}) as w:
        w.put(10)
        query = w.query().reads(10).stop()
        for change in (w.split, w.merge, w.split):
            w.put(10)
            change()
        w.put(10)
        query.start().reads(50)


# Shows 51, 52, 56, invariant 8.
@both_modes
@everywhere
def test_splits_and_merges_while_a_query_reads(fetchers: int, mode: str) -> None:
    with world(shards=2, fetchers=fetchers, options={"readMode": mode}) as w:
        query = w.query(maxRecordsPerTrigger="7")
        for change in (w.split, w.merge, w.merge, w.split):
            w.put_for(10, every=0.5)
            change()
        query.reads(80, within=180)


# Shows 12, 40, invariant 1, invariant 9.
@everywhere
def test_micro_batch_repeats_after_its_planner_dies(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        w.put(20)
        query = w.query(maxRecordsPerTrigger="5").pause_sink(20).plans()
        query.kill()
        w.put(20)
        query.start().reads(40, within=120)


# Shows invariant 6.
@everywhere
def test_sink_that_is_down_stops_reading_within_the_budget(fetchers: int) -> None:
    with world(fetchers=fetchers, options={"bufferBytes": "1m"}) as w:
        query = w.query().follows(1).pause_sink(1800)
        w.put_for(1500, every=10, size=50_000)
        query.reads(151, within=900)


# Shows driver killed, invariant 13, invariant 4.
@everywhere
def test_scans_of_one_micro_batch_have_the_same_rows(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        query = w.query(scans=3, maxRecordsPerTrigger="10")
        w.put_for(60, every=1)
        w.kill_program()
        w.put(10)
        query.start().reads(70, within=180)


# Shows invariant 1.
@both_modes
@everywhere
def test_ending_query_reads_what_existed_at_its_start(fetchers: int, mode: str) -> None:
    with world(shards=2, fetchers=fetchers, options={"readMode": mode}) as w:
        w.put(30)
        query = w.query(available_now=True, maxRecordsPerTrigger="10").ends(30)
        query.start().ends(30)
        w.put(5)
        query.start().ends(35)


def test_frozen_run_fails_its_query_after_warnings() -> None:
    with world(options={"retryTimeout": "120s"}) as w:
        query = w.query().follows(10)
        w.warns("has not answered")
        w.freeze_run(3600)
        assert "stopped" in query.fails(FetcherError, within=400)
        assert any("has not answered" in report.text for report in w.kinesis.reports)


# Shows invariant 3.
@pytest.mark.parametrize(
    "limit", [{"maxRecordsPerTrigger": "6"}, {"maxBytesPerTrigger": "6k"}], ids=["records", "data"]
)
@everywhere
def test_micro_batches_have_no_more_than_their_limit(fetchers: int, limit: dict[str, str]) -> None:
    with world(shards=3, fetchers=fetchers, max_event_records=1, options=limit) as w:
        w.warns("'maxBytesPerTrigger' counts the data of records since 0.3")
        w.put(60, size=1_000)
        query = w.query().reads(60, within=180)
        assert max(map(len, query.spark.checkpoint.rows.values())) == 6
        assert len(w.kinesis.reports) == ("maxBytesPerTrigger" in limit)


# Shows 9.
@everywhere
def test_query_waits_for_a_larger_micro_batch(fetchers: int) -> None:
    with world(fetchers=fetchers) as w:
        query = w.query(minBytesPerTrigger="1m", maxTriggerDelay="60s").follows(1)
        w.put(5, wait=30)
        assert query.rows == 1
        query.reads(6, within=60)
        query.follows(30, size=50_000, within=15)


@pytest.mark.parametrize("options", [{}, {"readMode": "polling", "pollingInterval": "10s"}], ids=["efo", "polling"])
@everywhere
def test_idle_shards_stay_readable_for_longer_than_retention(fetchers: int, options: dict[str, str]) -> None:
    with world(shards=2, fetchers=fetchers, options=options, retention_seconds=3600.0) as w:
        w.put(4)
        query = w.query(trigger=60, idleCheckpointInterval="600s").reads(4, within=120)
        w.later(3 * 3600)
        query.stop()
        w.later(1800)
        w.put(4)
        query.start().reads(8, within=120)


@everywhere
def test_added_stream_is_read_from_its_beginning(fetchers: int) -> None:
    with world(streams=("orders", "events"), fetchers=fetchers) as w:
        w.warns("stream events is new to this query", "stream orders is no longer read")
        w.put(10)
        w.put(10, "events")
        query = w.query(["orders"]).reads(10).stop()
        query.reads_only(["orders", "events"])
        query.start().reads(20).stop()
        query.reads_only(["events"], removedStreams="drop")
        w.put(5)
        w.put(5, "events")
        query.start().reads(25)


# Shows invariant 4.
@both_modes
def test_repeated_micro_batch_keeps_its_rows_despite_empty_answers(mode: str) -> None:
    wrong = {"wrong_answers": "quiet", "wrong_answers_rate": 1.0, "wrong_answers_in_a_row": 4}
    with world(options={"readMode": mode}, **wrong) as w:
        w.put(40)
        query = w.query(maxRecordsPerTrigger="30").pause_sink(60).plans()
        w.kill_program()
        query.start().reads(40, within=300)


def test_stream_is_dropped_only_after_its_last_micro_batch() -> None:
    with world(streams=("orders", "events"), warns=["stream events is no longer read"]) as w:
        w.put(10)
        w.put(10, "events")
        query = w.query().pause_sink(60).plans()
        w.kill_program()
        query.reads_only(["orders"], removedStreams="drop")
        assert "let the query first finish its last micro-batch" in query.start().fails(ConfigurationError)
        query.reads_only(["orders", "events"], removedStreams="fail")
        query.start().reads(20, within=120).stop()
        query.reads_only(["orders"], removedStreams="drop")
        w.put(5)
        query.start().reads(25)


# Shows invariant 10.
@everywhere
def test_start_from_leases_reads_unprocessed_records(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers, options={"checkpointWritesPerSecond": "10"}) as w:
        w.put(20)
        first = w.query().reads(20)
        w.later(60)
        first.stop()
        w.put(10)
        w.query(startingPosition="LEASES").reads(10, within=90)


@everywhere
def test_max_shard_skew_holds_shards_to_the_slowest(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers, options={"maxShardSkew": "60s"}) as w:
        for _ in range(10):
            w.put(8, wait=30)
        query = w.query(maxRecordsPerTrigger="10").reads(80, within=300)
        for rows in query.spark.checkpoint.rows.values():
            times = [
                next(
                    each.arrival
                    for each in w.kinesis.facts["orders"].shards[row.shard].records
                    if each.sequence == row.sequence
                )
                for row in rows
            ]
            assert not times or max(times) - min(times) <= 91


def test_ending_query_waits_for_no_shard_at_its_end() -> None:
    with world(shards=2, options={"maxShardSkew": "10s"}) as w:
        w.put(16)
        query = w.query(available_now=True).ends(16)
        for _ in range(10):
            w.put(1, key="key0", wait=5)
        query.start().ends(26, within=30)


@everywhere
def test_hot_shard_does_not_delay_the_others(fetchers: int) -> None:
    with world(shards=8, fetchers=fetchers, options={"bufferBytes": "1m"}) as w:
        query = w.query(trigger=1)
        for number in range(1, 6):
            w.put(30, size=20_000, key="hot")
            w.put(8)
            query.reads(38 * number, within=60)


# Shows invariant 13.
@versions
@everywhere
def test_first_micro_batch_repeats_after_a_kill(fetchers: int, spark: tuple[int, int]) -> None:
    with world(shards=2, fetchers=fetchers, spark=spark) as w:
        w.put(20)
        query = w.query(maxRecordsPerTrigger="8", scans=2).pause_sink(60).plans()
        w.later(5)
        w.kill_program()
        w.put(20)
        query.start().reads(40, within=200)


@everywhere
def test_first_micro_batch_of_an_earlier_version_is_finished(fetchers: int) -> None:
    """Its log does not say where it begins, so the begin that is chosen has the mark of another checkpoint."""
    with world(shards=2, fetchers=fetchers, options={"bufferBytes": "1m"}) as w:
        w.put(20)
        query = w.query().pause_sink(60).plans()
        w.later(5)
        w.kill_program()
        query.forget("begin")
        query.start().reads(20, within=90)
        for _ in range(4):
            query.follows(20, size=30_000)


@versions
@everywhere
def test_query_with_trigger_once_reads_up_to_the_tips(fetchers: int, spark: tuple[int, int]) -> None:
    options = {"catchUp": "true"} if spark == (4, 0) else {}
    with world(shards=2, fetchers=fetchers, spark=spark, options=options) as w:
        w.put(20)
        query = w.query(once=True).ends(20)
        w.put(20)
        query.start().ends(40)
        assert query.batches == 2


@everywhere
def test_query_ends_at_a_time(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        w.put(20, wait=60)
        end = int(w.kinesis.now * 1000)
        w.later(60)
        w.put(20)
        w.query(available_now=True, endingPosition=f"AT_TIMESTAMP:{end}", maxRecordsPerTrigger="5").ends(20)


def test_time_at_which_a_shard_ends_holds_for_its_children() -> None:
    with world() as w:
        w.put(5)
        w.split()
        w.put(7, wait=60)
        end = f"AT_TIMESTAMP:{int(w.kinesis.now * 1000)}"
        w.later(60)
        w.put(11)
        w.query(available_now=True, endingPosition=f'{{"orders": {{"shardId-000000000000": "{end}"}}}}').ends(12)


# Shows 47, 58.
@both_modes
@everywhere
def test_query_starts_at_a_time_between_reshards(fetchers: int, mode: str) -> None:
    with world(shards=2, fetchers=fetchers, options={"readMode": mode}) as w:
        w.put(20)
        w.split()
        w.put(20, wait=60)
        start = int(w.kinesis.now * 1000)
        w.put(20)
        w.merge()
        w.put(20)
        w.query(startingPosition=f"AT_TIMESTAMP:{start}").reads(40)


@everywhere
def test_idle_shards_are_stored_once_per_interval(fetchers: int) -> None:
    with world(shards=4, fetchers=fetchers) as w:
        w.put(8)
        query = w.query(idleCheckpointInterval="600s").reads(8)
        w.later(30)
        before = query.batches
        w.later(3600)
        assert 4 <= query.batches - before <= 7


# Shows invariant 13.
@versions
@everywhere
def test_checkpoint_of_an_earlier_version_continues(fetchers: int, spark: tuple[int, int]) -> None:
    with world(shards=2, fetchers=fetchers, spark=spark) as w:
        w.put(20)
        query = w.query(maxRecordsPerTrigger="5").reads(20, within=120).stop()
        query.forget("mark", "lasts", "horizons", "created", "begin")
        w.split()
        w.put(20)
        query.start().reads(40, within=120)
        w.kill_run()
        query.follows(5, within=60)


# Shows checkpoint restored.
@everywhere
def test_restored_checkpoint_is_reported_and_read_again(fetchers: int) -> None:
    with world(fetchers=fetchers) as w:
        query = w.query().follows(10)
        query.spark.keep()
        for _ in range(3):
            w.put(10, wait=60)
        w.kill_program()
        query.spark.restore(certain=True)
        w.warns("checkpoint had been further by", "is behind")
        query.start()
        w.later(120)
        w.put(10, wait=30)
        assert any("had been further by" in report.text for report in w.kinesis.reports)


# Shows 1, invariant 11.
@pytest.mark.parametrize("ends", [False, True])
@everywhere
def test_lease_of_a_program_that_still_reads_is_refused(fetchers: int, ends: bool) -> None:
    with world(fetchers=fetchers) as w:
        w.put(10)
        first = w.query().reads(10)
        there = w.program
        w.program = w.another_program("there")
        assert "lake" in w.query(available_now=ends).fails(AlreadyRunningError, within=600)
        w.program = there
        first.follows(10)


@everywhere
def test_stopped_query_closes_its_subscriptions_and_releases_its_lease(fetchers: int) -> None:
    with world(shards=3, fetchers=fetchers) as w:
        w.query().follows(10).stop()
        w.later(20)
        assert not w.subscribers()
        assert w.kinesis.table.lease(run_key("orders")).owner is None


# Shows invariant 11, process stopped.
@everywhere
def test_query_stops_reading_when_its_lease_is_lost(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        query = w.query().follows(10)
        w.take_lease()
        query.fails(LeaseLostError)
        with raises(
            LeaseLostError,
            "elsewhere took the lease on stream orders while this query was reading: the application has a second query, "
            "or this one was stopped for longer than leaseTimeout. Nothing was lost; run one query per application",
        ):
            query.reads(11)
        w.later(10)
        assert not w.subscribers()


# Shows invariant 14, position behind retention.
@everywhere
def test_micro_batch_expired_before_its_repetition_is_an_error(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers, retention_seconds=3600.0) as w:
        w.put(20)
        query = w.query().reads(20).pause_sink(300)
        w.put(20)
        query.plans()
        w.kill_program()
        w.later(3700)
        w.warns("are gone")
        assert "acceptDataLoss" in query.start().fails(DataLossError, within=200)


# Shows invariant 14, position behind retention.
# Shows start before the retention.
@both_modes
@pytest.mark.parametrize("given", ["{}", '{{"orders": "{}"}}', '{{"orders": {{"shardId-000000000000": "{}"}}}}'])
def test_start_at_a_time_before_retention_is_an_error(given: str, mode: str) -> None:
    with world(options={"readMode": mode}, retention_seconds=3600.0) as w:
        w.put(10, wait=4000)
        w.put(5)
        w.warns("are gone")
        query = w.query(startingPosition=given.format(f"AT_TIMESTAMP:{int((w.kinesis.now - 4100) * 1000)}"))
        assert "acceptDataLoss" in query.fails(DataLossError)
        query.accepts_one_loss().reads(5)


def test_start_before_a_trimmed_generation_names_older_shards() -> None:
    with world(retention_seconds=3600.0) as w:
        w.put(10, wait=60)
        w.split()
        w.later(4000)
        w.put(5)
        w.warns("are gone")
        query = w.query(startingPosition=f"AT_TIMESTAMP:{int((w.kinesis.now - 4200) * 1000)}")
        query.fails(DataLossError)
        with raises(
            DataLossError,
            "stream 'orders', shard ..., and those of older shards that are not listed any more, are gone. "
            "To continue without them once, set kinesis-efo option 'acceptDataLoss' to "
            '{"orders":{"shardId-000000000001":"AT_TIMESTAMP:...","shardId-000000000002":"AT_TIMESTAMP:..."}} '
            "(`kinesis-efo doctor --checkpoint` prints it for all shards); option 'failOnDataLoss=false' accepts every "
            "loss. A longer retention period of the stream leaves more time to read it",
        ):
            query.reads(5)


@both_modes
def test_start_from_leases_after_expired_records_is_an_error(mode: str) -> None:
    with world(options={"readMode": mode}, warns=["are gone"]) as w:
        before = w.query()
        w.later(90)
        before.stop()
        w.later(60)
        w.put(10, wait=26 * 3600)
        w.put(5)
        assert "acceptDataLoss" in w.query(startingPosition="LEASES").fails(DataLossError)


@both_modes
def test_children_start_although_the_list_is_outdated(mode: str) -> None:
    with world(shards=2, options={"readMode": mode, "maxShardSkew": "10s"}, warns=["maxShardSkew"]) as w:
        query = w.query().follows(20)
        w.kinesis.list_age = 60.0
        w.split()
        query.follows(20).stop()
        query.start()
        w.split()
        query.follows(20, within=30)
        w.later(80)


# Shows 55, invariant 14, position behind retention.
@everywhere
def test_query_down_for_longer_than_retention_is_an_error(fetchers: int) -> None:
    with world(fetchers=fetchers, retention_seconds=3600.0) as w:
        w.put(20)
        query = w.query().reads(20).stop()
        w.put(20, wait=4000)
        w.put(5)
        assert "acceptDataLoss" in query.start().fails(DataLossError, within=200)
        query.reads_only(["orders"], failOnDataLoss="false")
        w.warns("are gone")
        query.start().reads(25, within=60)


# Shows whole shard trimmed.
@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("spark", [(4, 0), (4, 3)])
def test_query_that_ends_reports_a_generation_that_was_trimmed(spark: tuple[int, int], fails: str) -> None:
    options = {"failOnDataLoss": fails} | ({"catchUp": "true"} if spark < (4, 2) else {})
    with world(spark=spark, retention_seconds=3600.0, options=options) as w:
        w.warns("does not exist any more", "are gone")
        w.put(10)
        query = w.query(once=True).ends(10)
        for records in (5, 8):
            w.put(records)
            w.split()
            w.later(5)
        w.later(3620)
        w.put(8)
        query.accepts_losses(18)


# Each generation of shardsneeded a restart with another acceptance.
def test_losses_of_a_gone_shard_and_its_children_are_one_error() -> None:
    with world(retention_seconds=3600.0) as w:
        w.put(10)
        query = w.query().reads(10).stop()
        w.put(5)
        w.split()
        w.put_for(3500, every=100)
        w.later(1000)
        w.warns("are gone", "does not exist any more")
        query.start().fails(DataLossError)
        query.accepts_one_loss().reads(35)


# Shows shards vanish or appear.
@everywhere
def test_generation_trimmed_while_listing_fails_is_reported(fetchers: int) -> None:
    options = {"failOnDataLoss": "false"}
    with world(fetchers=fetchers, retention_seconds=3600.0, options=options) as w:
        w.warns("does not exist any more", "are gone", "cannot tell for now", "cannot be listed", "from its beginning")
        w.put(10)
        query = w.query().reads(10).pause_sink(3900)
        w.put(1)
        query.plans()
        for records in (5, 8):
            w.put(records, wait=5)
            w.split()
            w.later(5)
        w.later(3000)
        w.put(8, wait=700)
        w.fail("ListShards", after=100, seconds=250)
        query.reads(24, within=900)


@pytest.mark.parametrize("others", [0, 1])
def test_query_that_ends_waits_until_its_shards_are_listed(others: int) -> None:
    with world(warns=["is not listed yet"]) as w:
        for _ in range(others):
            w.query()
        query = w.query().follows(10)
        w.kinesis.list_age = 60.0
        w.split()
        w.put(10)
        w.all_read(20)
        query.stop()
        w.put(10)
        query.spark.ends_at_tips = True
        query.start().ends(30)


@pytest.mark.parametrize("operation", ["GetRecords", "GetShardIterator"])
def test_search_for_the_tip_reports_an_outage(operation: str) -> None:
    with world(warns=["still searching for its end after"]) as w:
        w.put(10)
        w.fail(operation, after=0.0, seconds=100.0)
        w.query(available_now=True).ends(10)
        first, *later = [report.at - w.kinesis.fails_until for report in w.kinesis.reports]
        assert -95.0 <= first < -80.0
        assert len(later) > 2


def test_ending_query_reads_children_of_shards_listed_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers give closed shards a placeholder as their last number, which is ignored."""

    def open_all(_: LossWorld, answer: dict[str, Any], __: object) -> None:
        for shard in answer["Shards"]:
            shard["SequenceNumberRange"].pop("EndingSequenceNumber", None)

    monkeypatch.setattr(LossWorld, "age", open_all)
    with world() as w:
        w.put(10)
        w.split()
        w.put(10)
        w.query(available_now=True).ends(20)


def test_ending_query_waits_for_children_that_cannot_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [False] * 20

    async def checked(losses: Losses, reached: Any) -> bool:
        ended = any(position.is_end for position in reached.values())
        return answers.pop() if ended and answers else await check(losses, reached)

    check = Losses.check_starting
    monkeypatch.setattr(Losses, "check_starting", checked)
    with world() as w:
        w.put(10)
        w.split()
        w.put(10)
        w.query(available_now=True).ends(20)


@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_search_for_the_tip_survives_expired_iterators(mode: str) -> None:
    with world(options={"readMode": mode}) as w:
        w.put(10)
        w.warns("still searching for its end after")
        query = w.query(available_now=True).ends(10)
        w.put(10, wait=3600)
        w.expire_iterators(20.0)
        query.start().ends(20)


@pytest.mark.parametrize("how", [{"available_now": True}, {"once": True}])
def test_tip_that_is_never_found_is_an_error(how: dict[str, bool]) -> None:
    with world(options={"readMode": "polling"}, warns=["still searching for its end after"]) as w:
        w.put(5)
        w.answer_stuck()
        w.query(**how).fails(RetriesExhaustedError, within=1500)  # type: ignore[arg-type]


@pytest.mark.parametrize(("how", "opened"), [({"available_now": True}, 1), ({"once": True}, 4)])
def test_ending_query_with_nothing_new_does_not_subscribe(how: dict[str, bool], opened: int) -> None:
    with world(shards=4, streams=("orders", "audit")) as w:
        w.put(10)
        w.put(10, stream="audit")
        query, other = w.query(["orders"], **how), w.query(["audit"])  # type: ignore[arg-type]
        query.ends(10)
        other.reads(10)
        w.later(10)
        subscribed = w.calls("SubscribeToShard")
        query.start().ends(10, within=5)
        assert w.calls("SubscribeToShard") == subscribed
        w.put(1)
        query.start().ends(11)
        assert w.calls("SubscribeToShard") == subscribed + opened


# A query stored its positions only from the end of its first micro-batch in a run on, which a job with `Trigger.Once` has none of.
@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_once_jobs_keep_the_rows_of_idle_shards_up_to_date(mode: str) -> None:
    with world(options={"readMode": mode}, retention_seconds=3600.0) as w:
        w.put(4)
        query = w.query(once=True)
        for _ in range(6):
            query.ends(4, within=30)
            w.kill_program()
            w.later(1000)
            query.start()
        query.ends(4, within=30)


# The run that had read a shard's last record proved nothing for it.
@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_jobs_almost_one_retention_later_lose_nothing(mode: str) -> None:
    with world(options={"readMode": mode}, retention_seconds=3600.0) as w:
        w.put(4)
        query = w.query(available_now=True).ends(4)
        for number in range(3):
            w.later(3000)
            query.start().ends(4 + 2 * (number > 0))
            w.put(2) if not number else None


def test_start_from_leases_reports_what_expired_before_any_micro_batch() -> None:
    with world(options={"failOnDataLoss": "true"}, retention_seconds=3600.0) as w:
        w.put(8)
        w.query().pause_sink(90_000)
        w.later(60)
        w.kill_program()
        w.put(4, wait=7200)
        w.warns("are gone")
        w.query(startingPosition="LEASES").fails(DataLossError)


def test_bug_in_listing_shards_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    with world() as w:
        w.put(10)
        query = w.query().reads(10)
        monkeypatch.setattr(Topology, "shards", fail)
        w.warns("watching the shards failed")
        assert "a bug" in query.fails(FetcherError, within=90)


def test_finished_range_that_expires_before_the_next_trigger_is_no_loss() -> None:
    with world(retention_seconds=1200.0) as w:
        query = w.query(trigger=1000.0, session_listens="true")
        w.put_for(100, every=10)
        w.later(1500)
        w.put_for(100, every=10)
        query.reads(20, within=1000)
        w.until(lambda: len(query.spark.checkpoint.commits) > 1, 60, "nothing is committed")
        w.later(900)
        w.kill_run()
        query.follows(1, within=1100)


# A run that was killed beside a slow sink reported the loss of records that had already been read.
@pytest.mark.parametrize("reads_later", [False, True])
@pytest.mark.parametrize("fetchers", [0, 2])
def test_micro_batch_that_was_read_may_expire_before_its_run_dies(fetchers: int, reads_later: bool) -> None:
    with world(retention_seconds=1200.0, fetchers=fetchers) as w:
        w.put_for(1100, every=100)
        query = w.query()
        other = w.query(startingPosition="LATEST")
        query.pause_sink(200, before_reading=reads_later).plans()
        w.later(150)
        w.kill_run()
        w.warns("another takes over", "not renewed", "requesting its current fetcher", *["are gone"] * reads_later)
        w.put(4)
        if reads_later:
            assert "are gone" in query.fails(DataLossError, within=300)
        else:
            query.reads(15, within=300)
        other.reads(4)


def test_idle_shard_that_a_slow_query_still_reads_is_no_loss() -> None:
    """Between two triggers, only the buffers move on: the lease row says until when nothing came after the query's position."""
    with world(shards=2, retention_seconds=1200.0) as w:
        query = w.query(trigger=3000.0, session_listens="true").follows(8)
        w.later(2000)
        w.kill_program()
        query.start()
        query.follows(8)
