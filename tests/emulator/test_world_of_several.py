"""Whole programs whose queries share a run."""

import pytest

from kinesis_efo.errors import DataLossError
from tests.emulator.world import world

everywhere = pytest.mark.parametrize("fetchers", [0, 2])


@everywhere
def test_query_that_begins_behind_does_not_delay_another(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        w.put(200)
        first = w.query().reads(200)
        subscribed = w.calls("SubscribeToShard")
        second = w.query(maxRecordsPerTrigger="10")
        for _ in range(5):
            first.follows(4, within=8)
        second.reads(220, within=180)
        first.follows(4, within=8)
        second.reads(224, within=8)
        assert w.calls("SubscribeToShard") - subscribed <= 8, "renewals only"


@everywhere
def test_without_get_records_all_queries_wait_for_the_slowest(fetchers: int) -> None:
    with world(shards=1, fetchers=fetchers) as w:
        w.refuse_get_records()
        w.put(60)
        w.query().reads(60)
        w.query(maxRecordsPerTrigger="10")
        w.put(10)
        w.all_read(70, within=300)


@everywhere
def test_query_with_an_end_time_ends_without_get_records(fetchers: int) -> None:
    """A time and a place are not comparable: the subscription must not go to and fro for ever."""
    with world(fetchers=fetchers) as w:
        w.refuse_get_records()
        w.warns("requesting its current fetcher from the planner")
        waiting = w.query()
        w.later(20)
        w.query(once=True, startingPosition=f"AT_TIMESTAMP:{int(w.kinesis.now * 1000)}").ends(0)
        waiting.follows(5)


# Shows invariant 6.
@everywhere
def test_queries_share_an_idle_shard_without_get_records(fetchers: int) -> None:
    with world(fetchers=fetchers) as w:
        w.refuse_get_records()
        w.later(600)
        at_horizon = w.query()
        at_time = w.query(startingPosition=f"AT_TIMESTAMP:{int((w.kinesis.now - 300) * 1000)}")
        w.later(180)
        subscribed = w.calls("SubscribeToShard")
        w.later(120)
        assert w.calls("SubscribeToShard") - subscribed <= 2, "renewals only"
        at_horizon.follows(5)
        at_time.reads(5)


@everywhere
def test_slow_sink_of_one_stream_leaves_room_for_another(fetchers: int) -> None:
    with world(streams=("orders", "events"), fetchers=fetchers, options={"bufferBytes": "1m"}) as w:
        w.warns("the slow query catches up with GetRecords")
        stuck = w.query(maxRecordsPerTrigger="5")
        quick = w.query(["events"])
        w.put(2)
        w.put(1, "events")
        stuck.reads(3)
        quick.reads(1)
        stuck.pause_sink(1200)
        w.put(100, size=30_000)
        for _ in range(6):
            quick.follows(1, size=30_000)
        stuck.reads(109, within=1800)


@everywhere
def test_stream_that_no_query_reads_may_be_deleted(fetchers: int) -> None:
    with world(streams=("orders", "events"), fetchers=fetchers) as w:
        w.put(10)
        w.put(10, "events")
        former = w.query(["orders", "events"]).reads(20)
        query = w.query(["orders"]).reads(10)
        former.stop()
        w.kinesis.kinesis.call("DeleteStream", StreamName="dev-events", EnforceConsumerDeletion=True)
        w.kinesis.kinesis.state.settle()
        w.later(120)
        if fetchers:
            w.warns("fetcher 0 on host0 is gone")
            w.kill_fetcher()
        query.follows(10)
        w.query(["orders"], once=True).ends(20)


@everywhere
def test_query_that_leaves_is_not_waited_for(fetchers: int) -> None:
    with world(fetchers=fetchers, options={"bufferBytes": "1m"}) as w:
        first, second = w.query(), w.query()
        first.follows(10)
        second.reads(10).stop()
        for _ in range(8):
            first.follows(10, size=30_000, within=10)
        second.start().reads(90, within=120)


# Shows invariant 12, invariant 5, run killed.
@everywhere
def test_killed_run_is_replaced_for_all_queries(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        w.query()
        w.query(maxRecordsPerTrigger="3")
        for number in range(1, 4):
            w.put(12, wait=3)
            w.kill_run()
            w.all_read(12 * number, within=90)


# Shows invariant 7.
@everywhere
def test_shard_ended_by_one_query_is_read_for_another(fetchers: int) -> None:
    with world(fetchers=fetchers) as w:
        w.put(40)
        first = w.query().reads(40)
        w.split()
        first.follows(20)
        w.query(maxRecordsPerTrigger="7").reads(60, within=180).follows(20, within=30)


@everywhere
def test_second_query_brings_another_stream(fetchers: int) -> None:
    with world(streams=("orders", "events"), fetchers=fetchers) as w:
        w.put(10)
        w.put(10, "events")
        first = w.query(["orders"]).reads(10)
        both = w.query(["orders", "events"]).reads(20, within=90)
        w.put(5)
        w.put(5, "events")
        first.reads(15, within=10)
        both.reads(30, within=10)


@everywhere
def test_query_that_fails_does_not_end_the_other(fetchers: int) -> None:
    with world(fetchers=fetchers, retention_seconds=3600.0) as w:
        w.put(10)
        first = w.query().reads(10)
        second = w.query().reads(10, within=90).stop()
        first.follows(10)
        w.later(2 * 3600)
        second.start()
        w.warns("are gone")
        assert "acceptDataLoss" in second.fails(DataLossError, within=120)
        first.follows(10)


# Shows invariant 7.
@everywhere
def test_three_queries_at_different_places_meet(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        for number in range(3):
            w.put(60)
            w.query(maxRecordsPerTrigger=str(20 * (3 - number)))
            w.queries[0].reads(60 * (number + 1))
        w.put_for(60, every=1)
        w.all_read(240, within=300)
        w.put(4)
        w.all_read(244, within=10)


@everywhere
def test_memory_falls_when_a_backlog_has_been_read(fetchers: int) -> None:
    with world(fetchers=fetchers, options={"bufferBytes": "2m"}) as w:
        w.warns("the slow query catches up with GetRecords")
        w.put(80, size=50_000)
        first, second = w.query(), w.query(maxRecordsPerTrigger="5")
        first.reads(80, within=120)
        second.reads(80, within=300)
        w.later(30)
        first.follows(1)
        second.reads(81)
        w.until(lambda: w.buffered == 0, 30, "events stay in the buffers")


@everywhere
def test_refused_get_records_while_a_query_catches_up(fetchers: int) -> None:
    with world(fetchers=fetchers) as w:
        w.put(300)
        first = w.query().reads(300)
        second = w.query(maxRecordsPerTrigger="20")
        w.put_for(8, every=0.5)
        w.refuse_get_records()
        w.put_for(60, every=1)
        second.reads(376, within=300)
        first.reads(376, within=60)


@everywhere
def test_query_that_leaves_while_it_catches_up(fetchers: int) -> None:
    with world(fetchers=fetchers) as w:
        w.put(300)
        first = w.query().reads(300)
        second = w.query(maxRecordsPerTrigger="10")
        w.put_for(10, every=0.5)
        second.stop()
        w.later(10)
        asked = w.calls("GetRecords")
        w.put_for(30, every=1)
        assert w.calls("GetRecords") == asked, "nothing is read for it any more"
        first.reads(350, within=10)
        second.start().reads(350, within=300)


# Shows invariant 7.
@everywhere
def test_copy_of_a_checkpoint_reads_the_same_rows(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers, warns=["checkpoint"]) as w:
        first = w.query(maxRecordsPerTrigger="5").follows(20)
        second = first.copy()
        read = second.rows
        first.pause_sink(60)
        w.put(20)
        second.reads(read + 20, within=90)
        first.reads(40, within=120)


# Shows invariant 9.
@everywhere
def test_stuck_query_is_not_committed_by_the_other(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        first, second = w.query(), w.query()
        first.follows(20)
        second.reads(20, within=60)
        second.pause_sink(300)
        w.put_for(120, every=2)
        first.reads(80, within=10)
        w.kill_program()
        first.start()
        second.start().reads(80, within=400)


# Shows invariant 10.
@everywhere
def test_start_from_leases_begins_at_the_slowest_query(fetchers: int) -> None:
    with world(shards=1, fetchers=fetchers, options={"checkpointWritesPerSecond": "10"}) as w:
        fast, slow = w.query(), w.query()
        fast.follows(20)
        slow.reads(20, within=60)
        slow.pause_sink(1000)
        for generation in range(1, 4):
            w.put(10)
            fast.reads(20 + 10 * generation)
            w.split()
        w.later(120)
        w.kill_program()
        w.query(startingPosition="LEASES").reads(30, within=120)


@everywhere
def test_queries_at_latest_and_horizon_share_an_idle_stream(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers, options={"readMode": "polling"}, retention_seconds=3600.0) as w:
        w.later(7200)
        first = w.query()
        w.later(60)
        second = w.query(startingPosition="LATEST")
        w.later(60)
        first.follows(10)
        second.reads(10)


@everywhere
def test_large_micro_batch_does_not_delay_the_tip(fetchers: int) -> None:
    with world(fetchers=fetchers, options={"bufferBytes": "1m"}) as w:
        w.refuse_get_records()
        w.put(200, size=30_000)
        tip = w.query(startingPosition="LATEST")
        w.later(20)
        large = w.query(once=True, scans=3).plans()
        w.put_for(30, every=1)
        large.ends(200, within=300)
        tip.reads(30, within=60)


@everywhere
def test_first_query_behind_does_not_delay_the_tip(fetchers: int) -> None:
    with world(fetchers=fetchers) as w:
        w.put(400, wait=7200)
        behind = w.query(maxRecordsPerTrigger="10")
        w.put_for(10, every=1)
        tip = w.query(startingPosition="LATEST")
        w.later(15)
        for _ in range(10):
            tip.follows(1, within=12)
        behind.reads(420, within=300)


@everywhere
def test_query_one_micro_batch_behind_meets_the_other(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        first = w.query(startingPosition="LATEST")
        w.put_for(20, every=0.25)
        second = w.query(startingPosition="TRIM_HORIZON")
        w.put_for(45, every=0.25)
        asked = w.calls("GetRecords")
        w.put_for(30, every=0.25)
        assert w.calls("GetRecords") == asked, "it shares the subscription"
        first.reads(first.rows)
        second.reads(380, within=10)


@everywhere
def test_queries_do_not_take_each_others_subscription(fetchers: int) -> None:
    with world(fetchers=fetchers) as w:
        w.put(300, wait=3600)
        for most, pause in (("10", 1.0), ("30", 4.0), ("20", 0.1)):
            w.query(maxRecordsPerTrigger=most).spark.slow = pause
        w.put_for(120, every=1)
        w.all_read(420, within=300)
        assert w.calls("SubscribeToShard") <= 5, "renewals, and a move for each query"


@everywhere
def test_queries_that_wait_do_not_move_the_subscription(fetchers: int) -> None:
    with world(fetchers=fetchers) as w:
        w.refuse_get_records()
        w.put(100)
        queries = [w.query(), w.query(maxRecordsPerTrigger="20", scans=3), w.query(startingPosition="LATEST")]
        w.later(60)
        subscribed = w.calls("SubscribeToShard")
        w.put_for(120, every=1)
        w.later(60)
        for query in queries[:2]:
            query.reads(220, within=60)
        queries[2].reads(queries[2].rows)
        assert w.calls("SubscribeToShard") - subscribed <= 2, "renewals only"
        assert w.calls("GetRecords") <= 5, "as long as it is not known that they are refused"


@pytest.mark.parametrize(("slow", "is_apart"), [("apart", True), ("hold", False)])
def test_slow_query_polls_separately_or_delays_the_others(slow: str, is_apart: bool) -> None:
    with world(options={"bufferBytes": "1m", "slowQueries": slow}) as w:
        w.warns("the slow query catches up with GetRecords")
        w.put(1)
        quick, stuck = w.query(), w.query()
        w.all_read(1)
        stuck.pause_sink(120)
        w.put(40, size=50_000, wait=60)
        assert (quick.rows == 41) is is_apart
        w.all_read(41, within=120)
        assert (w.calls("GetRecords") > 0) is is_apart


@everywhere
def test_five_queries_ask_kinesis_for_as_much_as_one(fetchers: int) -> None:
    asked = set()
    for count in (1, 5):
        with world(shards=2, fetchers=fetchers) as w:
            for _ in range(count):
                w.query()
            w.later(20)
            for number in range(1, 5):
                w.put(20)
                w.all_read(20 * number)
            asked.add((w.calls("SubscribeToShard"), w.calls("GetRecords")))
    assert len(asked) == 1


# Shows invariant 6.
@everywhere
def test_large_event_is_read_despite_a_stuck_sink(fetchers: int) -> None:
    with world(streams=("orders", "events"), fetchers=fetchers, options={"bufferBytes": "1m"}) as w:
        w.warns("the slow query catches up with GetRecords")
        stuck, quick = w.query(["orders"]), w.query(["events"])
        w.put(2)
        w.put(2, "events")
        w.all_read(2)
        stuck.pause_sink(600)
        w.put(2, size=900_000, wait=10)
        w.put(3, "events", size=900_000)
        quick.reads(5, within=90)
        stuck.reads(4, within=900)


@everywhere
def test_repeated_micro_batch_needs_no_get_records(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        w.refuse_get_records()
        w.warns("from the planner", "another takes over")
        w.put(40)
        tip = w.query().reads(40)
        w.put_for(20, every=1)
        once = w.query(once=True).plans()
        w.kill_run()
        w.put_for(20, every=1)
        once.ends(60, within=300)
        tip.reads(80, within=120)


@pytest.mark.parametrize("mode", ["efo", "polling"])
@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("splits", [True, False])
def test_accepted_loss_is_an_error_for_another_query(splits: bool, joins: bool, mode: str) -> None:
    with world(options={"readMode": mode}, warns=["are gone", "LimitExceeded", "not renewed"]) as w:
        w.put(10)
        accepting, other = w.query(), w.query()
        w.all_read(10)
        if splits:
            w.split()
        w.later(60)
        accepting.stop()
        other.stop()
        w.later(3600)
        w.put(10, wait=26 * 3600)
        accepting.start().fails(DataLossError)
        accepting.accepts_one_loss()
        w.later(120)
        if not joins:
            accepting.stop()
            w.later(60)
        assert "acceptDataLoss" in other.start().fails(DataLossError)


# The shared buffer began at the lost records before the query that needs them had checked for them, which failed both queries.
@pytest.mark.parametrize(("mode", "fetchers"), [("efo", 0), ("efo", 2), ("polling", 0)])
def test_loss_at_the_start_of_one_query_fails_no_other(mode: str, fetchers: int) -> None:
    with world(fetchers=fetchers, retention_seconds=3600.0, options={"readMode": mode}, warns=["are gone"]) as w:
        w.put(10)
        late, healthy = w.query(), w.query(trigger=60.0)
        late.reads(10).stop()
        w.later(600)
        w.put(10, wait=4000)
        healthy.reads(20)
        w.kill_program()
        late.start()
        healthy.start()
        assert "acceptDataLoss" in late.fails(DataLossError)
        healthy.follows(10, within=120)


# A query that had begun, but not read the lease rows yet, decided what the shared buffer accepts.
def test_accepted_loss_is_not_fatal_while_another_query_waits_for_a_lease() -> None:
    with world(streams=("orders", "events"), retention_seconds=3600.0) as w:
        w.warns("are gone", "events", "LimitExceeded")
        w.put(10, "orders")
        accepting, waiting = w.query(["orders"]), w.query(["orders", "events"])
        w.all_read(10)
        accepting.stop()
        waiting.stop()
        w.later(600)
        w.put(10, "orders", wait=4000)
        accepting.start().fails(DataLossError)
        w.later(5)
        here, w.program = w.program, w.another_program("there")
        owner = w.query(["events"], startingPosition="LATEST")
        w.later(10)
        w.program.kill()
        w.queries.remove(owner)
        w.program = here
        waiting.start()
        w.later(5)
        accepting.accepts_one_loss()
        w.put(5, "orders")
        accepting.reads(15)
        waiting.fails(DataLossError, within=200)


# The lowest accepted position of all queries was that of each, so that the later start failed for ever.
@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_each_query_accepts_the_loss_at_its_own_start(mode: str) -> None:
    with world(retention_seconds=3600.0, options={"readMode": mode}, warns=["are gone"]) as w:
        w.later(2 * 3600)
        queries = []
        for ago in (6000, 5000):
            queries.append(w.query(startingPosition=f"AT_TIMESTAMP:{round(1000 * (w.kinesis.now - ago))}"))
            queries[-1].fails(DataLossError)
            queries[-1].accepts_one_loss()
        w.later(60)
        w.kill_program()
        for query in reversed(queries):
            query.start()
        w.later(60)
        w.put(5)
        w.all_read(5)


# A query that had caught up apart from another one lost what it accepts.
def test_query_accepts_its_loss_while_it_catches_up() -> None:
    with world(retention_seconds=3600.0, options={"readMode": "polling"}, warns=["are gone"]) as w:
        w.later(2 * 3600)
        first = w.query(startingPosition=f"AT_TIMESTAMP:{round(1000 * (w.kinesis.now - 5000))}")
        first.fails(DataLossError)
        first.accepts_one_loss()
        w.later(60)
        second = w.query()
        w.later(60)
        first.follows(5)
        second.reads(5)


# The rows of the children had the start of the query that began there, although another one still read their parent.
def test_start_from_leases_skips_no_record_of_a_child_that_one_query_has_begun() -> None:
    with world(max_event_records=1, warns=["neither the shard nor", "LEASES", "shards count as read"]) as w:
        w.later(100)
        w.put(40, key="k", wait=3)
        slow = w.query(trigger=20.0, maxRecordsPerTrigger="2")
        w.until(lambda: slow.rows >= 2, 200, "nothing is read")
        w.split()
        w.put(5, key="k", wait=15)
        fast = w.query(startingPosition="LATEST")
        w.later(70)
        slow.stop()
        fast.stop()
        third = w.query(startingPosition="LEASES")
        w.put(2, key="k", wait=200)
        numbers = [row.number for rows in third.spark.checkpoint.rows.values() for row in rows]
        assert numbers == list(range(numbers[0], 47)), "in order, and none is missing"


# Rows that could not be written while the fast query passed the children had its positions.
def test_late_rows_of_children_have_the_slowest_querys_positions() -> None:
    with world(shards=2, warns=[""]) as w:
        w.put(10)
        fast, slow = w.query(), w.query()
        w.all_read(10)
        w.later(20)
        slow.pause_sink(400)
        w.later(2)
        w.put(6, wait=5)
        w.kinesis.fail_one("create", 60)
        w.split()
        fast.follows(14)
        w.merge()
        fast.follows(4)
        w.kinesis.fail_one("", 0)
        w.later(90)
        w.kill_program()
        w.later(60)
        w.query(startingPosition="LEASES").reads(24, within=120)


# The search for the end of a query with an accepted loss wrote a row that covered everything.
def test_accepted_loss_of_an_ending_query_hides_no_other() -> None:
    with world(options={"failOnDataLoss": "true"}) as w:
        w.later(108_000)
        w.put(5)
        accepting, other = w.query(), w.query()
        w.all_read(5)
        w.split()
        for query in (accepting, other):
            offsets = query.spark.checkpoint.offsets
            w.until(lambda: "TRIM_HORIZON" in str(offsets[max(offsets)]["streams"]), 120, "no child begins")  # noqa: B023
            w.until(lambda: not query.spark.is_unfinished, 120, "it does not end")  # noqa: B023
        for query in (accepting, other):
            query.stop()
        w.put(8, wait=94_000)
        w.warns("are gone")
        accepting.spark.ends_at_tips = True
        accepting.start().fails(DataLossError)
        for _ in range(4):
            if accepting.spark.error is not None:
                accepting.accepts_one_loss()
            w.later(60)
        other.start().fails(DataLossError)


# It began at the other query's position when the shards were listed at last.
def test_latest_is_the_start_although_listing_takes_long() -> None:
    with world() as w:
        w.put(10)
        w.query().reads(10)
        w.later(60)
        w.warns("waiting for ")
        w.fail("ListShards", after=0, seconds=40)
        query = w.query(startingPosition="LATEST")
        w.later(15)
        w.put(5, wait=60)
        query.follows(3)


# Its full buffer seemed to be at the tip once it had room, so the shared subscription moved back to what was gone.
def test_loss_of_a_slow_query_does_not_fail_the_other() -> None:
    with world(retention_seconds=3600.0, options={"bufferBytes": "1m"}, warns=[""]) as w:
        fast = w.query()
        w.later(100)
        fast.follows(20)
        w.later(1000)
        slow = w.query().reads(20).pause_sink(5000)
        w.put_for(2000, every=20, size=20_000)
        slow.fails(DataLossError, within=5000)
        fast.follows(5)


# The subscription moved to the time at which another query had started, where no event came.
def test_idle_shard_stays_proven_for_the_slower_query() -> None:
    with world(retention_seconds=1200.0) as w:
        w.put(4)
        slow = w.query().reads(4).pause_sink(1500)
        w.put(4)
        slow.plans()
        other = w.query(startingPosition="LATEST")
        w.later(1600)
        slow.follows(1)
        other.reads(1)
