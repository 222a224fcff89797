"""Random batch reads in virtual time: planned, read by tasks that wait and are repeated, and compared with what the stream was given.

The oracle keeps every record with its shard and arrival time, and computes for itself what retention has trimmed when.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from kinesis_efo.batch import planning
from kinesis_efo.batch.ending import rows_of
from kinesis_efo.batch.planning import kinesis_time, plan, reset_by, tip_at
from kinesis_efo.batch.ranges import MARGIN_SECONDS, BatchRange
from kinesis_efo.batch.reading import RangeEvent, RangeProgress, check_planned, read_range
from kinesis_efo.errors import DataLossError, KinesisEfoError, StreamReplacedError, SubscriptionError
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.polling import PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import BatchOptions, RetrySettings
from kinesis_efo.patience import Patience
from kinesis_efo.positions import SHARD_END, PositionKind
from kinesis_efo.records.decoder import decode
from tests.emulator.memory import MemoryClient
from tests.emulator.memory_world import STREAM, JumpingClock, MemoryWorld
from tests.support.virtual_time import run

DAY = 86_400.0
TOLERATED = 600.0
CLOCK_ERROR = 3.0
"""Kinesis tells its time in whole seconds."""


class Record(NamedTuple):
    """A record that Kinesis accepted."""

    name: str
    shard: str
    sequence: int
    arrival: float
    acknowledged: float


class Read(NamedTuple):
    """One attempt of a task in one shard: when it began, its rows so far, and what ended it early."""

    part: BatchRange
    began: float
    rows: list[str]
    error: KinesisEfoError | None
    warned: list[str]


@dataclass
class BatchOutcome:
    """What happened: rows of all reads, reads that lost nothing, losses that were named."""

    rows: int = 0
    whole: int = 0
    losses: int = 0


class MemoryClients:
    """In the place of `AsyncClients`."""

    def __init__(self, world: MemoryWorld, way_back: float) -> None:
        self._world, self._way_back = world, way_back

    def __call__(self, *_: object) -> MemoryClients:
        return self

    async def open(self, service: str, config: Any = None) -> MemoryClients:
        del service, config
        return self

    async def __aenter__(self) -> MemoryClient:
        return MemoryClient(self._world.kinesis, self._way_back)

    async def __aexit__(self, *_: object) -> None:
        pass


class _Stopped(Exception):
    """The task is killed."""


class BatchScenario:
    """One stream, and some reads of it. `changes` sets attributes of the scenario for a test of one case."""

    def __init__(self, seed: int, **changes: Any) -> None:
        self.seed = seed
        self.random = random = Random(f"{seed}: batches")
        self.outcome = BatchOutcome()
        self.shards = random.randint(1, 3)
        self.days = random.choice((0.01, 0.9, 1.2, 2.5))
        self.reshards = random.choice((0, 1, 3))
        self.kind = random.choice(("default", "default", "default", "since", "named", "consecutive", "consecutive"))
        self.waits = random.choice((0.0, 0.0, 200.0, 900.0, 3 * 3600.0, 30 * 3600.0))
        self.repeats = random.random() < 0.5
        self.twice = random.random() < 0.3
        self.fail = random.random() < 0.7
        self.quiet = random.random() < 0.4
        self.skew = random.choice((0.0, 0.0, -60.0, 60.0, -3.0, 3.0))
        self.connect = random.random() < 0.3
        self.burst = random.random() < 0.5
        self.recreate = False
        self.listing_age = random.choice((0.0, 0.0, 60.0))
        self.way_back = 0.0
        self.set_to = Random(f"{seed}: set").choice((None, None, 0.0, 30.0))
        self.disorder = Random(f"{seed}: disorder").choice((0.0, 0.0, 1.5))
        # How long a task waits for the consumer of its first rows of a shard that was not listed when the read was planned.
        self.stalls = Random(f"{seed}: stalls").choice((0.0, 0.0, 25 * 3600.0))
        # When a shard is split or merged after the read was planned.
        self.resharded_later = Random(f"{seed}: later").choice((None, None, 0.0, 15.0, 60.0))
        # Two reshards are unlisted when the read is planned, and the first of their shards are gone when some tasks begin.
        self.generations = Random(f"{seed}: grandchildren").randrange(10) == 0
        if self.generations:
            self.listing_age, self.quiet, self.fail, self.burst = 60.0, False, False, False
            self.kind = Random(f"{seed}: kind").choice(("default", "default", "since", "named"))
        # Cases that the draws above seldom make.
        match Random(f"{seed}: rarely").randrange(20):
            case 0:
                # The only shard ends unlisted, and is gone before it is read.
                self.shards, self.reshards, self.listing_age, self.waits = 1, 0, 60.0, 100 * 3600.0
                self.kind, self.fail, self.quiet, self.skew = "default", False, False, 0.0
            case 4 | 5:
                # The read ends in the past, and a list of the shards that were open then is old.
                self.kind = "past"
            case 1 | 2 | 3:
                # It cannot be told that this machine's clock is more than a second slow.
                self.kind, self.connect, self.skew, self.way_back, self.waits = "default", False, -1.1, 0.25, 0.0
        for name, value in changes.items():
            setattr(self, name, value)

    async def play(self) -> BatchOutcome:
        """Play the scenario, and check its outcome."""
        random = self.random
        settings: dict[str, Any] = {"retention_seconds": DAY}
        if self.quiet:
            settings |= {"wrong_answers": random.choice(("quiet", "quiet,behind")), "wrong_answers_in_a_row": 2}
        self.world = MemoryWorld(Random(random.random()), shards=self.shards, settings=settings)
        self.records: list[Record] = []
        self.parents: dict[str, tuple[str, ...]] = {}
        self.created: dict[str, float] = {}
        clock = JumpingClock()
        clock.jump = self.skew
        self.clock = clock
        self.offset = self._offset()
        ref = replace(self.world.deployed(), consumer_arn=None)
        self.manifest = Manifest("lake", "dev", "us-east-1", "leases", {"orders": ref}, "m.json", {"orders": STREAM})
        await self._write_history()
        self.world.kinesis.listing_age = self.listing_age
        self.world.kinesis.late_starts = Random(f"{self.seed}: late starts").choice((0.0, 1.5))
        writer = asyncio.create_task(self._write())
        try:
            with patch.object(planning, "AsyncClients", MemoryClients(self.world, self.way_back)):
                await self._play()
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        return self.outcome

    @property
    def now(self) -> float:
        """Kinesis' time."""
        return self.world.clock.time()

    # -- the stream

    def _put(self, count: int = 1) -> None:
        for _ in range(count):
            name = f"{len(self.records)}"
            # Arrival times need not ascend. No record arrives before its shard is there.
            traits = self.world.kinesis.state.streams[STREAM].traits
            disorder = self.disorder if self.now - self.resharded_at > self.disorder else 0.0
            traits.backdated_seconds = self.random.uniform(0.0, disorder) if disorder else 0.0
            shard = self.world.kinesis.put(STREAM, f"key{self.random.randrange(50)}", name.encode())
            shards = self.world.kinesis.state.streams[STREAM].shards
            self.parents |= {each.id: tuple(each.parents) for each in shards.values()}
            self.created |= {each.id: each.created_at for each in shards.values()}
            stored = shards[shard].keep().records[-1]
            sequence = int(json.loads(stored.json)["SequenceNumber"])
            self.records.append(Record(name, shard, sequence, stored.arrival, self.now))

    async def _write_history(self) -> None:
        seconds, moments = self.days * DAY, 60
        when = [self.random.uniform(0, seconds) for _ in range(moments)]
        if seconds > DAY:
            # Some are about to be trimmed when the reads begin.
            when[: moments // 2] = [seconds - DAY + self.random.uniform(0, 3000) for _ in range(moments // 2)]
        when.sort()
        reshards = set(self.random.sample(range(moments), self.reshards))
        for number, at in enumerate(when):
            await asyncio.sleep(max(0.0, at - (when[number - 1] if number else 0.0)))
            self._put(self.random.randint(1, 4))
            if number in reshards:
                self._reshard()
        # Records that arrive close together, some near the trim horizon later.
        await asyncio.sleep(self.random.choice((0.0, 2.0, 60.0)))
        self._put(self.random.choice((0, 20)))

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(0.3 if self.burst else 400.0)
            self._put()
            if self.now > self.stop_burst:
                self.burst = False

    stop_burst = 0.0
    resharded_at = 0.0
    generated_at = 0.0

    def _reshard(self) -> None:
        self.resharded_at = self.now
        self.world.reshard(self.random)

    # -- the reads

    async def _play(self) -> None:
        random = self.random
        self.stop_burst = self.now + 30.0
        if self.listing_age:
            # ListShards does not show the children of this reshard yet.
            self._reshard()
            self._put(20)
            await asyncio.sleep(random.choice((1.0, 30.0)))
        if self.generations:
            self.generated_at = self.now
            self._reshard()
            self._put(20)
            await asyncio.sleep(random.choice((1.0, 20.0)))
        options: dict[str, str] = {}
        since: float | None = None
        if self.kind == "since":
            since = round(self.now - random.choice((5.0, 3600.0, 0.95 * DAY)), 3)
            options["startingPosition"] = _at(since)
        if self.kind == "named":
            await self._read_named()
            return
        if self.kind == "consecutive":
            await self._read_consecutive()
            return
        if self.kind == "past":
            await self._read_past()
            return
        if self.way_back:
            self._put()
            await asyncio.sleep(0.01)
        loaded, here = await self._load(options)
        acknowledged = self.now
        if self.set_to is not None:
            self.clock.jump = self.set_to
        first = await self._action(options, loaded, here, since)
        if first is None:
            return
        self._check(first, acknowledged, since)
        # With `spark.read`, each action measures the error of this machine's clock, to a second.
        if self.twice and (self.connect or not (self.skew or self.set_to)):
            await asyncio.sleep(random.choice((0.0, 30.0)))
            again = await self._action(options, loaded, here, since)
            if again is None:
                return
            self._check(again, acknowledged, since)
            if not any(read.error or read.warned for read in first + again) and since is not None:
                rows = [Counter(row for read in reads for row in read.rows) for reads in (first, again)]
                if rows[0] != rows[1]:
                    self._fail(f"two actions have {rows[0].total()} and {rows[1].total()} rows")

    async def _load(self, options: dict[str, str]) -> tuple[float, bool]:
        """When the read is loaded: by this machine's clock (`spark.read`), or by Kinesis' (`kinesis_efo.read`)."""
        self.offset = self._offset()
        if not self.connect:
            return self.clock.time(), True
        parsed = BatchOptions.parse({"manifest": "m.json", **options})
        return await kinesis_time(self.manifest, parsed, self.clock) / 1000, False

    def _offset(self) -> float:
        return self.clock.time() - self.clock.monotonic()

    async def _read_named(self) -> None:
        """Read from a record of one shard on, and its descendants."""
        listed = {shard["ShardId"] for shard in self.world.kinesis.call("ListShards", StreamName=STREAM)["Shards"]}
        record = self.random.choice(
            [each for each in self.records if each.arrival > self.now - 0.9 * DAY and each.shard in listed]
        )
        start = json.dumps({"orders": {record.shard: f"AFTER:{record.sequence}"}})
        loaded, here = await self._load({})
        acknowledged = self.now
        reads = await self._action({"startingPosition": start}, loaded, here)
        self._check(reads or [], acknowledged, None, named=record)

    async def _read_consecutive(self) -> None:
        """Read two time ranges, one right after the other, the first up to some seconds ahead; a shard may be split in between."""
        random = self.random
        begin = round(self.now - random.choice((10.0, 3600.0)), 3)
        middle = round(self.now + random.choice((-5.0, 0.0, 2.0, 4.0)), 3)
        reshard = asyncio.create_task(self._reshard_soon())
        first = await self._action(
            {"startingPosition": _at(begin), "endingPosition": _at(middle)}, self.clock.time(), True, begin
        )
        await reshard
        assert first is not None
        self._check(first, self.now, begin, until=middle)
        await asyncio.sleep(random.choice((0.0, 5.0)))
        loaded, here = await self._load({})
        acknowledged = self.now
        second = await self._action({"startingPosition": _at(middle)}, loaded, here, middle)
        if second is None:
            return
        self._check(second, acknowledged, middle)
        rows = Counter(row for read in first + second for row in read.rows)
        wanted = {
            record.name for record in self.records if begin <= record.arrival and record.acknowledged < acknowledged
        }
        if not any(read.error or read.warned for read in first + second) and (lost := wanted - rows.keys()):
            self._fail(f"{len(lost)} records are in neither of two consecutive ranges: {sorted(lost)[:3]}")

    async def _read_past(self) -> None:
        """Read up to a time before the read is loaded, and soon after a shard was split or merged."""
        begin = round(self.now - 3600.0, 3)
        self._reshard()
        self._put(20)
        await asyncio.sleep(self.random.choice((31.0, 60.0, 100.0)))
        self.world.kinesis.filter_age = self.random.choice((0.0, 60.0))
        end = round(self.now - self.random.choice((5.0, 21.0, 30.0)), 3)
        options = {"startingPosition": _at(begin), "endingPosition": _at(end)}
        reads = await self._action(options, self.clock.time(), True, begin)
        self._check(reads or [], self.now, begin, until=end)

    async def _reshard_soon(self) -> None:
        await asyncio.sleep(self.random.choice((0.1, 1.0, 2.5)))
        if self.random.random() < 0.7:
            self._reshard()
            self._put(20)

    async def _action(
        self, options: dict[str, str], loaded: float, here: bool, since: float | None = None
    ) -> list[Read] | None:
        """Plan a read, and do what its tasks do. None: it must not be checked further."""
        if here:
            loaded += reset_by(self.offset, self._offset())
        given = {"manifest": "m.json", "failOnDataLoss": str(self.fail).lower(), **options}
        try:
            planned = await plan(self.manifest, BatchOptions.parse(given), tip_at(loaded), self.clock, here=here)
        except DataLossError as error:
            if since is None or since > self.now - DAY + CLOCK_ERROR:
                self._fail(f"planning reports a loss: {error}")
            self.outcome.losses += 1
            return None
        except KinesisEfoError as error:
            self._fail(f"a read cannot be planned: {error}")
        self.planned_at = self.now
        if self.recreate:
            self.world.kinesis.call("DeleteStream", StreamName=STREAM, EnforceConsumerDeletion=True)
            self.world.kinesis.state.settle()
            await asyncio.sleep(30.0)
            self.world.kinesis.call("CreateStream", StreamName=STREAM, ShardCount=self.shards)
            self.world.kinesis.state.settle()
        if self.resharded_later is not None:
            await asyncio.sleep(self.resharded_later)
            self._reshard()
            self._put(20)
        reads = []
        for part in planned:
            if self.generations and self.random.random() < 0.7:
                await asyncio.sleep(max(0.0, self.generated_at + DAY + self.random.uniform(0.0, 15.0) - self.now))
            elif not self.generations:
                await asyncio.sleep(self.waits * self.random.random() / len(planned) if self.waits else 0.0)
            stop = self.random.randrange(3) if self.repeats and self.random.random() < 0.8 else None
            read = await self._task(part, again=False, stop=stop)
            if stop is not None and read.error is None:
                await asyncio.sleep(self.random.choice((1.0, 100.0, 300.0, 300.0, 2000.0)))
                other = await self._task(part, again=True, stop=None)
                if (
                    other.error is None
                    and (self.fail or not other.warned)
                    and other.rows[: len(read.rows)] != read.rows
                ):
                    self._fail(f"another attempt in {part} has other rows: {read.rows[:5]}, {other.rows[:5]}")
                read = Read(part, read.began if other.error is None else other.began, *other[2:])
            reads.append(read)
        return None if self.recreate else reads

    async def _task(self, part: BatchRange, *, again: bool, stop: int | None) -> Read:
        """Read one range, or as far as it comes before its task is killed."""
        client = MemoryClient(self.world.kinesis)
        clock = KinesisClock(self.clock, warns=False)
        clock.watch(client)
        ref = self.manifest.streams["orders"]
        retry = RetrySettings()
        topology = Topology(client, clock, Patience(retry, clock))
        transport = PollingTransport(client, clock, 0.5)
        limits = polling_limits(KINESIS_LIMITS)
        stream = Stream(ref, transport, topology, retry, "m.json", clock, limits, fail_on_data_loss=self.fail)
        rows: list[str] = []
        taken = 0

        async def take(portion: RangeEvent) -> None:
            nonlocal taken
            if stop is not None and taken >= stop:
                raise _Stopped
            taken += 1
            if portion.part.key != part.key:
                stalls, self.stalls = self.stalls, 0.0
                await asyncio.sleep(stalls)
            end = part.end if part.end.kind is PositionKind.AFTER else SHARD_END
            for batch in decode([portion.event.payload], portion.part.key, portion.after, end, deaggregate=True):
                rows.extend(row.decode() for row in rows_of(portion.part, batch)["data"].to_pylist())

        began, error = self.now, None
        left = [part]
        with _warnings() as warned:
            try:
                while left:
                    begins = partial(check_planned, topology, ref, "m.json", clock, again=again, fail=self.fail)
                    reading = read_range(
                        stream,
                        RangeProgress(left[0]),
                        lambda: clock.answered,
                        take,
                        self.clock,
                        patience=600.0,
                        fail_on_data_loss=self.fail,
                        begins=begins,
                    )
                    left[:1] = await asyncio.wait_for(reading, 3600.0 + self.stalls)
            except _Stopped:
                pass
            except KinesisEfoError as fault:
                if _cause(fault, _Stopped) is None:
                    error = fault
            except TimeoutError:
                self._fail(f"{part} is not over after an hour")
        if self.recreate:
            if not isinstance(error, StreamReplacedError) or rows:
                self._fail(f"{part} of a stream that was created again has {len(rows)} rows: {error!r}")
            self.outcome.losses += 1
            return Read(part, began, [], None, [str(error)])
        refused = self.kind == "named" and self.listing_age and isinstance(error, SubscriptionError)
        if error is not None and not refused and not isinstance(error, DataLossError):
            self._fail(f"{part} fails: {error!r}")
        if "acceptDataLoss" in f"{error} {warned}":
            self._fail(f"{part} names an option that batch reads refuse: {error or warned}")
        return Read(part, began, rows, error, warned)

    # -- what must hold

    def _check(
        self,
        reads: list[Read],
        acknowledged: float,
        since: float | None,
        *,
        until: float | None = None,
        named: Record | None = None,
    ) -> None:
        rows = Counter(row for read in reads for row in read.rows)
        if twice := [row for row, count in rows.items() if count > 1]:
            self._fail(f"{len(twice)} rows come twice: {twice[:3]}")
        by_name = {record.name: record for record in self.records}
        for row in rows:
            record = by_name[row]
            if (since is not None and record.arrival < since) or (until is not None and record.arrival >= until):
                self._fail(f"row {row} of {record.arrival} lies outside of the read from {since} to {until}")
        owed = [record for record in self.records if self._is_owed(record, acknowledged, since, until, named)]
        by_shard = {read.part.key.shard: read for read in reads}
        for record in owed:
            if record.name in rows:
                continue
            read = self._read_of(record.shard, by_shard)
            if read is None:
                self._fail(f"record {record.name} of {record.shard} is in no range")
            is_kept = record.arrival > self.now - DAY + CLOCK_ERROR
            if is_kept and not self.fail and not any(read.error for read in reads):
                self._fail(f"record {record.name} of {record.shard} is missing, but Kinesis has it still")
            if not (read.error or read.warned):
                self._fail(f"record {record.name} of {record.shard} is missing, and nothing is said of it")
            if self.fail and read.error is None and read.began - self.planned_at > TOLERATED + CLOCK_ERROR:
                self._fail(f"record {record.name} of {record.shard} is missing, and there is only a warning")
        for read in reads:
            if isinstance(read.error, SubscriptionError):
                continue
            for shard in self.world.kinesis.state.streams[STREAM].shards.keys() & self.created.keys():
                said = [str(read.error), *(each for each in read.warned if "newer than the plan" not in each)]
                until = read.part.until
                if until and self.created[shard] > until / 1000 + MARGIN_SECONDS + 1.0 and shard in " ".join(said):
                    self._fail(f"{read.part} reports a loss in {shard}, which is younger than its end: {said}")
            # The trim horizon has moved since the planning, and the shard is older than that.
            moved = read.began - self.planned_at
            if (read.error or read.warned) and read.part.horizon is not None:
                self.outcome.losses += 1
                if moved + CLOCK_ERROR < 0 or read.part.created > self.now - DAY + CLOCK_ERROR:
                    self._fail(f"{read.part} reports a loss where nothing can be lost: {read.error}")
            if read.error and self.fail is False:
                self._fail(f"{read.part} fails with failOnDataLoss=false: {read.error}")
        self.outcome.rows += rows.total()
        self.outcome.whole += not any(read.error or read.warned for read in reads)

    def _read_of(self, shard: str, reads: dict[str, Read]) -> Read | None:
        """The read of a shard, or of an ancestor that would have read it, too, but fails or warns of its loss."""
        if shard in reads:
            return reads[shard]
        gone = shard not in self.world.kinesis.state.streams[STREAM].shards
        ancestors = [*self.parents.get(shard, ())]
        for parent in ancestors:
            if (read := reads.get(parent)) is not None:
                said = [each for each in read.warned if shard in each or (gone and "unlisted ancestors" in each)]
                if read.error or said:
                    return read
            ancestors += self.parents.get(parent, ())
        return None

    def _is_owed(
        self, record: Record, acknowledged: float, since: float | None, until: float | None, named: Record | None
    ) -> bool:
        """Whether a record belongs to the read, and Kinesis had it when the read was planned."""
        if named is not None and not self._is_after(record, named):
            return False
        had = record.arrival >= self.planned_at - DAY + CLOCK_ERROR
        in_time = record.arrival < until if until is not None else record.acknowledged < acknowledged
        return had and in_time and (since is None or record.arrival >= since)

    def _is_after(self, record: Record, named: Record) -> bool:
        """Whether a record lies after another one in its shard, or in a descendant of that shard. Other shards are of no interest here."""
        if record.shard == named.shard:
            return record.sequence > named.sequence
        descendants, grew = {named.shard}, True
        known = self.world.kinesis.state.streams[STREAM].shards
        while grew:
            more = {shard.id for shard in known.values() if descendants & set(shard.parents)} - descendants
            descendants |= more
            grew = bool(more)
        return record.shard in descendants

    def _fail(self, why: str) -> Any:
        known = {name: value for name, value in vars(self).items() if isinstance(value, int | float | str)}
        raise AssertionError(f"seed {self.seed}: {why}; {known}")


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """The warnings of losses that are logged meanwhile."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "are gone" in record.getMessage():
                found.append(record.getMessage())

    handler, logger = Handler(logging.WARNING), logging.getLogger("kinesis_efo")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


def _cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error


def _at(epoch: float) -> str:
    return f"AT_TIMESTAMP:{round(epoch * 1000)}"


def play_batches(seed: int, **changes: Any) -> BatchOutcome:
    """Play the scenario of a seed."""

    async def main() -> BatchOutcome:
        return await BatchScenario(seed, **changes).play()

    return run(main())
