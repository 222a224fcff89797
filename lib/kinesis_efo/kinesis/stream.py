"""One stream: lists its shards, tracks their lineage, checks for lost records, and creates subscriptions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from botocore.parsers import ResponseParserError

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.aws_errors import CALL_ERRORS, describe
from kinesis_efo.clock import Clock
from kinesis_efo.decisions.lineage import Lineage, Shard, announced
from kinesis_efo.decisions.losses import NO_FACTS, START_SECONDS, Facts, names_another, predates
from kinesis_efo.decisions.quiet import SETTLED_SECONDS
from kinesis_efo.errors import InvalidRequestError, StreamError
from kinesis_efo.kinesis.delivery import EventSink
from kinesis_efo.kinesis.ends import End, is_empty, is_far, last_before, look_from
from kinesis_efo.kinesis.faults import Backoff, LossErrors, Verdict, classify, fatal, former_position, replaced
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, Limits, ReadContext
from kinesis_efo.kinesis.retention import Retention
from kinesis_efo.kinesis.subscription import ShardSubscription
from kinesis_efo.kinesis.topology import Topology, explained, identified, read_distribution, starting_positions
from kinesis_efo.kinesis.transport import EventStream, Transport, Unlimited
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import FIRST_WORD_SECONDS, Patience
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, PositionKind
from kinesis_efo.records.distribution import Distribution
from kinesis_efo.records.events import ChildShard, EventHead

logger = logging.getLogger(__name__)
T = TypeVar("T")

_RECENT_MILLIS: Final = 5_000
"""A search for the tip begins this many milliseconds before now. If there is a recent record, its sequence number is the exact end."""

_TIP_MILLIS: Final = 5_000
"""A search for the tip ends at the first record that arrived this many milliseconds (a margin for clock errors) after the search began.
Otherwise, it would never end if records arrive faster than it reads them."""

_SEARCH_SECONDS: Final = 60.0
"""A search is repeated if responses have not proved within this many seconds that the tip was reached. It fails after `retryTimeout`."""


class Stream:
    """A stream and its consumer. `source`: the manifest's location, for messages. `losses`: logs losses that do not fail the query."""

    def __init__(
        self,
        ref: StreamRef,
        transport: Transport,
        lister: Topology,
        retry: RetrySettings,
        source: str,
        clock: Clock,
        limits: Limits = KINESIS_LIMITS,
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        self.lineage = Lineage(())
        self.listings = 0  # How often the shards were listed
        self.identity = StreamIdentity(ref.stream_arn)  # The ARN and, after `identify`, the time of creation
        self._shards: dict[str, Shard] = {}
        self._created_again = False
        self.ref = ref
        self._lister = lister
        self._source = source
        self._clock = clock
        context = ReadContext(ref, source, transport, lister, retry, limits, clock)
        self._patience = Patience(retry, clock, context.random)
        # Do not limit the number of retries, only their time: an outdated list of shards is not a failure.
        self._lists = Patience(replace(retry, max_retries=None), clock, context.random)
        self._presence = context.presence
        self._retention = Retention(
            ref, lister, clock, self._find, fail=fail_on_data_loss, shortest=limits.shortest_retention
        )
        self.losses: Final = self._retention.log
        self._learned: dict[str, tuple[ChildShard, ...]] = {}
        self._hash_ranges: dict[str, tuple[int, int]] = {}
        self.subscriptions: Final = context
        self.separate: ReadContext | None = None  # GetRecords, for queries that are catching up; None if disabled

    def allow_separate(self, transport: Transport, limits: Limits) -> None:
        """Set the GetRecords transport with which queries that are catching up read separately."""
        ref = replace(self.ref, consumer_arn=None)
        self.separate = replace(self.subscriptions, stream=ref, transport=transport, limits=limits)

    async def refresh(self, *, patient: bool = False) -> None:
        """List the stream's shards again, with retries if `patient`. Raises `StreamError` if they cannot be listed."""
        ask = partial(self._lister.shards, self.ref.stream_arn)
        listed = await (self._retried("ListShards", ask) if patient else self._listed(ask()))
        known, self._shards = self._shards, {shard.shard_id: shard for shard in listed}
        # Detect a re-created stream: all shard ids are lower than before, or shards begin at other numbers. Positions may not reveal this.
        begins_anew = bool(known and listed) and max(self._shards) < min(known)
        if begins_anew or any(known.get(shard.shard_id, shard).first != shard.first for shard in listed):
            self._created_again = True
        self.listings += 1
        self._hash_ranges |= {shard.shard_id: shard.hash_range for shard in listed}
        self.lineage = Lineage(self._shards.values())
        for parent, children in self._learned.items():
            # Also add announced children that are not listed yet. A parent is announced, and thus added, before its children.
            if parent in self.lineage or self.lineage.too_new((parent,)):
                self.lineage.merge(children, parent)

    async def identify(self) -> None:
        """Read the stream's creation time, which distinguishes it from earlier streams of the same name. On failure, it stays unknown."""
        if self.identity.created is None:
            self.identity = await identified(self._lister, self.ref.stream_arn, self._patience)

    def check_created(self, created: int) -> None:
        """Raise `StreamReplacedError` if the stream was not created at `created` (epoch seconds)."""
        former = StreamIdentity(self.ref.stream_arn, created)
        if self.identity.differs(former):
            raise replaced(
                self.ref, f": the checkpoint belongs to {former}, but the stream is now {self.identity}", self._source
            )

    async def distribution(self, *, patient: bool = False) -> Distribution:
        """Return how Kinesis distributes new records over the shards; `UNKNOWN` if DescribeStreamSummary fails. Retries if `patient`."""
        ask = partial(self._lister.distribution, self.ref.stream_arn)
        what = f"DescribeStreamSummary of stream {self.ref.name!r}"
        return await read_distribution(self._patience.call(what, ask) if patient else ask(), self.ref)

    async def starting_positions(self, start: Position) -> dict[str, Position]:
        """Return the shards that a new query reads first, each with its start. The query reads their children later.

        `start` is `TRIM_HORIZON` or `AT_TIMESTAMP`. A time before the trim horizon is not changed, so that the loss is reported.
        Raises the errors of `refresh`.
        """
        listed = start
        if start.kind is PositionKind.AT_TIMESTAMP and not await self._retried(
            "DescribeStreamSummary", partial(self._retention.reaches_back_to, start.value)
        ):
            listed = TRIM_HORIZON
        ask = partial(starting_positions, self._lister, self.ref.stream_arn, listed)
        return {shard.shard_id: start for shard in await self._retried("ListShards", ask)}

    def shard(self, shard_id: str) -> Shard | None:
        """Return a shard from the last list; None if it is too new or was trimmed."""
        return self._shards.get(shard_id)

    async def hash_ranges(self, shard_ids: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return the first and last hash key of each shard that was ever listed or announced by a parent's last event.

        Waits until new shards are listed, so that planning a range again gives the same hash keys. Raises the same errors as `refresh`.
        """
        await self._list_until(lambda: self.lineage.too_new(shard_ids), "is not listed yet")
        return {shard_id: self._hash_ranges[shard_id] for shard_id in shard_ids if shard_id in self._hash_ranges}

    async def list_shards(self, shard_ids: Collection[str]) -> None:
        """Wait until these shards are listed or trimmed. ListShards may return a shard up to a minute after its parent's last event."""
        await self._list_until(lambda: [each for each in shard_ids if each > max(self._shards)], "is not listed yet")

    async def list_children(self, ended: Collection[str]) -> None:
        """Wait until the children of ended shards are listed."""

        def lacks(shard_id: str) -> bool:
            shard, children = self._shards.get(shard_id), self.lineage.children(shard_id)
            known = all(child in self._shards for child in children)
            return not known or (shard is not None and shard.last is None and not children)

        await self._list_until(lambda: list(filter(lacks, ended)), "has ended, and its children are not listed yet")

    async def _list_until(self, lacking: Callable[[], list[str]], what: str) -> None:
        async def list_all() -> None:
            await self.refresh(patient=True)
            self._raise_if_created_again()  # the shards belong to the earlier stream, and will never be listed
            if shards := lacking():
                raise ResponseParserError(f"shard {min(shards)} {what}")

        if lacking():
            await self._listed(self._lists.call(f"ListShards of stream {self.ref.name!r}", list_all))

    def with_descendants(self, shard_ids: Iterable[str]) -> list[Shard]:
        """Return these shards and all their listed descendants."""
        found = self.lineage.with_descendants(shard_ids)
        return [shard for shard in self._shards.values() if shard.shard_id in found]

    def add_children(self, shard_id: str, children: Sequence[ChildShard]) -> None:
        """Record the children that a shard's last event announced."""
        self._learned[shard_id] = tuple(children)
        self.lineage.merge(children, shard_id)
        self._hash_ranges |= {child.shard_id: self.lineage[child.shard_id].hash_range for child in children}

    def children(self, shard_id: str) -> tuple[ChildShard, ...]:
        """Return a shard's children, as named by ListShards or by the shard's last event."""
        return announced(self.lineage[child] for child in self.lineage.children(shard_id))

    async def check_loss(
        self, positions: Mapping[str, Position], known: Callable[[str, Position], Facts], reported: set[str]
    ) -> None:
        """Check for shards that were trimmed before they were read to their end, and for positions of an earlier stream.

        Args:
            positions: The query's offset in this stream.
            known: Returns the low watermark of a shard's position, and which losses are accepted.
            reported: Trimmed shards that were already reported. The call adds the shards that it reports.

        Raises `DataLossError` for a fatal loss, `StreamReplacedError` for an earlier stream, `StreamError` if calls to Kinesis fail.
        """
        self._raise_if_created_again()
        if lost := set(self.lineage.lost(positions)) - reported:
            await self.refresh()  # a shard may be missing from the last list only because it is too new
            losses = LossErrors()
            for shard_id in sorted(lost.intersection(self.lineage.lost(positions))):
                position = positions.get(shard_id)
                with losses.collect():
                    self._retention.report_gone(shard_id, position, known(shard_id, position or TRIM_HORIZON))
                    reported.add(shard_id)
            # Report the losses at the beginning of their children, too, so that a user can accept all of them with a single restart.
            for shard_id in self.lineage.startable({**positions, **dict.fromkeys(lost, SHARD_END)}) if losses else ():
                with suppress(StreamError), losses.collect():
                    await self.check_position(shard_id, TRIM_HORIZON, known(shard_id, TRIM_HORIZON))
            losses.raise_if_any()
        for shard_id, position in positions.items():
            self._check_number(shard_id, position)

    def _raise_if_created_again(self) -> None:
        if self._created_again:
            raise replaced(self.ref, ": its shards begin at different sequence numbers than before", self._source)

    def _check_number(self, shard_id: str, position: Position) -> None:
        """Raise an error if a position belongs to an earlier stream, or if a position past the shard's end belongs to another shard."""
        if (shard := self.shard(shard_id)) is None:
            return
        if predates(position, shard):
            raise replaced(self.ref, former_position(shard_id, position), self._source)
        # A reader past a closed shard's end does not call Kinesis, which would reject a sequence number of another shard. So check it here.
        if shard.last is not None and position.reaches(Position.after(shard.last)) and names_another(position, shard):
            raise InvalidRequestError(
                f"stream {self.ref.name!r}, shard {shard_id}: the position {position} belongs to another shard",
                remedy="give each shard a number of its own records",
            ).about(self.ref.name, shard_id)

    async def check_position(self, shard_id: str, position: Position, known: Facts, *, planned: bool = False) -> None:
        """Check for lost records after a position. `TRIM_HORIZON` means that no query has committed a record of the shard.

        Set `planned` if a micro-batch from this position was already planned. Otherwise, the trim horizon may move by `START_SECONDS`
        after the query chose it as its start, without counting as a loss. Raises the same errors as `check_loss`.
        """
        check = partial(
            self._retention.check,
            shard_id,
            position,
            known,
            begins=position == TRIM_HORIZON,
            least=0.0 if planned else START_SECONDS,
            reader="",
        )
        passed = await self._retried("DescribeStreamSummary", check)
        # Ignore `proven` at the trim horizon: the low watermark in an offset is then valid only for the offset's query.
        until = max(known.read_until or 0.0, 0.0 if position == TRIM_HORIZON else known.proven or 0.0)
        if passed is None and until:
            self._retention.was_idle(shard_id, position, until, known.read_since)

    async def horizon(self) -> float:
        """Return the trim horizon in epoch seconds. Retries, and raises a `StreamError` if the retention cannot be read."""
        return await self._retried("DescribeStreamSummary", self._retention.horizon)

    async def is_past(self, shard_id: str, number: int) -> bool:
        """Whether the record with this sequence number is older than the retention; False if the retention cannot be read."""
        try:
            return await self._retention.is_past(shard_id, number)
        except CALL_ERRORS as error:
            logger.info("stream %r: its retention cannot be read now: %s", self.ref.name, describe(error))
            return False

    def is_recent(self, shard_id: str, position: Position) -> bool:
        """Whether all records after a position are certainly retained: they are younger than the shortest retention that Kinesis allows."""
        return self._retention.is_recent(shard_id, position, self.shard(shard_id))

    async def _find(self, shard_id: str) -> Shard | None:
        """Return a shard from the last list or, if it is missing there, from a new list; None if it is not listed."""
        if (shard := self.shard(shard_id)) is not None:
            return shard
        return (await self._presence.shards(shard_id)).get(shard_id)

    # -- subscribing to shards and finding their ends

    def subscribe(
        self,
        shard_id: str,
        start: Position,
        sink: EventSink,
        known: Facts = NO_FACTS,
        may_open: Callable[[], Awaitable[None]] | None = None,
        *,
        reader: str | None = None,
    ) -> ShardSubscription:
        """Create a subscription to one shard, without starting it. Any earlier subscription to the shard must have ended.

        Args:
            start: Where to start.
            sink: Receives the events.
            known: The low watermark at `start`, and which losses are accepted.
            may_open: Awaited before each SubscribeToShard call.
            reader: The query that is catching up with GetRecords; None if queries share the subscription.

        Raises `StreamReplacedError` or `InvalidRequestError` if `start` belongs to an earlier stream or another shard.
        """
        self._check_number(shard_id, start)
        by = self._by(reader is not None)
        return ShardSubscription(
            by, shard_id, start, sink, retention=self._retention, known=known, may_open=may_open, reader=reader
        )

    def _by(self, separate: bool) -> ReadContext:
        return self.separate if separate and self.separate is not None else self.subscriptions

    @property
    def may_poll(self) -> bool:
        """Whether GetRecords may be used for this stream."""
        return self.ref.polled or self.separate is not None

    async def tip(self, shard_id: str, position: Position, *, separate: bool = False) -> End:
        """Find the tip of a shard that was read up to `position`. Raises `StreamError` if the shard cannot be read.

        All records that Kinesis acknowledged before the call are at or before the tip. The result contains the last record's number if the
        record arrived in the last few seconds, or if GetRecords is used. `separate` prefers GetRecords, because a second subscription
        would end the run's subscription to the shard.
        """
        now = self._clock.time()
        end = await self._tip(shard_id, position, round(now * 1000), separate=separate)
        return await self._record_idle(shard_id, position, end, now)

    async def _record_idle(self, shard_id: str, position: Position, end: End, read_until: float) -> End:
        since: float | None = None
        if end.position == position and not self.is_recent(shard_id, position):
            # Records after the position may have been trimmed before the search, so only the time since the trim horizon counts as idle.
            horizon = await self.horizon()
            if position == TRIM_HORIZON:
                since = horizon
            elif (self._retention.low_watermark(shard_id, None, position, NO_FACTS) or 0.0) < horizon:
                return end
        self._retention.was_idle(shard_id, end.position, read_until, since)
        return end

    def idle(self, shard_id: str, position: Position) -> tuple[float, float | None] | None:
        """Return the times `read_until` and `since` that `Retention.was_idle` recorded for a position; None if it recorded none."""
        return self._retention.idle(shard_id, position)

    async def _tip(self, shard_id: str, position: Position, now: int, *, separate: bool) -> End:
        by = self._by(separate)
        look = partial(self._look, by, shard_id, epoch_ms=now + _TIP_MILLIS, timed=False)
        if by.stream.polled:
            if (end := await look(position, gives_up=is_far)) is not None:
                return end
            starts = look_from(now, position, polled=True)
        else:
            recent = Position.at_timestamp(now - _RECENT_MILLIS)
            timed = position.kind is PositionKind.AT_TIMESTAMP and position.value > recent.value
            starts = [position] if timed else [recent, position]
        for start in starts:
            try:
                end = await look(start, gives_up=is_empty if start != position else None)
            except InvalidRequestError:
                if start == position:
                    raise
                continue  # this machine's clock is fast: for Kinesis, `start` is in the future
            if end is not None and end.position != start:
                return end
        return End(position)

    async def end_before(self, shard_id: str, epoch_ms: int, position: Position, *, separate: bool = False) -> End:
        """Find the position just before the first record that arrived at `epoch_ms` or later; `SHARD_END` if the shard ends earlier.

        Waits until `epoch_ms` has passed. Returns `position`, up to which the shard was read, if no record after `position` arrived
        before `epoch_ms`. For `separate` and the errors, see `tip`.
        """
        by = self._by(separate)
        await self._clock.sleep(max(0.0, epoch_ms / 1000 + SETTLED_SECONDS - self._clock.time()))
        for start in look_from(epoch_ms, position, polled=by.stream.polled):
            end = await self._look(by, shard_id, start, epoch_ms, gives_up=is_empty if start != position else None)
            if end is not None and end.position != start:
                return await self._record_idle(shard_id, position, end, epoch_ms / 1000)
        return await self._record_idle(shard_id, position, End(position), epoch_ms / 1000)

    async def _look(
        self,
        by: ReadContext,
        shard_id: str,
        start: Position,
        epoch_ms: int,
        *,
        timed: bool = True,
        gives_up: Callable[[EventHead], bool] | None = None,
    ) -> End | None:
        """Search with `last_before`, beginning at `start` and subscribing again as needed. Returns None if `gives_up` ended the search."""
        look = partial(
            last_before,
            epoch_ms=epoch_ms,
            now=self._clock.monotonic,
            timed=timed,
            gives_up=gives_up,
            patience=min(by.retry.timeout, _SEARCH_SECONDS),
        )
        end = End(start)
        while True:
            found = await self._subscribe_and_read(by, shard_id, end.position, look)
            if found.position is not None:
                end = End(found.position, end.record if found.record is None else found.record)
            elif not found.complete:
                return None
            if found.complete:
                return end

    async def _subscribe_and_read(
        self,
        by: ReadContext,
        shard_id: str,
        start: Position,
        read: Callable[[EventStream], Awaitable[T]],
    ) -> T:
        """Subscribe and return the result of `read`, which reads the events and closes them. Repeat both steps after a transient error."""
        recovery = by.recovery(shard_id)
        backoff, since = Backoff(by.retry, by.random), self._clock.monotonic()
        while True:
            await self._clock.sleep(max(0.0, recovery.next_call - self._clock.monotonic()))
            recovery.next_call = self._clock.monotonic() + by.limits.between_calls
            try:
                events = await by.transport.subscribe(by.stream, shard_id, start, Unlimited())
                recovery.next_call = self._clock.monotonic() + by.limits.after_success
                return await read(events)
            except Exception as error:
                fault = classify(error)
                if fault.verdict is Verdict.MISSING:
                    # Retry: right after a reshard, Kinesis may report an existing shard as missing.
                    await self._clock.sleep(await recovery.delay(fault, start))
                    continue
                patient = fault.verdict in (Verdict.RETRY, Verdict.TOO_SOON, Verdict.NOT_ACTIVE, Verdict.TAKEN_OVER)
                delay = backoff.failed(error, self._clock.monotonic()) if patient else None
                if delay is None:
                    raise fatal(fault, by.stream, shard_id, self._source, backoff) from error
                if (seconds := self._clock.monotonic() - since) >= FIRST_WORD_SECONDS:
                    text = f"{self.ref.name}:{shard_id}: still searching for its end after {seconds:.0f} s: {fault}"
                    by.warn(fault.code, shard_id, text)
                await self._clock.sleep(delay)

    async def _retried(self, operation: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask` with retries, and translate its errors to `StreamError`. Used where the caller can wait."""
        return await self._listed(self._patience.call(f"{operation} of stream {self.ref.name!r}", ask))

    async def _listed(self, listing: Awaitable[T]) -> T:
        return await explained(listing, self.ref, self._source)
