"""One stream for its readers: lists its shards, keeps their lineage, and makes subscriptions to them.

Remembers per shard, across subscriptions, when Kinesis allows the next SubscribeToShard.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.aws_errors import CALL_ERRORS, describe
from kinesis_efo.clock import Clock
from kinesis_efo.distribution import Distribution
from kinesis_efo.errors import DataLossError
from kinesis_efo.kinesis.backoff import Backoff
from kinesis_efo.kinesis.before import End, Found, last_before, look_from
from kinesis_efo.kinesis.events import ChildShard
from kinesis_efo.kinesis.faults import Verdict, classify, fatal, replaced
from kinesis_efo.kinesis.lineage import Lineage, Shard, announced
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, Limits, ReadContext
from kinesis_efo.kinesis.retention import Retention, predates
from kinesis_efo.kinesis.stats import SubscriptionStats
from kinesis_efo.kinesis.subscription import EventSink, ShardSubscription
from kinesis_efo.kinesis.subscriptions import Subscriptions
from kinesis_efo.kinesis.topology import ShardLister, explained, identified, starting_positions, told_distribution
from kinesis_efo.kinesis.transport import Transport, Unlimited
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import Patience
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind

logger = logging.getLogger(__name__)
T = TypeVar("T")

_TIP_MILLIS: Final = 5_000
"""A shard's tip is looked for up to so long after now, as exactly as Kinesis' time is known, and no further: whoever reads more slowly than
records arrive would never come to it."""


class Stream:
    """A stream and its consumer.

    Args:
        ref: From the manifest.
        transport: Subscribes to shards.
        lister: Lists shards.
        retry: How often a failure is retried, and how long apart.
        source: Where the manifest came from, for messages.
        clock: Time.
        limits: Kinesis' times.
        fail_on_data_loss: Whether records that are gone fail the query.

    Attributes:
        listings: How often its shards were listed.
        subscriptions: Those to its shards.
        apart: The same with GetRecords, for queries that read apart from the others of their run; None if none may.
        identity: Which stream it is; see `identify`.
    """

    def __init__(
        self,
        ref: StreamRef,
        transport: Transport,
        lister: ShardLister,
        retry: RetrySettings,
        source: str,
        clock: Clock,
        limits: Limits = KINESIS_LIMITS,
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        self.lineage = Lineage(())
        self.listings = 0
        self.identity = StreamIdentity(ref.stream_arn)
        self._shards: dict[str, Shard] = {}
        self.ref = ref
        self._lister = lister
        self._source = source
        self._clock = clock
        context = ReadContext(ref, source, transport, lister, retry, limits, clock)
        self._patience = Patience(retry, clock, context.random)
        self._fail_on_data_loss = fail_on_data_loss
        self._retention = Retention(ref, lister, clock, fail=fail_on_data_loss, shortest=limits.shortest_retention)
        self._lost: set[str] = set()
        self._learned: dict[str, tuple[ChildShard, ...]] = {}
        self.subscriptions: Final = Subscriptions(context, self._retention)
        self.apart: Subscriptions | None = None

    @property
    def stats(self) -> dict[str, SubscriptionStats]:
        """What happened to the subscriptions of each shard, by shard id."""
        return self.subscriptions.stats

    def allow_apart(self, transport: Transport, limits: Limits) -> None:
        """Let queries read apart from the others of their run.

        Args:
            transport: Reads with GetRecords.
            limits: Kinesis' times for it.
        """
        context = replace(
            self.subscriptions.context, stream=replace(self.ref, consumer_arn=None), transport=transport, limits=limits
        )
        self.apart = Subscriptions(context, self._retention)

    @property
    def polled(self) -> bool:
        """Whether it is read with GetRecords."""
        return self.ref.polled

    async def refresh(self, *, patient: bool = False) -> None:
        """List the stream's shards anew.

        Args:
            patient: Whether to wait out what passes.

        Raises:
            StreamError: They cannot be listed; the message says why and what to do.
        """
        ask = partial(self._lister.shards, self.ref.stream_arn)
        listed = await (self._waited("ListShards", ask) if patient else self._listed(ask()))
        self._shards = {shard.shard_id: shard for shard in listed}
        self.listings += 1
        self.lineage = Lineage(self._shards.values())
        for parent, children in self._learned.items():
            if parent in self._shards:
                self.lineage.merge(children, parent)

    async def identify(self) -> None:
        """Find out when the stream was created, which tells it from an earlier one of its name. Not every role may ask."""
        if self.identity.created is None:
            self.identity = await identified(self._lister, self.ref.stream_arn)

    async def distribution(self) -> Distribution:
        """Who decides on the shard of records that are put now, as far as that can be told."""
        return await told_distribution(self._lister, self.ref)

    async def starting_positions(self, start: Position) -> dict[str, Position]:
        """Where a new query starts, by shard id. The children of these shards come after them.

        Args:
            start: `TRIM_HORIZON` or `AT_TIMESTAMP`. A time before retention becomes the horizon, which loses nothing.

        Raises:
            StreamError: As `refresh`.
        """
        if start.kind is PositionKind.AT_TIMESTAMP and not await self._waited(
            "DescribeStreamSummary", partial(self._retention.reaches_back_to, start.value)
        ):
            start = TRIM_HORIZON
        ask = partial(starting_positions, self._lister, self.ref.stream_arn, start)
        return await self._waited("ListShards", ask)

    def shard(self, shard_id: str) -> Shard | None:
        """A shard as ListShards returned it; None if it is not listed yet, or not any more."""
        return self._shards.get(shard_id)

    def describe(self, shard_id: str) -> str:
        """What the subscription to a shard does, for messages."""
        return self.subscriptions.describe(shard_id)

    def hash_range(self, shard_id: str) -> tuple[int, int] | None:
        """The hash keys of a shard, also of a child that only its parent's last event announced; None if they are not known."""
        return self.lineage[shard_id].hash_range if shard_id in self.lineage else None

    def with_descendants(self, shard_ids: Iterable[str]) -> list[Shard]:
        """These shards and all their descendants, as far as listed."""
        found = set(shard_ids)
        # A child is created after its parents, so its sequence numbers begin behind theirs.
        for shard in sorted(self._shards.values(), key=lambda shard: shard.first):
            if found.intersection(shard.parents):
                found.add(shard.shard_id)
        return [shard for shard in self._shards.values() if shard.shard_id in found]

    def learn(self, shard_id: str, children: Sequence[ChildShard]) -> None:
        """Take note of the children that a shard's last event announced."""
        self._learned[shard_id] = tuple(children)
        self.lineage.merge(children, shard_id)

    def children(self, shard_id: str) -> tuple[ChildShard, ...]:
        """The children of a shard, in the form in which its last event announces them."""
        return announced(self.lineage[child] for child in self.lineage.children(shard_id))

    async def check_loss(self, positions: Mapping[str, Position], *, resumed: bool) -> None:
        """Report shards that are gone before they were read, wholly or from their beginning, and those of an earlier stream.

        Args:
            positions: The offset of this stream, by shard id.
            resumed: Whether the query may have stood still before this offset.

        Raises:
            DataLossError: Such a shard was found, and losses fail the query.
            StreamReplacedError: The stream was deleted and created again since.
            StreamError: The shards cannot be listed, or the retention is not known.
        """
        ended = any(position.is_end for position in positions.values())
        if lost := set(self._missing(positions, ended)) - self._lost:
            await self.refresh()  # the shard may only have been too new
            for shard_id in sorted(lost.intersection(self._missing(positions, ended))):
                self._report(shard_id)
        for shard_id, position in positions.items():
            shard = self.shard(shard_id)
            if shard is not None and predates(position, shard):
                raise replaced(self.ref, shard_id, position, self._source)
            if resumed and shard is not None and position == TRIM_HORIZON and self._follows(shard, positions):
                await self._listed(self._retention.check_begun(shard))

    async def check_position(self, shard_id: str, position: Position, read_until: float | None = None) -> None:
        """Report what is gone behind a position, as a subscription from there on does.

        Args:
            shard_id: The shard.
            position: How far it was read.
            read_until: What arrived before this time was read, epoch seconds, if that is known.

        Raises:
            DataLossError, StreamError: As `check_loss`.
        """
        await self._listed(self._retention.check(shard_id, position, read_until))

    async def is_past(self, shard_id: str, number: int) -> bool:
        """Whether retention has taken a record; False if that is not known.

        Args:
            shard_id: The shard.
            number: The record's number.
        """
        try:
            return await self._retention.is_past(shard_id, number)
        except CALL_ERRORS as error:
            logger.info("stream %r: its retention is not known for now: %s", self.ref.name, describe(error))
            return False

    async def check_replay(self, shard_id: str, through: Position, positions: Mapping[str, Position]) -> None:
        """Report what is gone of a range from a shard's trim horizon on that was planned before: its end says what it held.

        Args:
            shard_id: The shard.
            through: The end of the range.
            positions: The offset that the micro-batch starts from, of this stream, by shard id.

        Raises:
            DataLossError, StreamError: As `check_loss`.
        """
        shard = self.shard(shard_id)
        if shard is None:
            return  # reading it fails
        if shard_id not in positions or self._follows(shard, positions):
            # A child: it was to be read from its first record on.
            await self._waited("DescribeStreamSummary", partial(self._retention.check_begun, shard))
        await self._waited("DescribeStreamSummary", partial(self._retention.check_range, shard, through))

    def _missing(self, positions: Mapping[str, Position], ended: bool) -> list[str]:
        return self.lineage.lost(positions) if ended else self.lineage.vanished(positions)

    def _follows(self, shard: Shard, positions: Mapping[str, Position]) -> bool:
        return any(parent in positions and positions[parent].is_end for parent in shard.parents)

    def _report(self, shard_id: str) -> None:
        message = (
            f"stream {self.ref.name!r}, shard {shard_id} does not exist any more and was not read to its end: what lay in it is "
            "gone (retention)"
        )
        if self._fail_on_data_loss:
            raise DataLossError(f"{message}. Set kinesis-efo option 'failOnDataLoss' to false to go on without it")
        self._lost.add(shard_id)
        logger.warning("%s; going on without it, as option failOnDataLoss=false asks", message)

    # -- subscribing

    def subscribe(
        self,
        shard_id: str,
        start: Position,
        sink: EventSink,
        read_until: float | None = None,
        may_open: Callable[[], Awaitable[None]] | None = None,
        *,
        apart: bool = False,
    ) -> ShardSubscription:
        """Make a subscription to one shard, not started. A former one must have ended.

        Args:
            shard_id: The shard.
            start: Where to begin.
            sink: Receives the events.
            read_until: What arrived before this time lies at or before `start`, epoch seconds, if that is known.
            may_open: Awaited before each SubscribeToShard; None: this reader always may open one.
            apart: Whether it reads with GetRecords, apart from the others of the run.

        Raises:
            StreamReplacedError: The shard is younger than the position, and so is its stream.
        """
        shard = self.shard(shard_id)
        if shard is not None and predates(start, shard):
            raise replaced(self.ref, shard_id, start, self._source)
        return self._by(apart).make(shard_id, start, sink, read_until, may_open)

    def _by(self, apart: bool) -> Subscriptions:
        return self.apart if apart and self.apart is not None else self.subscriptions

    async def tip(self, shard_id: str, position: Position, *, apart: bool = False) -> End:
        """Where a shard ends right now: after its last records, if they came so lately that the last one is known.

        Args:
            shard_id: The shard.
            position: How far it has been read.
            apart: Whether to ask with GetRecords: a subscription would end the one that others of the run read by.

        Raises:
            StreamError: It cannot be subscribed to.
        """
        by = self._by(apart)
        polled = by.context.stream.polled
        if not polled:
            now = round(self._clock.time() * 1000)
            for start in look_from(now, position)[:-1]:
                end = await self._look(by, shard_id, start, now + _TIP_MILLIS, timed=False)
                if end is not None and end.record is not None:
                    return end
        context = by.context
        tip = await self._asked(by, shard_id, partial(context.transport.latest_tip, context.stream, shard_id, position))
        return End(tip, tip.sequence_number if polled and tip != position else None)

    async def end_before(self, shard_id: str, epoch_ms: int, position: Position, *, apart: bool = False) -> End:
        """The position in front of the first record of a shard that arrived at a time or later; `SHARD_END` if none did.

        Args:
            shard_id: The shard.
            epoch_ms: The time, epoch milliseconds; not in the future.
            position: How far it has been read. Returned if nothing is left before the time.
            apart: As `tip`.

        Raises:
            StreamError: It cannot be subscribed to.
        """
        for start in look_from(epoch_ms, position):
            if (end := await self._look(self._by(apart), shard_id, start, epoch_ms)) is not None:
                return end
        return End(position)

    async def _look(
        self, by: Subscriptions, shard_id: str, start: Position, epoch_ms: int, *, timed: bool = True
    ) -> End | None:
        """The end of a shard at a time, as it is read from a position on; None if nothing lies between."""

        async def look(start: Position, opened: Callable[[], None]) -> Found:
            events = await by.context.transport.subscribe(by.context.stream, shard_id, start, Unlimited())
            opened()
            return await last_before(events, epoch_ms, self._clock.monotonic, timed=timed)

        end: End | None = None
        while True:
            found = await self._asked(by, shard_id, partial(look, start))
            if found.position is not None:
                start = found.position
                end = End(start, end.record if found.record is None and end is not None else found.record)
            if found.complete or found.position is None:
                return end

    async def _asked(self, by: Subscriptions, shard_id: str, ask: Callable[[Callable[[], None]], Awaitable[T]]) -> T:
        """Ask by a subscription of its own, as often as it takes. `ask` says when that is open: the next one counts from then."""
        context, history = by.context, by.history(shard_id)
        backoff = Backoff(context.retry, context.random)

        def opened() -> None:
            history.next_call = self._clock.monotonic() + context.limits.after_success

        while True:
            await self._clock.sleep(max(0.0, history.next_call - self._clock.monotonic()))
            try:
                return await ask(opened)
            except Exception as error:
                fault = classify(error)
                patient = fault.verdict in (Verdict.RETRY, Verdict.TOO_SOON, Verdict.NOT_ACTIVE, Verdict.TAKEN_OVER)
                delay = backoff.failed(error, self._clock.monotonic()) if patient else None
                if delay is None:
                    raise fatal(fault, context.stream, shard_id, self._source, backoff) from error
                await self._clock.sleep(delay)

    async def _waited(self, operation: str, ask: Callable[[], Awaitable[T]]) -> T:
        """`_listed`, but what passes is waited out: for a start, which has nothing else to do."""
        return await self._listed(self._patience.call(f"{operation} of stream {self.ref.name!r}", ask))

    async def _listed(self, listing: Awaitable[T]) -> T:
        return await explained(listing, self.ref, self._source)
