"""Queries without the option `leaseTable`: what a checkpoint says decides where they go on, and runs of one host exclude each other."""

import pytest

from kinesis_efo.errors import AlreadyRunningError
from tests.emulator.world import world

POLLING = {"readMode": "polling"}
both = pytest.mark.parametrize("options", [{}, POLLING], ids=["efo", "polling"])


# Shows invariant 10, invariant 13.
@both
def test_restart_without_table_reads_on(options: dict[str, str]) -> None:
    with world(shards=2, table=False, options=options) as w:
        w.put(10)
        query = w.query().reads(10).stop()
        w.put(10)
        w.split()
        w.put(10)
        query.start().reads(30).stop()
        w.query().reads(30)
        assert not w.kinesis.table.items
        assert sum("there is no kinesis-efo option 'leaseTable'" in each.text for each in w.kinesis.reports) == 3


# Shows invariant 12.
@both
def test_killed_run_without_table_is_replaced(options: dict[str, str]) -> None:
    with world(shards=2, table=False, options=options) as w:
        one, other = w.query(), w.query(maxRecordsPerTrigger="3")
        one.follows(10)
        other.reads(10)
        other.pause_sink(20)
        w.put(10)
        other.plans()
        w.kill_run()
        w.split()
        one.follows(10)
        other.reads(30)


@pytest.mark.parametrize("host", ["here", "there"])
def test_program_killed_without_table_continues_elsewhere(host: str) -> None:
    with world(shards=2, table=False) as w:
        w.put(10)
        query = w.query().reads(10).pause_sink(5)
        w.put(10)
        query.plans()
        w.kill_program()
        w.program = w.another_program(host)
        w.split()
        w.put(10)
        query.start().reads(30)


# Shows invariant 11.
@both
def test_second_program_of_a_host_is_refused(options: dict[str, str]) -> None:
    with world(table=False, options=options) as w:
        w.put(10)
        first = w.query().reads(10)
        there = w.program
        w.program = w.another_program("here")
        assert "is already read by" in w.query().fails(AlreadyRunningError, within=600)
        w.program = there
        first.follows(10).stop()


def test_program_of_another_host_is_reported() -> None:
    with world(table=False) as w:
        w.put(10)
        w.query().reads(10)
        w.program = w.another_program("there")
        w.query().reads(10, within=120)
        w.put(10)
        w.warns("another program uses consumer arn:", "LimitExceededException")
        w.all_read(20, within=120)
        assert any("another program uses consumer arn:" in each.text for each in w.kinesis.reports)


def test_polled_shard_idle_for_longer_than_retention_is_whole() -> None:
    options = {**POLLING, "pollingInterval": "10s"}
    with world(table=False, options=options, retention_seconds=3600.0) as w:
        w.put(10)
        query = w.query(trigger=60).reads(10, within=120)
        w.later(5000)
        w.kill_run()
        w.later(120)
        query.follows(1, within=120)
