"""Reads a stream's shards, retention and consumer from Kinesis. I/O only: `decisions.lineage` decides what to read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.aws import pages_of, token_only
from kinesis_efo.aws_errors import CALL_ERRORS, Cause, action_of, cause_of, code_of, credentials_remedy, describe
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.decisions.lineage import Lineage, Shard, announced
from kinesis_efo.errors import AccessRefusedError, SequenceNumberError, StreamNotFoundError, SubscriptionError
from kinesis_efo.kinesis.transport import as_time
from kinesis_efo.manifest import StreamRef
from kinesis_efo.patience import Patience
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind
from kinesis_efo.records.distribution import Distribution, distribution_of
from kinesis_efo.records.events import ChildShard, sequence_number

logger = logging.getLogger(__name__)
T = TypeVar("T")

PAGE: Final = 1_000
"""The number of shards per ListShards call: the API's default, set explicitly."""

SKEW_SECONDS: Final = 300.0
"""Maximum error of this machine's clock in seconds: AWS rejects signatures of a machine whose clock is further off."""

FRESH_SECONDS: Final = 5.0
"""For how many seconds `Presence` reuses a response. Errors are not reused: only callers that are already waiting receive them."""


class StreamSummary(NamedTuple):
    """A stream's creation time (epoch seconds) and retention (seconds), from DescribeStreamSummary."""

    created: int
    retention: float


class Topology:
    """Calls ListShards, DescribeStreamSummary and DescribeStreamConsumer through an aiobotocore client.

    Each method raises botocore's `ClientError` if Kinesis rejects the call.

    Args:
        client: Retries throttled calls; the caller closes it.
        clock: Used to decide whether a rejected start time is in the future or before retention.
        patience: Retries transient errors, except those of `distribution`, which is not needed for reading. None: no retries.
    """

    def __init__(self, client: Any, clock: Clock | None = None, patience: Patience | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._patience = patience
        self._impossible: set[tuple[str, str]] = set()

    async def shards(self, stream_arn: str) -> list[Shard]:
        """List all shards within retention, open and closed.

        Raises `ResponseParserError` for an empty list, which some servers return right after a stream was created. Every stream has an open
        shard, so a later call succeeds. A new query that accepted an empty list would never read anything.
        """
        return await self._call("ListShards", stream_arn, partial(self._list_some, stream_arn))

    async def shards_open_at(self, stream_arn: str, epoch_ms: int) -> list[Shard] | None:
        """List the shards that were open at a time; None if the time is before retention or before the stream's creation.

        Raises `ResponseParserError` if the list is empty but the stream existed at that time.
        """
        return await self._call("ListShards", stream_arn, partial(self._list_open_at, stream_arn, epoch_ms))

    async def summary(self, stream_arn: str) -> StreamSummary:
        """Return the stream's creation time and retention."""
        found = await self._call("DescribeStreamSummary", stream_arn, partial(self._summary, stream_arn))
        return StreamSummary(int(found["StreamCreationTimestamp"].timestamp()), found["RetentionPeriodHours"] * 3600.0)

    async def distribution(self, stream_arn: str) -> Distribution:
        """Return how Kinesis distributes new records over the shards."""
        return distribution_of(self._client, await self._summary(stream_arn))

    async def consumer_exists(self, consumer_arn: str) -> bool:
        """Whether a consumer with this ARN exists and is not being deleted. A re-registered consumer has another ARN."""
        ask = partial(self._client.describe_stream_consumer, ConsumerARN=consumer_arn)
        try:
            answer = await self._call("DescribeStreamConsumer", consumer_arn, ask)
        except ClientError as error:
            if cause_of(error) is Cause.MISSING:
                return False
            raise
        return bool(answer["ConsumerDescription"]["ConsumerStatus"] != "DELETING")

    async def _call(self, operation: str, arn: str, ask: Callable[[], Awaitable[T]]) -> T:
        return await (ask() if self._patience is None else self._patience.call(f"{operation} of {arn}", ask))

    async def _summary(self, stream_arn: str) -> dict[str, Any]:
        answer = await self._client.describe_stream_summary(StreamARN=stream_arn)
        return cast(dict[str, Any], answer["StreamDescriptionSummary"])

    async def _list_open_at(self, stream_arn: str, epoch_ms: int) -> list[Shard] | None:
        time = as_time(epoch_ms)
        try:
            if listed := await self._list(stream_arn, {"Type": "AT_TIMESTAMP", "Timestamp": time}):
                return listed
            created = (await identified(self, stream_arn)).created
            if created is not None and epoch_ms / 1000 > created + 1:  # `created` is rounded down to seconds
                raise _no_shard(stream_arn)
            return None
        except ClientError as error:
            if code_of(error) != "InvalidArgumentException":
                raise
        # Kinesis returns the same error for a time before retention and for a time in the future, such as the current time of a fast clock.
        if epoch_ms / 1000 >= self._clock.time() - SKEW_SECONDS:
            return await self._list_some(stream_arn, {"Type": "AT_LATEST"})
        return None

    async def _list_some(self, stream_arn: str, shard_filter: dict[str, Any] | None = None) -> list[Shard]:
        if not (listed := await self._list(stream_arn, shard_filter)):
            raise _no_shard(stream_arn)
        return listed

    async def _list(self, stream_arn: str, shard_filter: dict[str, Any] | None = None) -> list[Shard]:
        request: dict[str, Any] = {"StreamARN": stream_arn, **({"ShardFilter": shard_filter} if shard_filter else {})}
        call = partial(self._client.list_shards, MaxResults=PAGE)
        pages = pages_of(f"ListShards of {stream_arn}", call, request, token_only)
        return [self._shard(stream_arn, data) async for page in pages for data in page["Shards"]]

    def _shard(self, stream_arn: str, data: dict[str, Any]) -> Shard:
        shard_id, numbers, hashes = data["ShardId"], data["SequenceNumberRange"], data["HashKeyRange"]
        where = f"stream {stream_arn}, shard {shard_id}"
        try:
            first, last = (
                None if (text := numbers.get(name)) is None else sequence_number(name, text)
                for name in ("StartingSequenceNumber", "EndingSequenceNumber")
            )
        except SequenceNumberError as error:
            raise SequenceNumberError(f"{where} cannot be read: {error}") from None
        assert first is not None, "Kinesis always names it"
        if last is not None and last < first:
            # For an open shard, some servers send a placeholder instead of an end. It is lower than the start. Ignore it.
            if (stream_arn, shard_id) not in self._impossible:
                self._impossible.add((stream_arn, shard_id))
                logger.warning(
                    "%s: ignoring EndingSequenceNumber %d, which is lower than StartingSequenceNumber %d: the shard counts as open until "
                    "its last event",
                    where,
                    last,
                    first,
                )
            last = None
        parents = (data.get("ParentShardId"), data.get("AdjacentParentShardId"))
        return Shard(
            shard_id,
            tuple(parent for parent in parents if parent),
            (int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"])),
            first,
            last,
        )


def _no_shard(stream_arn: str) -> ResponseParserError:
    return ResponseParserError(f"no shard of {stream_arn} is listed: it is being created or deleted")


async def starting_positions(lister: Topology, stream_arn: str, start: Position) -> dict[Shard, Position]:
    """Return the shards that a new query reads first, each with its start position. A time before retention becomes the trim horizon.

    `start` must be a `TRIM_HORIZON` or `AT_TIMESTAMP` position; raises `ValueError` for other kinds.
    """
    if start.kind is PositionKind.AT_TIMESTAMP:
        if (opened := await lister.shards_open_at(stream_arn, start.value)) is not None:
            return dict.fromkeys(opened, start)
    elif start.kind is not PositionKind.TRIM_HORIZON:
        raise ValueError(f"a whole stream cannot be read from {start}")
    lineage = Lineage(await lister.shards(stream_arn))
    return {lineage[root]: TRIM_HORIZON for root in lineage.roots()}


async def identified(lister: Topology, stream_arn: str, patience: Patience | None = None) -> StreamIdentity:
    """Return the identity of the stream that has this ARN now; without the creation time if DescribeStreamSummary fails."""
    ask = partial(lister.summary, stream_arn)
    try:
        summary = await (ask() if patience is None else patience.call(f"DescribeStreamSummary of {stream_arn}", ask))
        return StreamIdentity(stream_arn, summary.created)
    except CALL_ERRORS as error:
        logger.info("the creation time of stream %s is unknown: %s", stream_arn, describe(error))
        return StreamIdentity(stream_arn)


async def read_distribution(asking: Awaitable[Distribution], ref: StreamRef) -> Distribution:
    """Return the result of a `Topology.distribution` call; on an error, log it and return `UNKNOWN`."""
    try:
        return await asking
    except CALL_ERRORS as error:
        logger.info("stream %s: the distribution of its records is unknown: %s", ref.name, describe(error))
        return Distribution.UNKNOWN


class Presence:
    """Reads the shards and the consumer of one stream, with results at most `FRESH_SECONDS` old. Concurrent requests share one call.

    An error may affect a thousand shards at once, but Kinesis allows an account only a few ListShards and Describe calls per second.
    """

    def __init__(self, stream: StreamRef, lister: Topology, clock: Clock) -> None:
        self._clock = clock
        self._shards = SharedCall(lambda: lister.shards(stream.stream_arn), clock, FRESH_SECONDS)
        self._consumer = SharedCall(lambda: lister.consumer_exists(stream.consumer_arn or ""), clock, FRESH_SECONDS)
        self._identity = SharedCall(lambda: identified(lister, stream.stream_arn), clock, FRESH_SECONDS)

    async def shards(self, shard_id: str) -> dict[str, Shard]:
        """Return the stream's shards by id. If the last list lacks `shard_id`, request a new one."""
        now = self._clock.monotonic()
        listed = {shard.shard_id: shard for shard in await self._shards.get()}
        # A shared response may be older than the shard, so list again if the shard is missing.
        return listed if shard_id in listed else {shard.shard_id: shard for shard in await self._shards.get(now)}

    async def end(self, shard_id: str) -> tuple[int, tuple[ChildShard, ...]] | None:
        """Return the last sequence number of a shard and its children; None if the shard is open or not listed."""
        shards = await self._shards.get()
        last = next((shard.last for shard in shards if shard.shard_id == shard_id), None)
        return None if last is None else (last, announced(shard for shard in shards if shard_id in shard.parents))

    async def consumer(self) -> bool:
        """Whether the consumer in the manifest exists."""
        return await self._consumer.get()

    async def created(self) -> int | None:
        """Return when the stream was created, epoch seconds; None if that cannot be read."""
        return (await self._identity.get()).created


class SharedCall(Generic[T]):
    """A call that concurrent requests share: all receive the same response or error. A response is reused for `seconds` afterwards."""

    def __init__(self, ask: Callable[[], Awaitable[T]], clock: Clock, seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answered: tuple[float, T] | None = None
        self._error: Exception | None = None  # The error of the last call that failed

    async def get(self, since: float = -inf) -> T:
        """Return the response to a call that began at `since` (monotonic seconds) or later."""
        since, before = max(since, self._clock.monotonic() - self._seconds), self._error
        async with self._asking:
            if self._error is not None and self._error is not before:
                raise self._error  # the call for which this request was waiting has failed
            if self._answered is None or self._answered[0] < since:
                began = self._clock.monotonic()
                try:
                    self._answered = began, await self._ask()
                except Exception as error:
                    self._error = error
                    raise
            return self._answered[1]


async def explained(listing: Awaitable[T], ref: StreamRef, source: str) -> T:
    """Await a `Topology` call and translate AWS's errors to `StreamError` with a remedy. `source` is where the ARN came from."""
    where = f"stream {ref.name!r}: {ref.stream_arn} (from {source})"
    try:
        return await listing
    except CALL_ERRORS as error:
        cause = cause_of(error)
        if cause is Cause.MISSING:
            raise StreamNotFoundError(
                f"{where} does not exist (any more): {describe(error)}",
                remedy="Was it deployed to this account and region?",
            ).about(ref.name) from error
        if cause is Cause.NO_CREDENTIALS:
            raise AccessRefusedError(
                f"{where}: there are no AWS credentials to list its shards with: {describe(error)}",
                remedy=credentials_remedy(error),
            ).about(ref.name) from error
        if cause.refused or cause is Cause.EXPIRED:
            raise AccessRefusedError(
                f"{where}: its shards or its retention cannot be read: {describe(error)}",
                remedy=f"The role needs {action_of(error, 'ListShards')} on it, and valid credentials",
            ).about(ref.name) from error
        raise SubscriptionError(
            f"{where}: its shards or its retention cannot be read: {describe(error)}",
            remedy="Transient errors were retried for as long as kinesis-efo option 'retryTimeout' allows; check the stream's status and "
            "the network path to the endpoint, and restart the query: nothing was lost",
        ).about(ref.name) from error
