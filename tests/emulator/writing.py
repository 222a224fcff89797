"""Whole runs of a producer in virtual time, from seeds: threads or tasks put, flush, close, abort and fork while the stream fails.

The oracle: what `flush` or `close` confirmed is stored, in order where that is promised, and exactly once, except where an answer was lost
or an aggregate went to the wrong shard. For whatever is not stored, `close` raises an error, or, without `fail_on_error`, the producer
counts it as refused. A record that `put` refuses is not stored. Each future of `send` ends: with the record's shard, or an error if it is
not stored. No error comes without a cause, and no call waits for longer than `retry_timeout` while Kinesis acknowledges nothing.
"""

import asyncio
import logging
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, takewhile
from math import inf
from random import Random
from typing import Any

from kinesis_efo.errors import (
    KeyUnusableError,
    KinesisEfoError,
    ProducerClosedError,
    RecordRefusedError,
    RetriesExhaustedError,
    StreamNotFoundError,
    WriteError,
)
from kinesis_efo.producer import AsyncProducer, Producer, ProducerSettings
from kinesis_efo.producer.service import KinesisService
from tests.emulator.strands import BEGIN, Loop, World, fork, threads_of
from tests.emulator.written_stream import Outage, WrittenStream
from tests.support.producers import with_parts

TRACED = ("producer/blocking.py", "producer/queue.py", "producer/engine.py")
PATIENCE = 20.0
BACKOFF = 2.5
"""Seconds that the longest backoff and the way of an answer take together."""
SLACK = 6.0
"""Seconds that the longest pauses, backoff and linger, and the two ways of a request take together."""


class BrokenPromiseError(AssertionError):
    """The oracle's verdict."""


@dataclass
class Put:
    data: bytes
    key: str
    worker: int
    number: int
    size: int
    returned: bool = False
    returned_at: float = inf
    refused: bool = False
    """Whether `put` refused it, or a record before it in the same call."""


@dataclass
class Outcome:
    """What happened in a run."""

    records: int = 0
    stored: int = 0
    errors: list[str] = field(default_factory=list)
    confirmed: int = 0


class Run:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.others = Random(f"sends and timeouts of {seed}")
        self.sent: list[tuple[Put, Any]] = []
        self.ended_at: dict[bytes, float] = {}
        preempt = random.choice([0.0, 0.01, 0.05])
        self.world = World(random, TRACED, preempt)
        self.stream = WrittenStream(random, self.world.monotonic, BEGIN)
        self.blocking = random.random() < 0.6
        self.preempted = self.blocking and preempt > 0
        self.settings = ProducerSettings(
            max_outstanding_records=random.choice([1, 3, 20, 1_000]),
            linger=random.choice([0.0, 0.1, 2.0]),
            max_in_flight=random.randint(1, 4),
            ordered=random.random() < 0.5,
            aggregate=random.random() < 0.4,
            aggregate_bytes=1 << 10,
            fail_on_error=random.random() < 0.5,
            retry_timeout=PATIENCE,
            max_outstanding_bytes=1 << 20,
        )
        self.puts: list[Put] = []
        self.confirmed: set[bytes] = set()
        self.errors: list[KinesisEfoError] = []
        self.ended = self.aborted = False
        self.ends = random.random() < 0.5
        self.workers = random.randint(1, 4)
        self.steps = 3, 12
        self.pauses: tuple[float, ...] = (0.0, 0.05, 1.0, 8.0, 20.0)
        self.rests_until: float | None = None
        self.interrupted_in: str | None = None
        keys = Random(f"keys of {seed}")
        match keys.randrange(12):
            case 0 | 1:
                start = BEGIN + keys.uniform(0, 5)
                self.stream.outages.append(Outage(start, start + keys.choice([1.0, 10.0, 60.0]), "credentials"))
            case 2 | 3:
                # Many requests are in flight when the first one is refused.
                self.stream.outages, self.ends = [Outage(BEGIN, BEGIN + 60, "expired")], False
                self.workers, self.pauses = 4, (0.05, 0.1)
                self.settings = replace(
                    self.settings, ordered=False, linger=0.0, max_in_flight=8, max_outstanding_records=1_000
                )
            case 4:
                # A shard fails for longer than `retry_timeout`, while others take records of the same requests.
                self.one_shard_fails(60.0)
                self.workers, self.steps, self.pauses = 4, (40, 80), (1.0, 3.0, 5.0)
                self.settings = replace(self.settings, aggregate=False, linger=2.0)
                return
        # Cases that random faults seldom make.
        match random.randrange(12):
            case 0:
                self.all_idle_while_created_again()
            case 1:
                self.one_shard_fails()
            case 2 | 3 if self.blocking:
                self.ends = True
                self.workers = 4
                self.interrupted_in = random.choice(["join", "_end_flushes"])

    def all_idle_while_created_again(self) -> None:
        self.ends = False
        self.settings = replace(self.settings, aggregate=True, max_outstanding_records=1_000, linger=0.1)
        self.stream.outages, self.stream.changes, self.stream.auto = [], [], False
        self.stream.smallest, self.stream.unkeyed_from = self.stream.limit, None
        self.stream.gone = BEGIN + 6, BEGIN + 17
        self.rests_until = BEGIN + 18

    def one_shard_fails(self, lasts: float = 15.0) -> None:
        self.ends = False
        self.settings = replace(self.settings, max_outstanding_records=1_000, linger=0.1)
        self.pauses = 0.05, 0.3, 1.0, 1.0
        self.stream.only_one_fails(BEGIN, lasts)

    # -- what a caller does; `call` is awaited or not

    async def work(
        self, worker: int, call: Callable[..., Awaitable[Any]], pause: Callable[[float], Awaitable[None]]
    ) -> None:
        random = Random(self.random.random())
        for step in range(random.randint(*self.steps)):
            if self.rests_until is not None and step == 3:
                await pause(max(0.0, self.rests_until - self.world.now))
            match random.choice(["put"] * 6 + ["many"] * 2 + ["flush"] * 2 + ["pause"] * 2 + ["end"] * 2 + ["fork"]):
                case "put":
                    await self.put(call, [self.record(worker, random)], many=False)
                case "many":
                    await self.put(call, [self.record(worker, random) for _ in range(random.randint(1, 12))], many=True)
                case "flush":
                    await self.flush(call)
                case "pause":
                    await pause(random.choice(self.pauses))
                case "end" if self.ends:
                    if random.random() < 0.6:
                        await self.close(call)
                    else:
                        self.ended = self.aborted = True
                        try:
                            await call("abort")
                        except KeyboardInterrupt:
                            self.interrupted()
                case "fork" if random.random() < 0.05:
                    self.fork()

    def record(self, worker: int, random: Random) -> tuple[Put, str | None]:
        place = random.randrange(6)
        key = f"{worker}-{place}"
        # A hash key belongs to a partition key, so that records with one key go to one shard. Some have leading zeros.
        hash_key = [None, None, "007", str((1 << 127) + place), "0", None][place]
        size = 3_000 if random.random() < 0.08 else 6_000 if random.random() < 0.005 else random.choice([0, 20, 300])
        data = f"{worker}:{len(self.puts)}:".encode().ljust(size, b"x")
        put = Put(data, key, worker, len(self.puts), len(data) + len(key))
        self.puts.append(put)
        return put, hash_key

    async def put(self, call: Callable[..., Awaitable[Any]], given: list[tuple[Put, str | None]], many: bool) -> None:
        try:
            if not many and self.others.random() < 0.3:
                ((put, hash_key),) = given
                self.sent.append((put, sent := await call("send", put.data, put.key, hash_key)))
                sent.add_done_callback(lambda _: self.ended_at.setdefault(put.data, self.world.now))
            elif many:
                await call("put_many", [(put.data, put.key, hash_key) for put, hash_key in given])
            else:
                ((put, hash_key),) = given
                await call("put", put.data, put.key, hash_key)
        except KinesisEfoError as error:
            if not (many or self.settings.fail_on_error) and isinstance(error, RecordRefusedError):
                given[0][0].refused = given[0][0].size > self.stream.smallest  # `send` refuses it nevertheless
                return
            self.failed(error)
            if limit := re.search(r"is larger than the (\d+) bytes", str(error)):
                first = next(number for number, (put, _) in enumerate(given) if put.size > int(limit[1]))
                for number, (put, _) in enumerate(given):
                    put.returned, put.refused = number < first, number >= first
        except TimeoutError:
            pass  # they may be queued
        except KeyboardInterrupt:
            self.interrupted()
        else:
            for put, _ in given:
                put.returned, put.returned_at = True, self.world.now

        try:
            now = self.producer.metrics
        except KeyboardInterrupt:
            self.interrupted()
            return
        if now.outstanding_records > self.settings.max_outstanding_records or now.outstanding_bytes > 1 << 20:
            raise BrokenPromiseError(f"more is outstanding than allowed: {now}")

    async def flush(self, call: Callable[..., Awaitable[Any]]) -> None:
        before = {put.data for put in self.puts if put.returned}
        try:
            await call("flush")
        except KinesisEfoError as error:
            self.failed(error)
        except TimeoutError:
            pass
        except KeyboardInterrupt:
            self.interrupted()
        else:
            self.require(before, "flush")

    async def close(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.ended = True
        try:
            await call("close")
        except KinesisEfoError as error:
            self.failed(error)
        except asyncio.CancelledError:
            self.aborted = True
            raise
        except KeyboardInterrupt:
            self.aborted = True
            self.interrupted()
        else:
            self.require({put.data for put in self.puts if put.returned}, "close")
            self.closed_well = True

    closed_well = interrupt = False

    def interrupted(self) -> None:
        self.interrupt = True
        # Python ends the trace of a thread in which it raises an error.
        sys.settrace(self.world.trace)

    def fork(self) -> None:
        calls = ("put", b"y", "k"), ("flush",), ("close",)
        child = fork()
        if not child:
            sys.settrace(None)
            self.world.in_child = True
            missed = 0
            for name, *arguments in calls:
                try:
                    made = getattr(self.producer, name)(*arguments)
                    if not self.blocking:
                        made.send(None)
                    missed = 1
                except ProducerClosedError:
                    pass
                except BaseException:
                    missed = 3
            os._exit(missed)
        _, status = os.waitpid(child, 0)
        if status:
            raise BrokenPromiseError(f"a call in a forked process raises no error (status {status >> 8})")

    # -- the oracle

    def require(self, data: set[bytes], by: str) -> None:
        missing = {one for one in data if not self.may_be_left_out(one)} - set(self.stream.seen)
        if missing:
            raise BrokenPromiseError(f"{by} returned, but is not stored: {sorted(one[:12] for one in missing)}")
        self.confirmed |= data

    def may_be_left_out(self, data: bytes) -> bool:
        put = next(put for put in self.puts if put.data == data)
        return not self.settings.fail_on_error and put.size > self.stream.smallest

    def failed(self, error: KinesisEfoError) -> None:
        """Require that an error has a cause."""
        cause = self.cause_is_known(error)
        self.errors.append(error)
        if not cause:
            raise BrokenPromiseError(f"an error without a cause: {type(error).__name__}: {error}")

    def cause_is_known(self, error: KinesisEfoError) -> bool:
        if error in self.errors:
            return True
        if isinstance(error, ProducerClosedError):
            return self.aborted if "closed before" in str(error) else self.ended
        if isinstance(error, RecordRefusedError):
            named = re.search(r"(\d+) bytes\)", str(error))
            return named is not None and int(named[1]) > self.stream.smallest and self.settings.fail_on_error
        if isinstance(error, RetriesExhaustedError):
            # A thread that was preempted may handle the outage's last failure after a later request has succeeded.
            late = [each for each in self.stream.outages if each.end > self.world.now - SLACK] if self.preempted else ()
            if any(self.world.now - each.start > PATIENCE - SLACK for each in late):
                return True
            failures = [*(shard.failed_at for shard in self.stream.shards), self.stream.lists_failed_at]
            # If Kinesis distributes records itself, the producer knows of one shard only, and aggregates on their way are refused.
            return (self.preempted and self.stream.unkeyed_from is not None) or any(
                map(self.lasted, [sorted(chain(*failures))] if self.stream.unkeyed_from is not None else failures)
            )
        if type(error) is WriteError:
            return self.interrupt and "KeyboardInterrupt" in str(error)
        if isinstance(error, StreamNotFoundError):
            return self.stream.gone[0] <= self.world.now
        return isinstance(error, KeyUnusableError) and any(one.kind == "key" for one in self.stream.outages)

    def lasted(self, failed_at: list[float]) -> bool:
        """Whether these failures in a row cover `retry_timeout`, less what answers and pauses take."""
        if self.preempted:
            return len(failed_at) > 1 and self.world.now - failed_at[0] > PATIENCE - SLACK
        pauses = [later - earlier for earlier, later in pairwise(failed_at)]
        return sum(takewhile(lambda pause: pause < SLACK, reversed(pauses))) > PATIENCE - SLACK

    def verdict(self) -> Outcome:
        if not self.preempted:
            self.check_delays()
        stored = Counter(self.stream.seen)
        missing = [
            put for put in self.puts if put.returned and put.data not in stored and not self.may_be_left_out(put.data)
        ]
        if missing and self.closed_well:
            raise BrokenPromiseError(
                f"close returned, but these puts are not stored: {[put.data[:12] for put in missing]}"
            )
        if self.closed_well:
            self.check_counts(stored)
        self.check_sent()
        for put in self.puts:
            taken = self.stream.taken[put.data]
            if put.refused and stored[put.data]:
                raise BrokenPromiseError(f"put refused {put.data[:12]!r}, but it is stored")
            if taken > 1:
                raise BrokenPromiseError(f"{put.data[:12]!r} is stored again after it was acknowledged")
            if put.data in self.confirmed and not taken and not self.may_be_left_out(put.data):
                raise BrokenPromiseError(f"{put.data[:12]!r} was confirmed, but Kinesis did not acknowledge it")
        if self.settings.ordered:
            by_key: dict[str, list[int]] = defaultdict(list)
            numbers = {put.data: put for put in self.puts}
            keyed = self.stream.seen[: self.stream.unkeyed_from]
            # An aggregate is repeated as a whole, but a single record before its key's next one is written.
            for data in dict.fromkeys(keyed) if self.settings.aggregate else keyed:
                by_key[numbers[data].key].append(numbers[data].number)
            for key, order in by_key.items():
                if order != sorted(order):
                    raise BrokenPromiseError(f"records with key {key} are not in order: {order}")
        return Outcome(len(self.puts), len(stored), [str(error) for error in self.errors], len(self.confirmed))

    def check_sent(self) -> None:
        """Require that the futures of `send` have ended, and are right."""
        for put, future in self.sent:
            if not future.done():
                raise BrokenPromiseError(f"the future of {put.data[:12]!r} has not ended")
            if (error := future.exception()) is None:
                if future.result().shard_id not in self.stream.places[put.data]:
                    raise BrokenPromiseError(f"{put.data[:12]!r} is not stored in {future.result()}")
            elif isinstance(error, RecordRefusedError) and self.may_be_left_out(put.data):
                continue
            elif self.closed_well and not self.aborted:
                raise BrokenPromiseError(f"close returned, but {put.data[:12]!r} has {error!r}")
            elif (at := self.stream.taken_at.get(put.data, inf)) <= self.ended_at[put.data] and self.is_single(at):
                raise BrokenPromiseError(f"{put.data[:12]!r} was acknowledged, but has {error!r}")

    def is_single(self, answered_at: float) -> bool:
        """Whether the producer saw an answer at once, and no other at that moment."""
        learns = self.preempted or self.settings.aggregate
        return not learns and sum(ended == answered_at for _, ended in self.stream.requests) == 1

    def check_delays(self) -> None:
        """Require that a record is sent once it has lingered, unless its shard or a whole request has failed, or requests are in flight."""
        stream = self.stream
        if stream.unkeyed_from is not None or stream.lists_failed:
            return
        gaps: list[tuple[float, float]] = []
        busy_until = -inf
        for began, ended in sorted(stream.requests):
            if began - busy_until > 0.1:
                gaps.append((busy_until, began))
            busy_until = max(busy_until, ended)
        for put in self.puts:
            sent_at, place = stream.first_sent.get(put.data, (-inf, 0))
            if sent_at >= stream.resharded_at:
                continue
            for idle_from, idle_to in gaps:
                start, end = max(idle_from, put.returned_at + self.settings.linger), min(idle_to, sent_at)
                if end - start > 0.1 and not any(
                    start - BACKOFF <= at <= end and first <= place <= last for at, first, last in stream.failures
                ):
                    raise BrokenPromiseError(
                        f"{put.data[:12]!r} waits from {start} to {end}, although nothing is sent and its shard is well"
                    )

    def check_counts(self, stored: Counter[bytes]) -> None:
        """Require that the producer counts each record as either written or refused."""
        now = self.producer.metrics
        counted = now.records_written + now.records_refused
        surely, perhaps = (sum(wanted(put) for put in self.puts) for wanted in (_queued, _perhaps_queued))
        missing = sum(put.returned and put.data not in stored for put in self.puts)
        # Of a record that is refused after its answer was lost, the producer cannot know that it is stored.
        lost = sum(self.stream.lost[put.data] > 0 and self.may_be_left_out(put.data) for put in self.puts)
        if now.outstanding_records or now.outstanding_bytes or not surely <= counted <= perhaps:
            raise BrokenPromiseError(f"close returned after {surely} to {perhaps} puts, but the counts are {now}")
        if now.records_written > len(stored) or not missing <= now.records_refused <= perhaps - surely + missing + lost:
            raise BrokenPromiseError(
                f"close returned; {len(stored)} stored, {missing} missing, but the counts are {now}"
            )

    # -- running it

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[KinesisService]:
        yield KinesisService(self.stream, self.stream, "orders")

    def play(self) -> Outcome:
        parts: dict[str, Any] = {"clock": self.world, "random": Random(self.random.random()), "connect": self.connect}
        self.faults: list[BaseException] = []
        with threads_of(self.world):
            if self.blocking:
                self.producer: Any = with_parts(Producer("orders", settings=self.settings), **parts)
                self.play_threads()
            else:
                self.producer = with_parts(AsyncProducer("orders", settings=self.settings), **parts)
                loop = Loop(self.world)
                loop.run_until_complete(self.play_tasks())
                loop.close()
        if self.faults:
            raise self.faults[0]
        return self.verdict()

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Require that a call ends `retry_timeout` after the last progress."""
        began = self.world.now
        try:
            yield
        finally:
            self.check_wait(began)

    def check_wait(self, began: float) -> None:
        times = [began, *(time for time in self.stream.progress_at if time > began), self.world.now]
        if not self.preempted and max(later - earlier for earlier, later in pairwise(times)) > PATIENCE + SLACK:
            raise BrokenPromiseError(f"a call waited without progress, from {began} to {self.world.now}")

    def play_threads(self) -> None:
        async def call(name: str, *arguments: Any) -> Any:
            with self.bounded():
                return getattr(self.producer, name)(*arguments)

        async def pause(seconds: float) -> None:
            self.world.pause(seconds)

        def driven(work: Awaitable[None]) -> None:
            try:
                work.__await__().send(None)
            except StopIteration:
                pass
            except BaseException as error:
                self.faults.append(error)

        self.producer.open()
        strands = [
            self.world.start(lambda worker=worker: driven(self.work(worker, call, pause)))  # type: ignore[misc]
            for worker in range(self.workers)
        ]
        if self.interrupted_in is not None or self.random.random() < 0.3:
            self.world.interrupted = strands[0]
            self.world.interrupted_in = self.interrupted_in
        self.world.wait(lambda: all(strand.done for strand in strands))
        driven(self.close(call))

    async def play_tasks(self) -> None:
        async def call(name: str, *arguments: Any) -> Any:
            with self.bounded():
                seconds = self.others.choice([0.0, 0.05, 1.0, 8.0]) if self.others.random() < 0.1 else None
                return await asyncio.wait_for(
                    getattr(self.producer, name)(*arguments),
                    seconds if name in ("put", "put_many", "send", "flush") else None,
                )

        await self.producer.open()
        tasks = [asyncio.create_task(self.work(worker, call, asyncio.sleep)) for worker in range(self.workers)]
        for task in tasks:
            if self.random.random() < 0.1:
                asyncio.get_running_loop().call_later(self.random.uniform(0, 10), task.cancel)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                self.faults.append(result)
        await self.close(call)
        await asyncio.sleep(0.1)


def _queued(put: Put) -> bool:
    return put.returned


def _perhaps_queued(put: Put) -> bool:
    return not put.refused


def play(seed: int) -> Outcome:
    """Play the four runs of a seed. Raises BrokenPromiseError, with the seed, if the producer broke a promise."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    played = Outcome()
    try:
        for number in range(4 * seed, 4 * seed + 4):
            one = Run(number).play()
            played.records += one.records
            played.stored += one.stored
            played.confirmed += one.confirmed
            played.errors += one.errors
    except Exception as error:
        raise BrokenPromiseError(f"seed {seed}: {error}") from error
    finally:
        logging.disable(before)
    return played


def first_broken(seeds: list[int]) -> str:
    """Return the report of the first of these seeds that breaks a promise; empty if none does."""
    for seed in seeds:
        try:
            play(seed)
        except BrokenPromiseError as error:
            return str(error)
    return ""
