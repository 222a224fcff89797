"""Asks live runs how far they are: the lease table tells where they are, and is itself some seconds old."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.status import STATUS, QueryStatus, RunStatus, ShardStatus, StatusAccess, StatusRequest
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.positions import Position

CONNECT_SECONDS: Final = 2.0
"""A network that swallows packets is given up after so long for each way: the table is the answer then."""

ANSWER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What runs answered.

    Attributes:
        answers: By the owner of the lease.
        reasons: Why others did not answer, by owner.
    """

    answers: Mapping[str, RunStatus]
    reasons: Mapping[str, str]

    def shards(self, run: Lease | None, stream: str) -> dict[str, ShardStatus]:
        """What the holder of a run's lease said of a stream's shards, by shard id."""
        status = self.answers.get(run.owner or "") if run is not None else None
        return {each.shard: each for each in status.shards if each.stream == stream} if status is not None else {}

    def queries(self, run: Lease | None, stream: str) -> list[QueryStatus]:
        """What the holder of a run's lease said of its queries that read a stream, if there are several."""
        status = self.answers.get(run.owner or "") if run is not None else None
        return [each for each in status.queries if stream in each.streams] if status is not None else []


async def ask(runs: Mapping[str, Lease], *, query_shards: bool = False) -> Asked:
    """Ask the holders of runs' leases, each once.

    Args:
        runs: The runs' rows, by stream.
        query_shards: Whether each shard of each of several queries is to be told.
    """
    request = StatusRequest(query_shards)
    holders = {row.owner: row for row in runs.values() if row.owner is not None}
    answers: dict[str, RunStatus] = {}
    reasons: dict[str, str] = {}

    async def one(owner: str, row: Lease) -> None:
        if row.status is None:
            reasons[owner] = "its row does not say how to ask it"
            return
        try:
            answers[owner] = await asyncio.to_thread(_status, StatusAccess.parse(row.status), request)
        except (KinesisEfoError, ValueError) as error:
            reasons[owner] = str(error).split(". ", 1)[0]

    await asyncio.gather(*(one(owner, row) for owner, row in holders.items()))
    return Asked(answers, reasons)


def _status(access: StatusAccess, request: StatusRequest) -> RunStatus:
    # TLS takes a while to import, and only those who ask need it.
    from kinesis_efo.calls.connection import Connection

    address, limits = access.address, (CONNECT_SECONDS, CONNECT_SECONDS)
    with Connection(address, access.token, connect_seconds=limits[0], last_connect_seconds=limits[1]) as connection:
        return connection.action(STATUS, request, RunStatus, ANSWER_SECONDS)


def brought_up_to_date(
    rows: Mapping[str, Lease], shards: Mapping[str, ShardStatus], key: str, now: float
) -> dict[str, Lease]:
    """The rows of a stream's shards with the positions that its run knows.

    Args:
        rows: By shard id.
        shards: What the run said, by shard id.
        key: Begins the key of a row that is not written yet.
        now: The time, epoch seconds.
    """
    found = dict(rows)
    for shard, status in shards.items():
        if status.done is None:
            continue
        position = Position.parse(status.done)
        row = rows.get(shard) or Lease.new(f"{key}:{shard}", LeaseInfo(position))
        if row.reached is None or position.reaches(row.reached):
            found[shard] = replace(row, checkpoint=position, continuation=None, sub=0, written=now)
        elif status.query is not None:
            # A row never goes back, and a query may begin behind it. What the row says of times is not true of that query.
            found[shard] = replace(row, checkpoint=position, continuation=None, sub=0, written=now, read_until=None)
    return found
