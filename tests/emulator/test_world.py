"""Whole programs through stops, kills and reshards: one query."""

from __future__ import annotations

import pytest

from kinesis_efo.errors import FetcherError
from tests.emulator.world import world

everywhere = pytest.mark.parametrize("fetchers", [0, 2])
both_modes = pytest.mark.parametrize("mode", ["efo", "polling"])


@both_modes
@everywhere
def test_shard_that_ends_while_its_query_is_stopped(fetchers: int, mode: str) -> None:
    with world(fetchers=fetchers, options={"readMode": mode}) as w:
        w.put(10)
        query = w.query()
        query.reads(10)
        query.stop()
        w.split()
        w.put(10)
        query.start()
        query.reads(20)


@both_modes
@everywhere
def test_splits_and_merges_while_a_query_reads(fetchers: int, mode: str) -> None:
    with world(shards=2, fetchers=fetchers, options={"readMode": mode}) as w:
        query = w.query(maxRecordsPerTrigger="7")
        for change in (w.split, w.merge, w.merge, w.split):
            w.put_for(10, every=0.5)
            change()
        query.reads(80, within=180)


@everywhere
def test_micro_batch_repeats_after_its_planner_dies(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        w.put(20)
        query = w.query(maxRecordsPerTrigger="5")
        query.pause_sink(20)
        w.until(lambda: query.spark.is_unfinished, 30, "nothing is planned")
        query.kill()
        w.put(20)
        query.start()
        query.reads(40, within=120)


@everywhere
def test_query_reads_on_after_its_run_dies(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        query = w.query()
        for _ in range(3):
            w.put(10)
            query.reads(query.rows + 10)
            w.put(10)
            w.kill_run()
            query.reads(query.rows + 10, within=60)


@everywhere
def test_query_starts_in_another_program_with_the_lease(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        w.put(10)
        query = w.query()
        query.reads(10)
        w.kill_program()
        w.put(10)
        query.start()
        query.reads(20, within=120)


def test_fetcher_that_dies_loses_nothing() -> None:
    with world(shards=4, fetchers=2) as w:
        query = w.query()
        w.put(40)
        query.reads(40)
        w.put(40)
        w.kill_fetcher()
        w.put(40)
        query.reads(120, within=180)


@everywhere
def test_sink_that_is_down_stops_reading_within_the_budget(fetchers: int) -> None:
    with world(fetchers=fetchers, options={"bufferBytes": "1m"}) as w:
        query = w.query()
        w.put(1)
        query.reads(1)
        query.pause_sink(1800)
        w.put_for(1500, every=10, size=50_000)
        query.reads(151, within=900)


@everywhere
def test_several_scans_of_a_micro_batch_have_the_same_rows(fetchers: int) -> None:
    with world(shards=2, fetchers=fetchers) as w:
        query = w.query(scans=3, maxRecordsPerTrigger="10")
        w.put_for(60, every=1)
        w.kill_program()
        w.put(10)
        query.start()
        query.reads(70, within=180)


@both_modes
@everywhere
def test_query_that_ends_reads_what_was_there_at_its_start(fetchers: int, mode: str) -> None:
    with world(shards=2, fetchers=fetchers, options={"readMode": mode}) as w:
        w.put(30)
        query = w.query(available_now=True, maxRecordsPerTrigger="10")
        query.ends(30)
        query.start()
        query.ends(30)
        w.put(5)
        query.start()
        query.ends(35)


def test_frozen_run_fails_its_query_after_warnings() -> None:
    with world(options={"subscribe.retryTimeout": "120s"}) as w:
        query = w.query()
        w.put(10)
        query.reads(10)
        w.warns("has not answered")
        w.freeze_run(3600)
        assert "stopped" in query.fails(FetcherError, within=400)
        assert any("has not answered" in report.text for report in w.kinesis.reports)
