"""Random queries that end (`AvailableNow`, `Once`, `catchUp`, `endingPosition`), in virtual time, and what they must have read.

The oracle knows only what was acknowledged when, and what the local Kinesis stored: it shares no code with the library.
"""

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from random import Random
from typing import Any, NamedTuple

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.kinesis.polling import PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.options import SourceOptions, Start
from kinesis_efo.positions import Offset
from kinesis_efo.run.access import Next
from kinesis_efo.run.query import Query as Planning
from kinesis_efo.run.query_planner import QueryPlanner
from kinesis_efo_local import AwsError, NoFaults, Request
from tests.emulator.memory_world import STREAM, MemoryWorld
from tests.emulator.query import Application, Query
from tests.support.planned import finish
from tests.support.virtual_time import run

MOST_SECONDS = 1800.0
"""What a run that ends may take here, with everything that is answered wrongly or late."""
CLOCK_SECONDS = 1.0
"""Kinesis' clock, and the time in a sequence number, are known to a second."""


@dataclass
class EndsOutcome:
    """What happened: rows, runs that ended, and acknowledged records that a run had to read."""

    rows: int = 0
    runs: int = 0
    owed: int = 0


class Stored(NamedTuple):
    """Where Kinesis has a record, and since when."""

    shard: str
    sequence: int
    arrival: float


class NoPolling(NoFaults):
    """A policy that does not allow GetRecords."""

    async def before(self, request: Request) -> None:
        if request.operation in ("GetRecords", "GetShardIterator"):
            raise AwsError(
                "AccessDeniedException", f"User is not authorized to perform: kinesis:{request.operation}", 403
            )


class EndingQuery(Query):
    """A query that ends, and its planner in the run. With `neighbour`, another query of the program reads the stream, too."""

    def __init__(self, application: Application, options: SourceOptions, *, neighbour: bool) -> None:
        super().__init__(application)
        for stream in self.streams.values():
            transport = PollingTransport(self.client, self.run.clock, 1.0)
            stream.allow_separate(transport, polling_limits(KINESIS_LIMITS))
        self.clock, self.limits = self.run.clock, KINESIS_LIMITS
        self.reading = False
        self.neighbour = Planning(self.run, name="neighbour") if neighbour else None
        ending = Planning(self.run, options.ends, name="ending")
        # What `Query` polls and commits is the neighbour, if there is one.
        self.planner = self.neighbour or ending
        self.reader = "ending"
        self.ending = QueryPlanner(self, ending, "ending", options, ["orders"])  # type: ignore[arg-type]
        self.ending.query = ending  # type: ignore[misc]

    async def placed(self, ranges: Any, at_most: float, query: str) -> list[FetcherAddress | None]:
        """See `WholeRun.placed`."""
        del at_most, query
        return [FetcherAddress("here", 1)] * len(ranges)

    async def to_its_end(self, offset: Offset, *, once: bool) -> Offset:
        """Do what Spark does until the query ends; returns where the next run begins."""
        while True:
            step = await self.ending.answer(Next(offset, 1.0, once=once, available_now=not once))
            if step.end is not None and step.end != offset:
                self.application.offsets.append((offset, step.end))
                await self.run_batch(offset, step.end, again=False)
                offset = step.end
                if once:
                    finish(self.ending.query, offset)
                    return offset
            elif not step.again:
                return offset
            elif step.end is None:
                await asyncio.sleep(0.05)


class EndsScenario:
    """One stream, and runs that end. `changes` sets attributes of the scenario for a test of one case."""

    def __init__(self, seed: int, **changes: Any) -> None:
        self.seed = seed
        self.random = random = Random(f"{seed}: ends")
        self.outcome = EndsOutcome()
        self.read_before: set[str] = set()
        self.shards = random.randint(1, 3)
        self.mode = random.choice(("polling", "efo", "efo alone", "neighbour", "neighbour alone"))
        self.quiet = random.random() < 0.6
        self.backlog = random.choice((0, 30, 300))
        self.age = random.choice((0.0, 2.0, 20.0, 400.0, 5000.0))
        self.rate = random.choice((0.0, 0.0, 0.5, 5.0))
        self.runs = random.choice((1, 2, 3))
        self.pause = random.choice((0.0, 3.0, 100.0))
        self.end = random.choice(("tips", "tips", "once", "time", "soon"))
        if self.mode == "neighbour alone":
            # A time is found with a subscription of its own, which takes over the shared one.
            self.end = random.choice(("tips", "once"))
        self.buffer = random.choice((40_000, 4 << 20))
        self.reshards = random.choice((0, 0, 1, 2))
        self.skew = random.choice((0.0, 0.0, -3.0, 3.0, 60.0, -60.0))
        self.listing_age = random.choice((0.0, 0.0, 60.0))
        # Records at which the open shards end, some of them before a start at LATEST.
        numbers = Random(f"{seed}: numbers")
        if numbers.random() < 0.25:
            self.end, self.reshards, self.skew, self.listing_age = "number", 0, 0.0, 0.0
        for name, value in changes.items():
            setattr(self, name, value)
        self.latest = self.end == "number" and numbers.random() < 0.5

    async def play(self) -> EndsOutcome:
        """Play the scenario, and check its outcome."""
        random = self.random
        settings: dict[str, Any] = {"max_event_records": random.choice((50 if self.quiet else 3, 500))}
        if self.quiet:
            # Two events in a row are believed, and three answers.
            most = 1 if "alone" in self.mode or self.end == "number" else 2
            settings |= {"wrong_answers": "quiet", "wrong_answers_in_a_row": most}
        self.world = world = MemoryWorld(
            Random(random.random()),
            shards=self.shards,
            settings=settings,
            faults=NoPolling() if "alone" in self.mode else None,
            buffer_bytes=self.buffer,
        )
        world.kinesis.listing_age = self.listing_age
        world.application.clock.jump = self.skew  # type: ignore[attr-defined]
        world.application.polls = self.mode == "polling"
        if self.latest:
            world.application.start = Start()
        self.started = 0.0
        await asyncio.sleep(self.listing_age)
        self.acknowledged: list[tuple[float, str]] = []
        self._put(self.backlog)
        for _ in range(self.reshards):
            self.world.reshard(self.random)
            self._put(self.backlog // 3)
        await asyncio.sleep(self.age)
        self._put(random.choice((0, self.backlog)))
        await asyncio.sleep(random.choice((0.0, 2.0)))
        writer = asyncio.create_task(self._write())
        try:
            for _ in range(self.runs):
                await asyncio.wait_for(self._run_once(), MOST_SECONDS + self.backlog)
                await asyncio.sleep(self.pause)
        except TimeoutError:
            self._fail("a run that ends does not")
        except KinesisEfoError as error:
            self._fail(f"a run fails: {error}")
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        return self.outcome

    def _put(self, count: int) -> None:
        for _ in range(count):
            key = f"key{self.random.randrange(20)}"
            number = self.world.written[key]
            self.world.put(key, size=self.random.choice((10, 2000)))
            self.acknowledged.append((self.world.clock.time(), f"{key}:{number}"))

    async def _write(self) -> None:
        while self.rate:
            await asyncio.sleep(self.random.expovariate(self.rate))
            self._put(1)
            if self.reshards and self.random.random() < 0.002:
                self.world.reshard(self.random)

    async def _run_once(self) -> None:
        application, clock = self.world.application, self.world.clock
        options = {"manifest": "m.json"}
        began = clock.time()
        until: float | None = None
        if self.end in ("time", "soon"):
            until = round(began + (3.0 if self.end == "soon" else -self.random.choice((0.5, 10.0, 100.0))), 3)
            options["endingPosition"] = f"AT_TIMESTAMP:{round(until * 1000)}"
        numbers = self._numbers() if self.end == "number" else {}
        if numbers:
            ends = {shard: f"AFTER:{number}" for shard, number in numbers.items()}
            options["endingPosition"] = json.dumps({"orders": ends})
        owed = {record for at, record in self.acknowledged if at < began}
        parsed = SourceOptions.parse(options)
        async with EndingQuery(application, parsed, neighbour=self.mode.startswith("neighbour")) as query:
            resharding = asyncio.create_task(self._reshard_soon() if self.end == "soon" else asyncio.sleep(0))
            beside = asyncio.create_task(self._beside(query)) if query.neighbour is not None else None
            try:
                await asyncio.sleep(self.random.choice((0.0, 20.0)) if beside else 0.0)
                if query.neighbour is not None:
                    self._put(self.random.choice((0, 5)))
                    await asyncio.sleep(self.random.choice((0.0, 0.3)))
                began = clock.time() if until is None else began
                owed = {record for at, record in self.acknowledged if at < began}
                if not application.offsets and self.latest:
                    self.started = began = clock.time()
                offset = await query.begin() if not application.offsets else application.offsets[-1][1]
                application.committed = True
                await query.to_its_end(offset, once=self.end == "once")
            finally:
                resharding.cancel()
                if beside is not None:
                    beside.cancel()
                    await asyncio.gather(beside, return_exceptions=True)
        self._check(owed, until, numbers)

    async def _reshard_soon(self) -> None:
        await asyncio.sleep(self.random.choice((0.1, 1.0, 2.0)))
        if self.random.random() < 0.5:
            self.world.reshard(self.random)
            self._put(10)

    async def _beside(self, query: EndingQuery) -> None:
        """Read the stream in another query, from the tip on."""
        from kinesis_efo.positions import TRIM_HORIZON, ShardKey
        from tests.support.planned import planned

        shards = self.world.kinesis.state.streams[STREAM].open_shards
        offset = Offset({ShardKey("orders", shard.id): TRIM_HORIZON for shard in shards})
        assert query.neighbour is not None
        while True:
            reply = await query.neighbour.poll(offset, 1 << 60, 1 << 60, 1.0)
            offset = planned(offset, reply)
            finish(query.neighbour, offset)

    def _numbers(self) -> dict[str, int]:
        """A record of each open shard that has some."""
        stored = list(self._stored().values())
        found = {}
        for shard in self.world.kinesis.state.streams[STREAM].open_shards:
            if numbers := [each.sequence for each in stored if each.shard == shard.id]:
                found[shard.id] = self.random.choice(numbers)
        return found

    def _check(self, owed: set[str], until: float | None, ends: Mapping[str, int]) -> None:
        world, outcome = self.world, self.outcome
        numbers: dict[str, list[int]] = {}
        for row in world.application.rows:
            numbers.setdefault(row.shard, []).append(row.sequence)
        for shard, found in numbers.items():
            if any(a >= b for a, b in pairwise(found)):
                self._fail(f"the rows of {shard} are twice or not in order")
        read = {f"{row.key}:{int(row.data.split(b':', 1)[0])}" for row in world.application.rows}
        stored = self._stored()
        arrived = {record: each.arrival for record, each in stored.items()}
        if early := [record for record in read if arrived[record] < self.started - CLOCK_SECONDS]:
            self._fail(f"{len(early)} rows arrived before the start: {sorted(early)[:3]}")
        owed = {record for record in owed if arrived[record] >= self.started}
        if ends:
            beyond = {record for record, each in stored.items() if each.sequence > ends.get(each.shard, inf)}
            if late := read & beyond - self.read_before:
                self._fail(f"{len(late)} rows lie after the end of the read: {sorted(late)[:3]}")
            owed -= beyond
        if until is not None:
            # The first record of the time ends a shard, and all earlier ones belong to the run.
            owed = {record for record, at in arrived.items() if at < until}
            late = [record for record in read if arrived[record] >= until and record not in self.read_before]
            if late:
                self._fail(f"{len(late)} rows arrived at the end of the read or later: {sorted(late)[:3]}")
        if missing := owed - read:
            self._fail(f"{len(missing)} of {len(owed)} records are missing: {sorted(missing)[:3]}")
        self.read_before = read
        outcome.rows, outcome.runs, outcome.owed = len(read), outcome.runs + 1, outcome.owed + len(owed)

    def _stored(self) -> dict[str, Stored]:
        found = {}
        for shard in self.world.kinesis.state.streams[STREAM].shards.values():
            for record in shard.keep().records:
                told = json.loads(record.json)
                number = base64.b64decode(told["Data"]).split(b":", 1)[0].decode()
                record_of = Stored(shard.id, int(told["SequenceNumber"]), record.arrival)
                found[f"{told['PartitionKey']}:{number}"] = record_of
        return found

    def _fail(self, why: str) -> None:
        known = {name: value for name, value in vars(self).items() if isinstance(value, int | float | str)}
        raise AssertionError(f"seed {self.seed}: {why}; {known}")


def play_ends(seed: int, **changes: Any) -> EndsOutcome:
    """Play the scenario of a seed."""

    async def main() -> EndsOutcome:
        return await EndsScenario(seed, **changes).play()

    return run(main())
