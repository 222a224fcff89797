"""Whole programs with `fetchers=N`: executors that die, freeze, and lose their network."""

import pytest

from kinesis_efo.errors import AlreadyRunningError, FetcherError
from tests.emulator.world import world


def test_all_fetchers_that_die_are_replaced() -> None:
    with world(shards=4, fetchers=3) as w:
        query = w.query().follows(40)
        for _ in range(3):
            w.kill_fetcher()
        query.follows(40, within=180)


@pytest.mark.parametrize("seconds", [3, 20, 600])
def test_fetcher_without_network_loses_and_repeats_nothing(seconds: int) -> None:
    with world(shards=4, fetchers=2) as w:
        query = w.query().follows(40)
        w.cut_off("host0", seconds=seconds)
        w.put_for(60, every=1)
        query.reads(100, within=120)
        w.later(seconds)
        query.follows(40, within=60)
        assert len(w.subscribers()) == 2


def test_query_without_any_fetcher_for_long_fails() -> None:
    with world(shards=4, fetchers=2, options={"leaseTimeout": "10s"}) as w:
        w.put(10)
        query = w.query().reads(10)
        w.warns("no fetcher has started for 30 s")
        w.cut_off("host0", "host1", seconds=600)
        assert "no fetcher has started for 60 s" in query.fails(FetcherError, within=90)
        assert any("no fetcher has started for 30 s" in report.text for report in w.kinesis.reports)


# Shows invariant 11.
def test_frozen_fetcher_is_replaced_and_reads_nothing_twice() -> None:
    with world(shards=4, fetchers=2, warns=["no answer in time", "no event for 35 s", "starting over"]) as w:
        query = w.query().follows(40)
        for rows, seconds in ((100, 3), (160, 90)):
            w.freeze_fetcher(seconds)
            w.put_for(60, every=1)
            query.reads(rows, within=240)
            w.later(120)


# Shows invariant 5.
def test_shards_are_shared_out_again_when_a_fetcher_returns() -> None:
    with world(shards=6, fetchers=3) as w:
        query = w.query().follows(60)
        w.put(60)
        w.kill_fetcher()
        w.put(60)
        query.reads(180, within=180)
        w.later(60)
        assert len(w.subscribers()) == 3


def test_shards_stay_where_they_are_at_even_load() -> None:
    with world(shards=12, fetchers=3) as w:
        query = w.query()
        w.put_for(60, every=0.2)
        before = w.calls("SubscribeToShard")
        w.put_for(600, every=0.5)
        query.reads(1500, within=30)
        assert w.calls("SubscribeToShard") - before <= 12 * 3, "a subscription lasts five minutes"


# Shows invariant 8.
def test_other_fetchers_read_children_after_their_parent() -> None:
    with world(shards=2, fetchers=3, warns=["LimitExceededException"]) as w:
        query = w.query(maxRecordsPerTrigger="5")
        for _ in range(3):
            w.put(20)
            w.split()
        w.put(20)
        query.reads(80, within=240)


# Shows invariant 12.
@pytest.mark.parametrize("way", ["efo", "polling"])
def test_fetcher_that_outlives_its_run_disturbs_no_query(way: str) -> None:
    with world(shards=4, fetchers=2, options={"readMode": way}) as w:
        query = w.query().follows(40)
        w.later(10)
        w.cut_off("host0", seconds=60)
        w.kill_run()
        before = w.calls("SubscribeToShard")
        w.put_for(60, every=1)
        query.reads(100, within=60)
        assert w.calls("SubscribeToShard") - before <= 8


def test_report_of_many_events_is_sent_in_parts() -> None:
    with world(shards=2, fetchers=1, max_event_records=1) as w:
        w.query().follows(1).pause_sink(60).follows(3000, within=300)


def test_strict_reader_omits_equal_records_after_a_split() -> None:
    with world(shards=1, fetchers=2, options={"deaggregate": "strict"}) as w:
        w.warns("KPL aggregates dropped", "LimitExceededException")
        w.put_aggregates()
        query = w.query(scans=2)
        for number in range(1, 6):
            w.put(20)
            w.split() if number < 4 else w.merge()
            query.reads(20 * number, within=120)


# Shows invariant 5.
def test_lost_answers_lose_and_repeat_nothing() -> None:
    with world(shards=6, fetchers=3) as w:
        query = w.query(scans=2).follows(60)
        w.lose_answers(120)
        w.put_for(60, every=0.5)
        w.split()
        w.put_for(60, every=0.5)
        query.reads(300, within=200)


def test_fetchers_report_seldom_whatever_comes() -> None:
    with world(shards=8, fetchers=2, max_event_records=1) as w:
        query = w.query().follows(8)
        before = w.kinesis.messages
        w.put_for(60, every=0.05)
        w.later(30)
        assert query.rows > 1200
        assert w.kinesis.messages - before <= 2 * 60 * 12


def test_row_of_a_shard_names_its_fetcher() -> None:
    with world(shards=2, fetchers=2) as w:
        w.query().follows(10)
        w.later(60)
        rows = [item for key, item in w.kinesis.table.items.items() if key.startswith("orders:shardId")]
        assert {row["fetcher"]["S"].split()[0] for row in rows} == {"0", "1"}


def test_fetcher_of_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinesis_efo.cluster.remote_fetcher.__version__", "0.1.9")
    with world(fetchers=2, warns=["no fetcher has started", "kinesis-efo 0.1.9"]) as w:
        assert "no fetcher has started" in w.query().fails(FetcherError, within=400)
        assert not w.subscribers()


@pytest.mark.parametrize("seconds", [24, 28, 120])
@pytest.mark.parametrize("hosts", [("host0",), ("host0", "host1")])
def test_fetcher_cut_off_around_its_expiry_reads_on(hosts: tuple[str, ...], seconds: int) -> None:
    with world(shards=4, fetchers=2) as w:
        query = w.query().follows(40)
        w.cut_off(*hosts, seconds=seconds)
        w.put_for(60, every=1)
        query.reads(100, within=180)


# A stream of the run whose lease another program had counted as one that never expires.
def test_fetchers_of_a_frozen_run_stop_when_its_lease_expires() -> None:
    with world(shards=2, streams=("orders", "payments"), fetchers=2, options={"leaseTimeout": "10s"}) as w:
        w.warns("has not replied for the duration", "has not answered for", "is already read by")
        mine, w.program = w.program, w.another_program("there")
        w.put(10, "payments")
        w.query(("payments",)).reads(10)
        others = w.subscribers()
        w.program = mine
        w.query(("orders",)).follows(10)
        own = set(w.subscribers()) - {*others}
        calls = w.calls("SubscribeToShard")
        w.query(("orders", "payments")).fails(AlreadyRunningError, within=600)
        assert w.calls("SubscribeToShard") == calls
        w.freeze_run(50)
        w.later(20)
        assert len(own) == 2 and own.isdisjoint(w.subscribers())


def test_fetcher_cut_off_after_much_reading_finds_room() -> None:
    """It must not fetch again what is read already: nobody would drop that."""
    with world(fetchers=1, options={"bufferBytes": "1m", "readMode": "polling"}) as w:
        w.warns("has not replied for the duration of its lease")
        query = w.query().follows(20, size=40_000)
        w.later(5)
        w.cut_off("host0", seconds=24)
        w.split()
        w.later(54)
        query.follows(3, within=120)
