"""Reads all shards of a stream, across reshards, until cancelled. Used to show records to users.

Does not store positions or acquire leases.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiobotocore.config import AioConfig

from kinesis_efo.aws import COMMAND_SECONDS, AsyncClients
from kinesis_efo.clock import Clock
from kinesis_efo.decisions.quiet import SETTLED_SECONDS, Quiet
from kinesis_efo.errors import ConfigurationError, first_of
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.polling import POLLING_CONFIG, PollingTransport, iterator_at, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, Limits
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport, Transport, Unlimited, subscription_config
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import AwsSettings, RetrySettings
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.decoder import decode
from kinesis_efo.records.events import Event, EventHead
from kinesis_efo_tools.operate.access import CONFIG
from kinesis_efo_tools.operate.backlog import CALL_SECONDS
from kinesis_efo_tools.operate.record_format import TailRecord

POLLING_SECONDS: Final = 1.0
"""Seconds between two GetRecords calls for a shard that had no more records."""

_MOST_SHARDS: Final = 10_000
_LOOK_BACK: Final = (5, 60, 600, 3_600, 21_600, 86_400)
"""The search for a shard's last records begins this many seconds before now. The values are tried in order, then the trim horizon."""


@dataclass(frozen=True, slots=True)
class Until:
    """A time at which reading ends.

    `time` is in epoch seconds; records that arrive then or later are dropped. `reached` is called when every shard has been read up to
    `time`, possibly more than once.
    """

    time: float
    clock: Clock
    reached: Callable[[], None]

    def admits(self, record: TailRecord) -> bool:
        """Whether a record arrived before `time`."""
        return record.arrived is None or record.arrived.timestamp() < self.time

    def is_behind(self, millis_behind: int) -> bool:
        """Whether a reader with this lag has read all records from before `time`. Allows for records that are still being stored."""
        return self.clock.time() - millis_behind / 1000 >= self.time + SETTLED_SECONDS


class Tail:
    """Passes the records of a stream to the function `take`, in order within each shard.

    Reading pauses while `take` processes the records of one event. `only` has the ids of the shards to read; if empty, all shards and their
    descendants are read. `until` drops later records, and reports when its time has been reached.
    """

    def __init__(
        self,
        stream: Stream,
        name: str,
        take: Callable[[list[TailRecord]], None],
        only: Collection[str] = (),
        until: Until | None = None,
    ) -> None:
        self._stream = stream
        self._name = name
        self._take = take
        self._only = frozenset(only)
        self._positions: dict[str, Position] = {}
        self._behind: dict[str, int] = {}
        self._until = until
        self._finished: set[str] = set()
        self._quiet: defaultdict[str, Quiet] = defaultdict(Quiet)

    @property
    def open_shards(self) -> int:
        """Number of shards that are being read."""
        return sum(not position.is_end for position in self._positions.values())

    @property
    def seconds_behind(self) -> float | None:
        """Lag of the slowest shard in seconds, as reported by Kinesis; None before the first event."""
        return max(self._behind.values()) / 1000 if self._behind else None

    async def run(self, start: Position, begin: Callable[[str], Awaitable[Position]] | None = None) -> None:
        """Read until cancelled, or until every shard has ended.

        `start` is a `TRIM_HORIZON` or `AT_TIMESTAMP` position. If `begin` is given, it returns the start of each initial shard instead.
        Raises StreamError if a shard cannot be read, ConfigurationError if the stream does not have a shard of `only`.
        """
        await self._stream.refresh()
        if missing := sorted(shard for shard in self._only if self._stream.shard(shard) is None):
            raise ConfigurationError(
                f"stream {self._name} has no shard {', '.join(missing)} (any more); `kinesis-efo shards` shows those it has"
            )
        starts = dict.fromkeys(self._only, start) if self._only else await self._stream.starting_positions(start)
        if begin is not None:
            starts = dict(zip(starts, await asyncio.gather(*map(begin, starts)), strict=True))
        try:
            async with asyncio.TaskGroup() as group:
                for shard, position in starts.items():
                    self._start(group, shard, position)
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None

    def _start(self, group: asyncio.TaskGroup, shard: str, position: Position) -> None:
        self._positions[shard] = position
        group.create_task(self._read(group, shard, position), name=f"tail of {shard}")

    async def _read(self, group: asyncio.TaskGroup, shard: str, position: Position) -> None:
        await self._stream.subscribe(shard, position, _TailSink(self, shard, position)).run()
        self._behind.pop(shard, None)
        self._positions[shard] = SHARD_END
        if not self._only:
            await self._stream.refresh()
            for child in self._stream.lineage.startable(self._positions):
                self._start(group, child, TRIM_HORIZON)
        self._finish(shard)

    def _finish(self, shard: str) -> None:
        """Record that a shard was read to its end or to `until`. At a shard's end, call this after starting its children."""
        self._finished.add(shard)
        if self._until is not None and self._finished.issuperset(self._positions):
            self._until.reached()

    def take(self, shard: str, event: Event, after: Position) -> None:
        """Process the next event of a shard. `after` is the position up to which the shard was read before."""
        self._behind[shard] = event.head.millis_behind
        if event.head.children:
            self._stream.add_children(shard, event.head.children)
        until = self._until
        # Ignore the lag of a closed shard, which may have ended long before `until`. Its children continue where it ended.
        closed = event.head.children or ((listed := self._stream.shard(shard)) is not None and listed.last is not None)
        if until is not None and not closed and until.is_behind(event.head.millis_behind):
            quiet = self._quiet[shard]
            quiet.observe(event.head, until.clock.monotonic())
            # Finish only after empty events: a shard that still sends records may already be closed, without its children being listed yet.
            if quiet.is_at_tip():
                self._finish(shard)
        if not event.head.records:
            return
        batches = decode(
            [event.payload],
            ShardKey(self._name, shard),
            after,
            event.through,
            deaggregate=True,
        )
        records = [
            TailRecord(
                shard,
                row["sequenceNumber"],
                row["subSequenceNumber"],
                row["partitionKey"],
                row["approximateArrivalTimestamp"],
                row["data"],
            )
            for batch in batches
            for row in batch.to_pylist()
        ]
        wanted = records if until is None else [record for record in records if until.admits(record)]
        self._take(wanted)
        if len(wanted) < len(records):
            self._finish(shard)


class _TailSink:
    """Receives the events of one shard; implements `EventSink`."""

    room: Final = Unlimited()
    committed: Final = None

    def __init__(self, tail: Tail, shard: str, position: Position) -> None:
        self._tail = tail
        self._shard = shard
        self._position = position

    async def admit(self, event: Event) -> None:
        self._tail.take(self._shard, event, self._position)
        if not event.head.still:
            self._position = event.through


@asynccontextmanager
async def stream_access(
    aws: AwsSettings, region: str, ref: StreamRef, source: str, clock: Clock, limits: Limits = KINESIS_LIMITS
) -> AsyncIterator[Stream]:
    """Open a stream for reading: with its consumer, or with GetRecords if it has none.

    `region` is used if `aws` does not set one; `source` describes, for error messages, where the ARNs came from.
    """
    clients = AsyncClients(aws, region, seconds=COMMAND_SECONDS)
    config = AioConfig(**(POLLING_CONFIG if ref.polled else subscription_config()), max_pool_connections=_MOST_SHARDS)
    time = KinesisClock(clock, warns=False)
    async with await clients.open("kinesis", CONFIG) as control, await clients.open("kinesis", config) as reader:
        time.watch(control)
        time.watch(reader)
        transport: Transport = PollingTransport(reader, time, POLLING_SECONDS) if ref.polled else BotoTransport(reader)
        yield Stream(
            ref,
            transport,
            Topology(control, time),
            # Give up sooner than a query: at a terminal, ten minutes without output would be too long.
            RetrySettings(max_retries=10),
            source,
            time,
            polling_limits(limits) if ref.polled else limits,
            fail_on_data_loss=False,
        )


async def before_last(kinesis: Any, clock: Clock, stream_arn: str, shard_id: str, count: int) -> Position:
    """Return the position after which a shard has its last `count` records.

    Shards cannot be read backwards, so the search is repeated from earlier and earlier times. `count` is at least 1; an aggregate counts as
    one record. Returns `TRIM_HORIZON` if the shard has fewer records. Raises botocore's ClientError if Kinesis rejects a call.
    """
    now = clock.time()
    for seconds in _LOOK_BACK:
        start = Position.at_timestamp(round((now - seconds) * 1000))
        last = await _last(kinesis, clock, stream_arn, shard_id, start, count + 1)
        if len(last) > count:
            return Position.after(last[0])
        if len(last) == count:
            return start
    last = await _last(kinesis, clock, stream_arn, shard_id, TRIM_HORIZON, count + 1)
    return Position.after(last[0]) if len(last) > count else TRIM_HORIZON


async def _last(kinesis: Any, clock: Clock, stream_arn: str, shard_id: str, start: Position, count: int) -> deque[int]:
    """Return the sequence numbers of the last `count` records after `start`, or of all if there are fewer."""
    found, quiet = deque[int](maxlen=count), Quiet()
    iterator = await iterator_at(kinesis, stream_arn, shard_id, start)
    while True:
        page = await kinesis.get_records(StreamARN=stream_arn, ShardIterator=iterator)
        found.extend(int(record["SequenceNumber"]) for record in page["Records"])
        iterator, behind = page.get("NextShardIterator"), page["MillisBehindLatest"]
        quiet.observe(EventHead(0, behind, len(page["Records"]), still=True), clock.monotonic())
        # With too few records, the caller searches again from an earlier time, so do not wait for more empty responses.
        too_few = len(found) < count - 1 and start != TRIM_HORIZON
        if iterator is None or (not behind and (page["Records"] or too_few or quiet.is_at_tip())):
            return found
        await clock.sleep(CALL_SECONDS)
