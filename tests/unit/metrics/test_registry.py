"""The registry: sums and worst values of several sources, and totals that never drop."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.metrics import MetricsRegistry, MetricsSettings, Sample, report
from kinesis_efo.metrics.catalog import BUFFERED, LAG, RECORDS
from kinesis_efo.metrics.labels import OTHER, Labels
from kinesis_efo.metrics.registry import FRESH_SECONDS, Values
from tests.support.answers import FixedClock

ORDERS = (("stream", "orders"),)


class Counting:
    """A source with one metric of each kind."""

    def __init__(self, records: int, lag: int, buffered: int) -> None:
        self.records, self.lag, self.buffered = records, lag, buffered

    def __call__(self) -> Iterator[Sample]:
        yield Sample(RECORDS, self.records, ORDERS)
        yield Sample(LAG, self.lag, ORDERS)
        yield Sample(BUFFERED, self.buffered, ())


def test_the_counters_of_a_removed_source_stay() -> None:
    clock = FixedClock(0.0)
    registry = MetricsRegistry(clock.monotonic)
    first, second = Counting(3, 40, 100), Counting(4, 10, 200)
    registry.add(first)
    registry.values()
    first.records = 5
    registry.remove(first)
    assert registry.values() == {(RECORDS, ORDERS): 5}
    registry.add(second)
    assert registry.values() == {(RECORDS, ORDERS): 9, (LAG, ORDERS): 10, (BUFFERED, ()): 200}
    registry.remove(second)
    clock.pass_by(FRESH_SECONDS)
    assert registry.values() == {(RECORDS, ORDERS): 9}


def test_one_reading_serves_a_whole_collection() -> None:
    clock = FixedClock(0.0)
    registry = MetricsRegistry(clock.monotonic)
    source = Counting(1, 1, 1)
    registry.add(source)
    before = registry.values()
    source.records = 2
    assert registry.values() is before
    assert registry.values(fresh=0)[RECORDS, ORDERS] == 2
    source.records = 3
    clock.pass_by(FRESH_SECONDS)
    assert registry.values()[RECORDS, ORDERS] == 3


def test_report_to_opentelemetry_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Values] = []

    class Process:
        registry = MetricsRegistry()

        def flush(self) -> None:
            flushed.append(self.registry.values(fresh=0))

    process = Process()
    monkeypatch.setattr("kinesis_efo.metrics.otel.telemetry", lambda: process)
    end = report(lambda: [Sample(LAG, 40, ORDERS)], MetricsSettings("otel"))
    assert (process.registry.values(), flushed) == ({(LAG, ORDERS): 40}, [])
    end()
    end()
    assert (process.registry.values(fresh=0), flushed) == ({}, [{(LAG, ORDERS): 40}])


STEPS = st.lists(st.sets(st.integers(0, 9)), max_size=30)


@given(st.integers(0, 4), STEPS)
def test_labels_are_bounded_and_never_move_into_other(most: int, steps: list[set[int]]) -> None:
    labels = Labels(most)
    before: dict[int, str | None] = {}
    for alive in steps:
        labels.keep(alive)
        seen = sorted({*before, *alive})
        now = {thing: labels.label(thing) for thing in seen}
        assert sum(label not in (None, OTHER) for label in now.values()) <= most
        for thing, label in now.items():
            if thing in before:
                assert (before[thing] == OTHER) == (label == OTHER)
            assert label in (None, OTHER, str(thing))
        before = now
