"""The planner: holds the run's lease, asks the fetcher what has arrived, and tells how far the next micro-batch may go.

It lives in one asyncio loop and is not thread-safe. Positions from Spark's offsets decide what is read; the lease only decides
whether this run may read at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from kinesis_efo.clock import Clock, within
from kinesis_efo.errors import FetcherError, KinesisEfoError, LeaseLostError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.fetcher.coordinator import Coordinator
from kinesis_efo.fetcher.messages import PollReply, ShardProgress
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.leases.checkpoints import Checkpoints, Pace
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.run import RunLease
from kinesis_efo.leases.run_lag import Lag
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.marks import Mark
from kinesis_efo.options import Bounds
from kinesis_efo.planner.lag_sum import summed_up
from kinesis_efo.planner.query_ends import Ends, Found
from kinesis_efo.planner.resumption import Resumption
from kinesis_efo.planner.strictness import Strictness
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Offset, Position, ShardKey, ShardRange

logger = logging.getLogger(__name__)

_CLOSING_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.05
_FULL_SECONDS: Final = 10.0
"""If nothing more arrives for this long, twice the time between two events of an idle shard, nobody takes what has."""


class Fetching(Protocol):
    """Fetches the shards of a run: `LocalFetching`, or `Cluster`."""

    def start(self, coordinator: Coordinator) -> None:
        """Begin."""

    async def stop(self) -> None:
        """Stop fetching."""

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> list[ShardProgress]:
        """Tell how far the next micro-batch may go."""

    async def commit(self, offset: Offset) -> Mapping[ShardKey, LastRecord]:
        """Drop what Spark will not ask for again; returns the last records."""

    def last_record(self, wanted: ShardRange) -> int | None:
        """The number of the last record of a range that is buffered; None if it has none, or it is not known."""

    def begin(self, stream: str) -> None:
        """Start to fetch a stream that may be read now."""

    def end(self, stream: str) -> None:
        """Stop reading a stream at once: it may not be read any more."""

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        """Close the subscriptions of shards, until somebody asks for them again."""

    def expect(self, offset: Offset) -> None:
        """Begin to read shards from these positions on: ranges behind them are about to be read, before anything was polled."""

    def tip(self, key: ShardKey) -> Position | None:
        """Where a shard ended when it was begun to be read; None while that is not known."""

    def fetcher_of(self, key: ShardKey) -> str | None:
        """Which fetcher reads a shard; None if nobody does, or there is only one."""

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        """How the shards are read, those of one stream or all."""

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        """The time up to which every record that arrived lies at or before a position, if it is known."""


class Planner:
    """Plans the micro-batches of one run.

    Args:
        streams: What the query reads.
        fetching: Fetches the shards.
        leases: The run's lease on each stream; not started yet.
        table: Where checkpoints are written.
        lease_keys: Which row belongs to which shard.
        pace: How often checkpoints are written.
        patience: Seconds for which the lease is waited for, if nothing else can be done.
        clock: Time.
        ends: Where a query ends that reads what is there.

    Attributes:
        failure: What ended the run, or its query.
    """

    def __init__(
        self,
        streams: Streams,
        fetching: Fetching,
        leases: RunLease,
        table: LeaseStore,
        lease_keys: LeaseKeys,
        pace: Pace,
        patience: float,
        clock: Clock,
        ends: Bounds | None = None,
    ) -> None:
        self.failure = Failure()
        self._ends = ends or Bounds()
        self._streams = streams
        self._fetching = fetching
        self._leases = leases
        self._checkpoints = Checkpoints(
            table,
            lease_keys,
            leases.epoch,
            streams.identity,
            pace,
            clock,
            read_until=fetching.read_until,
            failure=self.failure,
            fetcher=fetching.fetcher_of,
        )
        self._patience = patience
        self._strictness = Strictness(streams, leases, patience, clock)
        self._clock = clock
        self._offset: Offset | None = None
        self._committed: Offset | None = None
        self._unknown: list[ShardKey] = []
        self._resumption = Resumption(lease_keys, leases.notes)
        self._ending: asyncio.Task[Ends] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._sought: tuple[float, Mapping[ShardKey, tuple[str, int]]] | None = None

    async def start(self, endpoint: str, status: str | None = None) -> None:
        """Take the run's lease on each stream as soon as it is free, and begin to read what polls ask for.

        Args:
            endpoint: Where this run serves data; other processes find it in its rows.
            status: How tools ask this run how far it is; they find it there, too.

        Raises:
            LeaseTableError: The lease table cannot be used.
            StreamError: A stream cannot be listed.
        """
        self._fetching.start(self)
        await self._leases.start(self, endpoint, status)
        self._checkpoints.start()
        await all_of(self._streams.refresh(patient=True), self._streams.identify())
        self._leases.want(self._streams.streams)

    async def stop(self) -> None:
        """Stop fetching, write the last checkpoints and release the leases. Waiting calls fail."""
        self.failure.stop()
        for looking in (self._ending, self._probing):
            if looking is not None:
                looking.cancel()
        await within(self._clock, _CLOSING_SECONDS, self._fetching.stop())
        await self._checkpoints.stop()
        await self._leases.stop()

    # -- what the stream reader asks

    async def wait_held(self, at_most: float) -> bool:
        """Wait until this run holds the lease on each of its streams.

        Args:
            at_most: Seconds to wait.

        Raises:
            AlreadyRunningError: Another run holds one of them.
            KinesisEfoError: The lease table cannot be used.
        """
        streams = self._streams.streams
        await within(self._clock, at_most, self._leases.wait_held(streams))
        return all(map(self._leases.is_held, streams))

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> PollReply:
        """Tell how far the next micro-batch may go: at once if there is something new, else after the timeout.

        Args:
            offset: How far the query has come: positions of all shards.
            max_bytes: Most bytes of the next micro-batch.
            max_records: Most records of it.
            at_most: Seconds to wait if there is nothing new.
        """
        self.failure.raise_if_set()
        self._follow(offset)
        try:
            await self._streams.check_loss(offset)
        except KinesisEfoError as error:
            self.failure.set(error)
            raise
        new = self._streams.appeared
        starting = [*new, *(self._streams.starting(offset) if offset.has_ends else [])]
        shards = await self._fetching.poll(offset, max_bytes, max_records, 0.0 if starting else at_most)
        self.failure.raise_if_set()
        ends = {ShardKey(each.stream, each.shard): SHARD_END for each in shards if each.through == "SHARD_END"}
        if not ends and not offset.has_ends:
            return PollReply(shards, new)
        starting = sorted({*new, *self._streams.starting({**offset, **ends})})
        return PollReply(shards, starting, self._streams.finished(offset))

    def _follow(self, offset: Offset) -> None:
        """Take note of which shards the query reads."""
        changed = self._offset is None or (offset is not self._offset and offset.keys() != self._offset.keys())
        if changed or any(self._streams.lease_info(key, offset[key]).is_known for key in self._unknown):
            self._want_checkpoints(offset)
        self._offset = offset

    def _want_checkpoints(self, offset: Offset) -> None:
        shards = {key: self._streams.lease_info(key, offset[key]) for key in offset}
        # So new that no listing had them yet: their rows are completed once one does.
        self._unknown = [key for key, info in shards.items() if not info.is_known]
        self._checkpoints.want(shards)

    async def commit(self, offset: Offset) -> None:
        """Drop what Spark will not ask for again, and move the checkpoints.

        Args:
            offset: Positions up to which everything is processed.
        """
        self.failure.raise_if_set()
        if self._offset is None:
            # Nobody has polled: the one micro-batch of `catchUp` was planned from the tips.
            self._follow(offset)
        records = await self._fetching.commit(offset)
        for key, position in offset.changes_since(self._committed).items():
            if position.is_end:
                self._checkpoints.finish(key, self._streams.stream(key.stream).lineage.children(key.shard))
            else:
                self._checkpoints.note(key, position, records.get(key))
        self._committed = offset

    async def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        """The last record of each of some ranges that are buffered, and end where no event does.

        Args:
            ranges: The ranges.
        """
        self.failure.raise_if_set()
        found = {wanted.key: self._fetching.last_record(wanted) for wanted in ranges}
        return {key: last for key, last in found.items() if last is not None}

    async def check_replay(self, begin: Offset, ranges: Sequence[ShardRange]) -> None:
        """Look for what is gone of ranges that Spark reads first after a start: a former run may have planned them long ago.

        Args:
            begin: The offset that they start from.
            ranges: The ranges.
        """
        self.failure.raise_if_set()
        try:
            await self._streams.check_replay(begin, ranges)
        except KinesisEfoError as error:
            self.failure.set(error)
            raise

    async def strict(self, streams: Collection[str]) -> frozenset[str]:
        """Those of some streams of which KPL aggregates may be left out, if the option `deaggregate` asks for it."""
        return await self._strictness.of(sorted(streams))

    def planned(self, mark: Mark) -> None:
        """Take note that Spark's log has the micro-batch with a mark. May be called in any thread."""
        self._leases.notes.note_mark(mark)

    async def resume(self, offset: Offset) -> None:
        """Warn if the lease table shows that the checkpoint which the query goes on from had been further.

        Args:
            offset: Up to where the checkpoint has planned.
        """
        self._resumption.goes_on(offset)

    # -- where a query ends

    async def ends(self, offset: Offset, at_most: float) -> Found | None:
        """Tell where a query is to end that reads what is there: at the tips as they are at the first call, or where the option says.

        Args:
            offset: Positions of all shards at the first call.
            at_most: Seconds to wait for the answer.

        Returns:
            As much as is known by now: polls and reads tell the rest. None if not even the shards are known: ask again.

        Raises:
            ConfigurationError: The option names what does not exist, or a time in the future.
        """
        self.failure.raise_if_set()
        if self._ending is None:
            if self._offset is None:
                self._want_checkpoints(offset)
            self._ending = asyncio.create_task(self._begin_ending(offset), name="ends")
        done, _ = await asyncio.wait({self._ending}, timeout=at_most)
        self.failure.raise_if_set()
        return self._ending.result().found(self._fetching.tip) if done else None

    async def tips(self, offset: Offset, at_most: float) -> Offset | None:
        """Tell where a query is to end that reads what is there in one micro-batch.

        Meanwhile it is read from the offset on. If there is no room for all of that, which nobody takes yet, the rest of the tips is
        asked for.

        Args:
            offset: Positions of all shards.
            at_most: Seconds to wait for the answer.

        Returns:
            A position for each shard of the offset, and each descendant that is reached, `SHARD_END` for those that are read whole;
            None while that is not known yet: ask again.

        Raises:
            ConfigurationError: The option names what does not exist, or a time in the future.
        """
        give_up_at = self._clock.monotonic() + at_most
        while (found := await self.ends(offset, max(0.0, give_up_at - self._clock.monotonic()))) is not None:
            assert self._ending is not None
            if found.complete:
                ending, self._ending = self._ending.result(), None
                tips = {key: end for key, end in found.ends.items() if end is not None}
                read = ((key, ShardRange(key, offset.get(key, TRIM_HORIZON), end)) for key, end in tips.items())
                lasts = {key: self._fetching.last_record(wanted) for key, wanted in read if not wanted.is_over}
                records = {key: last for key, last in lasts.items() if last is not None}
                return Offset(tips, {**ending.numbers_of_records(tips), **found.lasts, **records})
            if (left := give_up_at - self._clock.monotonic()) <= 0:
                break
            if self._probing is None:
                ends = self._ending.result()
                self._seek(ends, {key: begin for key, begin in ends.open.items() if key in found.ends})
                await self._clock.sleep(min(left, _LOOK_SECONDS))
            elif (await asyncio.wait({self._probing}, timeout=left))[0]:
                probing, self._probing = self._probing, None
                probing.result()
        return None

    async def _begin_ending(self, offset: Offset) -> Ends:
        await self._streams.refresh(patient=True)
        ends = Ends(self._ends, self._streams, offset, self._clock)
        # Asking takes a subscription and would end another run's: so it needs the lease, as reading does.
        await self._leases.wait_held({key.stream for key in ends.asked}, self._patience)
        # What an open subscription tells may have been sent before now.
        await self._fetching.let_go(ends.asked)
        await ends.ask()
        return ends

    def _seek(self, ends: Ends, begins: Mapping[ShardKey, Position]) -> None:
        """Read shards on to their tips; ask for those that are not reached because nothing more can be read."""
        self._fetching.expect(Offset(begins))
        held = {each.key: (each.fetched, each.buffered) for each in self._fetching.statuses() if each.key in begins}
        for key, (fetched, _) in held.items():
            ends.fetched(key, Position.parse(fetched))
        now = self._clock.monotonic()
        if self._sought is None or self._sought[1] != held:
            self._sought = now, held
        elif now - self._sought[0] >= _FULL_SECONDS and any(size for _, size in held.values()):
            self._probing = asyncio.create_task(self._probe(ends, list(begins)), name="tips")

    async def _probe(self, ends: Ends, shards: Collection[ShardKey]) -> None:
        logger.info("more is unread than there is room for: asking for the tips of %d shards", len(shards))
        await self._fetching.let_go(shards)
        await ends.probe(shards)

    # -- what the run's lease tells it

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Let a stream be read whose lease is held now."""
        self._checkpoints.found(stream, rows)
        self._resumption.found(stream, rows)
        # A lease that is just being taken when the query stops is given back; nobody would stop what is begun now.
        if self.failure.error is None:
            self._fetching.begin(stream)

    def lease_lost(self, stream: str, owner: str | None) -> None:
        """Stop reading a stream whose lease is gone. If another run took it, the query fails."""
        self._fetching.end(stream)
        if owner is not None:
            self.failure.set(
                LeaseLostError(
                    f"{readable(owner)} took the lease on stream {stream} while this query was reading: the application has a second "
                    "query, or this one was stopped for longer than leaseTimeout. Nothing was lost; run one query per application"
                )
            )

    def lag(self, stream: str) -> Lag:
        """How far this run is behind in a stream, for its row."""
        return summed_up(self._fetching.statuses(stream), round(self._clock.time() * 1000))

    async def status(self) -> list[ShardStatus]:
        """How each shard is read, and how far it is processed, for tools."""
        done: Mapping[ShardKey, Position] = self._committed or self._offset or {}
        return [
            replace(each, done=str(done[each.key]) if each.key in done else None) for each in self._fetching.statuses()
        ]

    # -- what the fetcher asks

    def may_read(self, shard: ShardKey) -> bool:
        """See `Coordinator`."""
        return self._leases.is_held(shard.stream)

    async def may_open(self, shard: ShardKey) -> None:
        """See `Coordinator`. A feed is closed at the moment in which its lease is lost."""

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        """See `Coordinator`."""
        return FetcherError(
            f"the lease on stream {shard.stream} could not be taken within {seconds:.0f} s: another run holds it, or the lease table "
            "does not answer; `kinesis-efo leases list` shows its owner: stop that query"
        )

    def read_until(self, shard: ShardKey, position: Position) -> float | None:
        """See `Coordinator`."""
        return self._checkpoints.read_until(shard, position)
