"""Reading ranges in a task while fetchers end, move and refuse: every record once and in order."""

import json
from collections.abc import Iterator, Sequence
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.errors import FetcherRefusedError, FetcherUnreachableError, NotFetchedHereError
from kinesis_efo.fetcher.work import WhereReply, WhereRequest
from kinesis_efo.positions import Position, ShardKey, ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.tasks.client import RangePayloads
from kinesis_efo.tasks.ranges import RangeReader
from tests.support.messages import raises

ONE, TWO, PLANNER = (FetcherAddress("", port) for port in (1, 2, 9))
KEYS = [ShardKey("orders", f"shardId-{number:012}") for number in range(3)]
RANGES = [ShardRange(key, Position.after(0), Position.after(30)) for key in KEYS]
EVERYTHING = [(key.shard, number) for key in KEYS for number in range(1, 31)]


def event(first: int, last: int, *, polled: bool = False) -> memoryview:
    """An event with the records of these numbers, or an answer of GetRecords."""
    records = [
        {"Data": "QQ==", "PartitionKey": "k", "SequenceNumber": str(number)} for number in range(first, last + 1)
    ]
    where = {"NextShardIterator": "i"} if polled else {"ContinuationSequenceNumber": str(last)}
    return memoryview(json.dumps({"Records": records, **where, "MillisBehindLatest": 0}).encode())


class Network:
    """Fetchers that cut their shards into events as they like, and end when they are told.

    Attributes:
        fails: After so many events of a call it breaks off; one number per call, none: it does not.
        error: How it breaks off.
        costs: Seconds that each such call takes.
        owners: What the planner says.
    """

    def __init__(self, fails: Sequence[int | None] = (), cuts: Sequence[int] = (7,)) -> None:
        self.polled = False
        self.fails = list(fails)
        self.cuts = list(cuts)
        self.calls: list[tuple[FetcherAddress, int]] = []
        self.owners: dict[ShardKey, FetcherAddress | None] = dict.fromkeys(KEYS, TWO)
        self.refuse: set[FetcherAddress] = set()
        self.there = 2
        self.error: FetcherUnreachableError = FetcherUnreachableError("gone")
        self.costs = 0.0
        self.time = 0.0

    def reader(self) -> RangeReader:
        return RangeReader(
            "secret",
            PLANNER,
            60.0,
            query="q",
            fetcher_at=lambda address, _secret: Client(self, address),  # type: ignore[arg-type, return-value]
            planner_at=lambda _address, _secret: Client(self, PLANNER),  # type: ignore[arg-type, return-value]
            now=lambda: self.time,
            sleep=self.sleep,
        )

    def failed(self) -> FetcherUnreachableError:
        self.time += self.costs
        return self.error

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def read(self, first: FetcherAddress | None = ONE) -> list[tuple[str, int]]:
        rows = []
        for wanted, payloads in self.reader().read(RANGES, first):
            for batch in decode(payloads, *wanted[:3], deaggregate=True):
                rows += [(wanted.key.shard, int(number.as_py())) for number in batch.column(2)]
        return rows


class Client:
    def __init__(self, network: Network, address: FetcherAddress) -> None:
        self.network, self.address = network, address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def where(self, request: WhereRequest) -> WhereReply:
        assert request.query == "q"
        found = [self.network.owners[key] for key in request.shards]
        if None in found:
            self.network.time += request.wait
        return WhereReply(found, self.network.there)

    def get(self, ranges: Sequence[ShardRange]) -> Iterator[RangePayloads]:
        network = self.network
        network.calls.append((self.address, len(ranges)))
        if self.address in network.refuse:
            raise FetcherRefusedError("another run's")
        left = network.fails.pop(0) if network.fails else None
        size = network.cuts[len(network.calls) % len(network.cuts)]
        for wanted in ranges:
            if left == 0:
                raise network.failed()
            # Whole events, cut from the shard's beginning: the first may reach back behind the range.
            begin = wanted.after.value // size * size + 1
            events = [(first, first + size - 1) for first in range(begin, wanted.through.value + 1, size)]

            def payloads(events: list[tuple[int, int]] = events) -> Iterator[memoryview]:
                nonlocal left
                for first, last in events:
                    if left == 0:
                        raise network.failed()
                    left = None if left is None else left - 1
                    yield event(first, last, polled=network.polled)

            yield RangePayloads(wanted, payloads())
        if left == 0:
            raise network.failed()


def test_range_with_its_last_record_is_not_repeated() -> None:
    """It was planned at a position behind its last record, which the answers do not get to."""
    ranges = [ShardRange(key, Position.after(0), Position.after(30), last=28) for key in KEYS]
    network = Network(fails=[4], cuts=[7])
    assert [wanted.key for wanted, payloads in network.reader().read(ranges, ONE) if list(payloads)] == KEYS
    assert network.calls == [(ONE, 3), (TWO, 2)]


def test_unserved_range_warns_before_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    network = Network(fails=[0] * 100)
    network.error, network.costs = NotFetchedHereError("shard orders:0 is not fetched here now"), 1.0
    with pytest.raises(FetcherUnreachableError):
        network.read()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "shard orders:shardId-000000000000 could not be read for 30 s: shard orders:0 is not fetched here now"
    ]


def test_task_without_fetchers_makes_room() -> None:
    network = Network()
    network.owners[KEYS[1]], network.there = None, 0
    with raises(
        FetcherUnreachableError,
        "no fetcher has been running for 22 s. This task ends to free its core for a fetcher; Spark's UI shows the fetchers' job, "
        "'kinesis-efo fetchers'",
    ):
        network.read(first=None)


def test_fetcher_that_always_breaks_off_fails_with_its_reason() -> None:
    with raises(FetcherUnreachableError, "shard orders:shardId-000000000000 could not be read for 60 s: gone"):
        Network(fails=[0] * 1000).read()


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 12)), max_size=12),
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
)
def test_each_record_comes_once_wherever_a_call_breaks(fails: list[int | None], cuts: list[int]) -> None:
    assert Network(fails, cuts).read() == EVERYTHING
