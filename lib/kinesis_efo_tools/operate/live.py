"""Requests the status of live runs from the runs. The lease table has their addresses, but its positions are some seconds old."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kinesis_efo.clock import in_thread
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.status import STATUS, QueryStatus, RunStatus, ShardStatus, StatusAccess, StatusRequest
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.positions import Position
from kinesis_efo.run.standing import lag_of

CONNECT_SECONDS: Final = 2.0
"""Timeout in seconds for connecting to a run, because a firewall may drop packets. Without a reply, positions come from the lease table."""

ANSWER_SECONDS: Final = 5.0

MOST_SECONDS: Final = 15.0
"""Timeout in seconds for a whole status request, including all addresses in the run's row."""

_MOST_TIME, _MOST_MILLIS = 10**11, 10**14


@dataclass(frozen=True, slots=True)
class RunReplies:
    """The replies of runs to a status request.

    `answers` has the replies, `reasons` the reasons why runs did not reply. The keys of both are the owners of the runs' leases.
    """

    answers: Mapping[str, RunStatus]
    reasons: Mapping[str, str]

    def shards(self, run: Lease | None, stream: str) -> dict[str, ShardStatus]:
        """Return the status of a stream's shards, by shard id, from the reply of the owner of the lease `run`; empty without a reply."""
        status = self.answers.get(run.owner or "") if run is not None else None
        return {each.shard: each for each in status.shards if each.stream == stream} if status is not None else {}

    def lags(self, run: Lease | None, stream: str, now: float) -> dict[str, float]:
        """Return the lag of a stream's shards in seconds at `now` (epoch seconds), by shard id. Omits shards without a lag in the reply."""
        shards = self.shards(run, stream)
        since = max(0.0, now - self.answers[run.owner or ""].at) if run is not None and shards else 0.0
        return {shard: each.millis / 1000 + since for shard, each in shards.items() if each.millis is not None}

    def with_lag(self, run: Lease, stream: str) -> Lease:
        """Return a run's row with the lag that its owner has just reported."""
        if not (shards := self.shards(run, stream)):
            return run
        at = round(1000 * self.answers[run.owner or ""].at)
        return replace(run, lag=lag_of(shards.values(), at))

    def queries(self, run: Lease | None, stream: str) -> list[QueryStatus]:
        """Return the status of the queries that read a stream; empty without a reply. Runs omit a single query that is not catching up."""
        status = self.answers.get(run.owner or "") if run is not None else None
        return [each for each in status.queries if stream in each.streams] if status is not None else []


async def ask(runs: Mapping[str, Lease], *, query_shards: bool = False, seconds: float = MOST_SECONDS) -> RunReplies:
    """Request the status from each owner of the runs' leases. Waits for each reply for at most `seconds`.

    With `query_shards`, a run with several queries also reports the progress of each query in each shard.
    """
    request = StatusRequest(query_shards)
    holders = {row.owner: row for row in runs.values() if row.owner is not None}
    answers: dict[str, RunStatus] = {}
    reasons: dict[str, str] = {}

    async def one(owner: str, row: Lease) -> None:
        if row.status is None:
            reasons[owner] = "its row has no address for a status call"
            return
        try:
            answers[owner] = await asyncio.wait_for(
                asyncio.wrap_future(in_thread(_status, StatusAccess.parse(row.status), request)), seconds
            )
        except TimeoutError:
            reasons[owner] = f"no reply within {seconds:.0f} s"
        except (KinesisEfoError, OSError, ValueError) as error:
            reasons[owner] = str(error).split(". ", 1)[0]

    await asyncio.gather(*(one(owner, row) for owner, row in holders.items()))
    return RunReplies(answers, reasons)


def _status(access: StatusAccess, request: StatusRequest) -> RunStatus:
    # Import this here, because it imports TLS, which is slow.
    from kinesis_efo.calls.connection import Connection

    address, limits = access.address, (CONNECT_SECONDS, CONNECT_SECONDS)
    with Connection(address, access.token, connect_seconds=limits[0], last_connect_seconds=limits[1]) as connection:
        status = connection.action(STATUS, request, RunStatus, ANSWER_SECONDS)
    for each in status.shards:
        Position.parse(each.fetched if each.done is None else each.done)
    lags = [*(each.millis for each in status.shards), *(each.millis for each in status.queries)]
    if not 0 <= status.at < _MOST_TIME or any(abs(each or 0) >= _MOST_MILLIS for each in lags):
        raise ValueError("its reply has impossible times")
    return status


def brought_up_to_date(
    rows: Mapping[str, Lease], shards: Mapping[str, ShardStatus], key: str, now: float
) -> dict[str, Lease]:
    """Return the rows of a stream's shards, updated with the positions that its run has just reported.

    The keys of `rows` and `shards` are shard ids. `key` is the prefix of lease keys for shards without a row; `now` is in epoch seconds.
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
            # Positions in the table only advance, so the slowest query can be before the row's position, to which `read_until` belongs.
            found[shard] = replace(row, checkpoint=position, continuation=None, sub=0, written=now, read_until=None)
    return found
