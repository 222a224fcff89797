"""What a query reads apart from others: when that begins, when it is over, and what ends it, in virtual time."""

from __future__ import annotations

from typing import Any

from kinesis_efo.decisions.losses import Known
from kinesis_efo.errors import FetcherError, KinesisEfoError, LeaseTableError
from kinesis_efo.failure import Failure
from kinesis_efo.positions import Position, ShardKey
from kinesis_efo.sharing.apart_reading import ApartReading
from tests.unit.sharing.test_several_queries import key


class Started:
    """In place of a fetcher and of the run."""

    def __init__(self) -> None:
        self.coordinator: Any = self
        self.failure = Failure()
        self.refused: Any = None

    def fetch_apart(self) -> Started:
        return self

    def start(self, coordinator: Any, listener: Any) -> None:
        self.started_with = coordinator

    def forbid_apart(self, why: Any) -> None: ...

    def may_read(self, shard: ShardKey) -> bool:
        return shard == key(0)

    def refusal(self, shard: ShardKey, seconds: float) -> FetcherError:
        return FetcherError(f"{shard} {seconds}")

    def known(self, shard: ShardKey, position: Position) -> Known:
        return Known(77.0 + position.value)


def test_what_reads_apart_asks_the_run() -> None:
    rules: Any = Started()
    failed: list[KinesisEfoError] = []
    assert ApartReading(rules, rules, failed.append).fetcher is rules
    asked = rules.started_with
    assert (asked.may_read(key(0)), asked.may_read(key(1))) == (True, False)
    assert str(asked.refusal(key(0), 5.0)) == f"{key(0)} 5.0"
    assert asked.known(key(0), Position.after(3)) == Known(80.0)
    error = LeaseTableError("the table is gone")
    rules.failure.adopt(error)
    assert asked.failure.error is error
