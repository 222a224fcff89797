"""What tools need to ask a run, as it stands in the run's row; and what earlier versions understand of the answer."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.tls import make_certificate
from kinesis_efo.fetcher.status import (
    QueryShard,
    QueryStatus,
    RunStatus,
    ShardStatus,
    StatusAccess,
    StatusRequest,
    Subscription,
)

NAMESPACE = "0b6f2c1b-2daa-4abb-9ccc-1234567890ab net:[4026531836]"


@pytest.mark.parametrize("encrypted", [True, False])
def test_the_access_survives_the_row_and_is_small(encrypted: bool) -> None:
    pem = make_certificate(datetime.now(UTC)).pem if encrypted else None
    hosts = ("10.0.1.17", "ip-10-0-1-17.eu-west-1.compute.internal")
    access = StatusAccess(FetcherAddress(NAMESPACE, 34_567, hosts, pem), "t" * 22)
    text = access.to_text()
    assert StatusAccess.parse(text) == access
    # With everything else that a run's row says, it stays under the 1 KB that one write unit covers.
    assert len(text) < 700


@pytest.mark.parametrize("text", ["", "{", "AAAA", "eJwDAAAAAAE="])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        StatusAccess.parse(text)


QUERY = QueryStatus(
    2, ["orders"], "7c1f09ab", 1700, "orders", "s-1", shards=[QueryShard("orders", "s-1", "AFTER:5", 3, 400, 1700)]
)
TOLD = RunStatus(
    1.0, [ShardStatus("orders", "s-1", "AFTER:7", 0, 0, None, 0, done="AFTER:5", query=2)], 1 << 20, 0.5, [QUERY]
)


class FormerShard(msgspec.Struct, frozen=True, array_like=True):
    """A shard's status as earlier versions tell and read it."""

    stream: str
    shard: str
    fetched: str
    buffered: int
    records: int
    waiting: float | None
    behind: int | None
    fetcher: str | None = None
    subscription: Subscription | None = None
    done: str | None = None


class FormerStatus(msgspec.Struct, frozen=True):
    at: float
    shards: list[FormerShard]
    room: int = 0
    cpu: float = 0.0


class FormerRequest(msgspec.Struct, frozen=True):
    pass


def test_a_status_with_queries_survives_the_wire() -> None:
    assert msgspec.json.decode(msgspec.json.encode(TOLD), type=RunStatus) == TOLD


def test_a_tool_that_knows_no_queries_reads_what_a_run_tells_of_them() -> None:
    read = msgspec.json.decode(msgspec.json.encode(TOLD), type=FormerStatus)
    assert (read.at, read.room, read.cpu) == (1.0, 1 << 20, 0.5)
    assert read.shards == [FormerShard("orders", "s-1", "AFTER:7", 0, 0, None, 0, None, None, "AFTER:5")]


def test_a_run_that_knows_no_queries_is_read_and_asked() -> None:
    former = FormerStatus(1.0, [FormerShard("orders", "s-1", "AFTER:7", 0, 0, None, 0)])
    read = msgspec.json.decode(msgspec.json.encode(former), type=RunStatus)
    assert (read.queries, read.shards[0].query) == ([], None)
    assert msgspec.json.decode(msgspec.json.encode(FormerRequest()), type=StatusRequest) == StatusRequest()
    asked = msgspec.json.encode(StatusRequest(query_shards=True))
    assert msgspec.json.decode(asked, type=FormerRequest) == FormerRequest()
