"""`retryTimeout`: how long a query lives on while DynamoDB or a shard fails, through the options to its error."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kinesis_efo.errors import KinesisEfoError, RetriesExhaustedError, TableUnavailableError
from kinesis_efo.options import RetrySettings
from kinesis_efo_local import NoFaults, Request
from kinesis_efo_local.errors import AwsError
from tests.support.fetching import Reading, reading
from tests.support.world import World

MakeWorld = Callable[..., World]


class Down(NoFaults):
    """Fails at some operations while it is down."""

    def __init__(self, *operations: str) -> None:
        self.operations = operations
        self.down = True

    async def before(self, request: Request) -> None:
        if self.down and request.operation in self.operations:
            raise AwsError("InternalServerError", "down", 500)


def failure(query: Reading, seconds: float = 60.0) -> KinesisEfoError:
    deadline = time.monotonic() + seconds
    while True:
        assert time.monotonic() < deadline, f"the query still lives after {seconds} s"
        try:
            query.batch()
        except KinesisEfoError as error:
            return error


# Shows lease table away.
@pytest.mark.slow
def test_a_lease_table_that_stays_away_ends_the_query(faulty: MakeWorld) -> None:
    faults = Down("Scan", "UpdateItem", "PutItem")
    faults.down = False
    w = faulty(faults)
    w.put([("k", b"x")] * 5)
    with reading(w, retryTimeout="2s") as query:
        query.until(5)
        faults.down = True
        began = time.monotonic()
        error = failure(query)
    assert isinstance(error, TableUnavailableError)
    assert "'retryTimeout' lets it wait longer" in str(error)
    assert time.monotonic() - began >= 2
    faults.down = False


@pytest.mark.slow
def test_a_shard_that_only_fails_ends_the_query(faulty: MakeWorld) -> None:
    w = faulty(Down("SubscribeToShard"))
    patience = RetrySettings(base_ms=1, max_ms=20, timeout=2.0)
    began = time.monotonic()
    with reading(w, retry=patience) as query:
        error = failure(query)
    assert isinstance(error, RetriesExhaustedError)
    assert "'retryTimeout'" in str(error)
    assert time.monotonic() - began >= 2
