"""SubscribeToShard: the loop that pushes the events of one open subscription. The shard wakes it when there is something to push."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from . import wire
from .consumers import Subscription
from .fault_injection import Close, FaultInjection, Finish, Freeze, GoAway, Pause, Reset, ResetStream
from .reading import cursor_for
from .state import Kinesis


class _Cut(Exception):
    """Raised after a response was cut off, so that it is not finished cleanly."""


class _Finished(Exception):
    """Raised to end the response cleanly."""


def open_subscription(kinesis: Kinesis, params: dict[str, Any]) -> Subscription:
    """Check a SubscribeToShard request and open the subscription, which ends an older subscription of the same consumer and shard.

    Raises AwsError, which the client receives instead of an event stream.
    """
    settings, now = kinesis.settings, kinesis.now()
    consumer = kinesis.consumer(params["ConsumerARN"])
    shard = consumer.stream.shard(params["ShardId"])
    position = params["StartingPosition"]
    cursor = cursor_for(consumer.stream, shard, position, now.wall)
    consumer.admit(shard, now.monotonic, settings.resubscribe_seconds, settings.subscribe_interval_seconds)
    if params.get("DryRun"):
        consumer.stream.end_dry_run(now)
    subscription = Subscription(consumer, shard, cursor, position)
    consumer.open(subscription, now.monotonic)
    return subscription


class Wire(ABC):
    """Writes one response. The default methods are for a connection with a single response, as in HTTP/1.1; HTTP/2 overrides them."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send bytes, and wait if the client reads too slowly."""

    @abstractmethod
    def cut(self, *, reset: bool) -> None:
        """Close the connection in the middle of the response: with a RST if `reset`, otherwise with a FIN."""

    def reset_stream(self, error_code: int) -> None:  # noqa: ARG002
        """End only this response, before it is complete."""
        self.cut(reset=True)

    def go_away(self, error_code: int, *, grace: bool) -> None:  # noqa: ARG002
        """Stop accepting requests on the connection; without `grace`, end this response as well."""
        if not grace:
            self.cut(reset=False)

    async def freeze(self, seconds: float) -> None:
        """Stop reading and writing on the connection for some time."""
        await asyncio.sleep(seconds)


class Push:
    """Sends one subscription's events until it ends.

    `faults.frame` is called with each frame. If `cbor`, events are encoded in CBOR, not in JSON.
    """

    def __init__(
        self, kinesis: Kinesis, subscription: Subscription, faults: FaultInjection, *, cbor: bool = False
    ) -> None:
        self._kinesis = kinesis
        self._subscription = subscription
        self._faults = faults
        self._cbor = cbor
        self._woken = asyncio.Event()
        subscription.wake = self._woken.set

    def close(self) -> None:
        """Close the subscription if it is still open. Called when its response has ended or could not begin."""
        self._subscription.consumer.closed(self._subscription)

    async def send(self, to: Wire) -> bool:
        """Send the events until the subscription ends.

        Returns True if the caller should now end the response cleanly, False if an injected fault has already cut it off.
        Raises ConnectionError if the client disconnects, and TimeoutError if a write is still blocked when the subscription must end.
        """
        subscription = self._subscription
        subscription.shard.listen(subscription.wake)
        try:
            # End the subscription on time even if a write blocks because the client does not read.
            async with asyncio.timeout(self._kinesis.settings.subscription_seconds + 1):
                await self._push(to)
        except _Finished:
            pass
        except _Cut:
            return False
        finally:
            self.close()
        return True

    async def _push(self, to: Wire) -> None:
        kinesis, subscription = self._kinesis, self._subscription
        settings, shard = kinesis.settings, subscription.shard
        stream = subscription.consumer.stream
        loop = asyncio.get_running_loop()
        ends = loop.time() + settings.subscription_seconds
        idle = loop.time() + settings.idle_event_seconds
        rate = subscription.consumer.rate(shard.id, kinesis.now().monotonic)

        async def send(frame: bytes) -> None:
            await self._send(to, frame)

        await send(wire.initial_response(cbor=self._cbor))
        while True:
            self._woken.clear()
            if subscription.error is not None:
                await send(wire.exception_frame(subscription.error, cbor=self._cbor))
                return
            time = loop.time()
            if time >= ends:
                return
            now = kinesis.now()
            shard.trim(stream.horizon(now.wall))
            page = shard.page(subscription.cursor, settings.max_event_records, settings.max_event_bytes)
            if page is None:
                if shard.closed:
                    nowhere = "" if kinesis.wrong.writes_empty else None
                    payload = wire.event_payload((), nowhere, 0, shard.describe_children())
                    await send(wire.event_frame(payload, cbor=self._cbor))
                    subscription.continuation = None
                    subscription.events += 1
                    return
                if time < idle:
                    await self._wait(min(idle, ends) - time)
                    continue
                number = shard.numbering.continuation(stream.next_tick(now.wall))
                await self._event(send, (), number, kinesis.wrong.lag(0), subscription.cursor, 0)
            elif kinesis.wrong.hides((subscription.consumer.arn, shard.id)):
                await self._event(send, (), shard.standing(subscription.cursor), 0, subscription.cursor, 0)
                await asyncio.sleep(min(settings.idle_event_seconds, ends - time))
            else:
                delay = rate.delay(page.size, now.monotonic) if settings.read_limit else 0.0
                if delay > 0:
                    await self._wait(min(delay, ends - time))
                    continue
                rate.take(page.size)
                behind = kinesis.wrong.lag(shard.behind_millis(page.after, now.wall))
                await self._event(send, page.records, page.continuation, behind, page.after, page.size)
            idle = loop.time() + settings.idle_event_seconds

    async def _event(
        self,
        send: Callable[[bytes], Awaitable[None]],
        records: list[bytes] | tuple[()],
        continuation: str,
        behind: int,
        cursor: int,
        size: int,
    ) -> None:
        subscription, wrong = self._subscription, self._kinesis.wrong
        if wrong.gives_last_number:
            continuation = subscription.shard.number_before(cursor) or continuation
        children: list[Any] | None = [] if wrong.writes_empty else None
        payload = wire.event_payload(records, continuation, behind, children)
        await send(wire.event_frame(payload, cbor=self._cbor))
        subscription.cursor = cursor
        subscription.continuation = continuation
        subscription.events += 1
        subscription.records += len(records)
        subscription.bytes += size

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _send(self, to: Wire, frame: bytes) -> None:
        for step in self._faults.frame(self._subscription, frame):
            match step:
                case bytes():
                    await to.write(step)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Finish():
                    raise _Finished
                case Close() | Reset():
                    to.cut(reset=isinstance(step, Reset))
                    raise _Cut
                case ResetStream(error_code):
                    to.reset_stream(error_code)
                    raise _Cut
                case GoAway(error_code, grace):
                    to.go_away(error_code, grace=grace)
                    if not grace:
                        raise _Cut
                case Freeze(seconds):
                    await to.freeze(seconds)
