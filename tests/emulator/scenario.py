"""Random scenarios: a stream is written, read, resharded and disturbed, and everything must be read exactly once.

A scenario runs in virtual time, so that minutes cost milliseconds, and the same seed plays the same scenario.
"""

import asyncio
import random as standard_random
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import NoReturn

from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.options import Start
from kinesis_efo_local import AwsError, NoFaults
from kinesis_efo_local.subscribe import open_subscription
from tests.emulator.batch import batch_rows
from tests.emulator.faults import ScriptedFaults
from tests.emulator.memory_world import STREAM, JumpingClock, MemoryWorld
from tests.emulator.query import NO_LIMIT, Query
from tests.emulator.script import generate
from tests.support.virtual_time import run

SECONDS = 30.0
"""How long records are written and faults injected; afterwards, everything must be read."""

STALLED = 200.0
"""Seconds without progress after the last disturbance that count as a stall. Opening (60 s), silence (35 s), the longest
backoffs in a row (10 s each) and the wait for an expired lease take less."""


@dataclass
class Outcome:
    """The outcome of a scenario.

    Attributes:
        records: Number of user records written, all of which were read.
        runs: Number of runs of the query.
        faults: Number of faults injected, by kind.
        errors: The errors of the runs that failed.
        moves: How often each of the moves happened that are not faults of Kinesis.
        most_used: The most bytes that a fetcher buffered.
    """

    records: int = 0
    runs: int = 0
    faults: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    errors: list[str] = field(default_factory=list)
    moves: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    most_used: int = 0


class Scenario:
    """One scenario.

    Args:
        seed: Determines everything that happens.
        moves: Whether each run of the query chooses at random between GetRecords and SubscribeToShard.
    """

    def __init__(self, seed: int, *, moves: bool = False) -> None:
        self.seed = seed
        self.moves = moves
        self.random = random = Random(seed)
        self.outcome = Outcome()
        shards = random.randint(1, 4)
        settings = {
            "subscription_seconds": random.choice((7.0, 20.0, 300.0)),
            "reshard_seconds": random.choice((0.0, 3.0)),
            "max_event_records": random.choice((1, 3, 500)),
        }
        # Of its own, as `more` is.
        self.wrong = wrong = Random(f"{seed}: wrong")
        if wrong.random() < 0.4:
            settings["wrong_answers"] = wrong.choice(("quiet", "behind", "last-number", "empty", "all"))
            settings["wrong_answers_in_a_row"] = wrong.choice((1, 2, 5))
            # A server that errs at times says the right thing soon. One that always does must be seen through.
            settings["wrong_answers_rate"] = Random(f"{seed}: rate").choice((0.5, 1.0))
        self.hidden_lists = settings["wrong_answers_in_a_row"] if settings.get("wrong_answers") == "all" else 0
        self.began = asyncio.get_running_loop().time()
        script = generate(random, SECONDS, shards, fatal=random.random() < 0.15)
        self.faults = ScriptedFaults(script, lambda: self.clock.monotonic() - self.began)
        self.world = world = MemoryWorld(
            Random(random.random()),
            shards=shards,
            faults=self.faults,
            settings=settings,
            buffer_bytes=random.choice((20_000, 200_000, 4 << 20)),
            max_bytes=random.choice((5_000, NO_LIMIT)),
            max_records=random.choice((5, NO_LIMIT)),
            slowness=random.choice((0.0, 0.0, 0.5, 30.0)),
        )
        self.clock, self.kinesis, self.application = world.clock, world.kinesis, world.application
        # Of its own, so that a new move leaves the rest of a seed's scenario as it was.
        self.more = more = Random(f"{seed}: more")
        self.application.hanging = more.choice((0.0, 0.0, 0.1))
        self.changes_options = more.random() < 0.3
        self.table_is_late = more.random() < 0.3
        self.at_start = Random(f"{seed}: start")
        self.begun = asyncio.Event()
        if more.random() < 0.2:
            self._begin_at_latest()
        self.repeats_backlog = not self.world.skipped and more.random() < 0.2
        if self.repeats_backlog:
            self._wait_with_backlog()
        self.query: Query | None = None
        self.driving: asyncio.Task[None] | None = None
        self.crashing = False
        self.disturbed = self.began

    async def play(self) -> Outcome:
        """Play the scenario, and check its outcome.

        Raises:
            AssertionError: A record was lost, doubled or out of order, or the query stalled or failed where it must not.
        """
        if self.world.skipped:
            await asyncio.sleep(3)  # the beginning is known to a second, so that it lies behind what was put before
        actors = [asyncio.create_task(actor()) for actor in (self._write, self._disturb)]
        try:
            while not await self._run(actors):
                self.application.runs < 30 or self._fail("it fails again and again")
        finally:
            for actor in actors:
                actor.cancel()
            await asyncio.gather(*actors, return_exceptions=True)
        self._check_rows()
        if self.wrong.random() < 0.2:
            await self._read_in_one_batch()
        outcome = self.outcome
        outcome.records, outcome.runs = self.world.expected, self.application.runs
        outcome.moves["attempt that hangs"] += self.application.hung
        outcome.moves["deleted commit"] += self.application.repeated
        for _, fault in self.faults.strikes:
            outcome.faults[" ".join(filter(None, (fault.kind, fault.code)))] += 1
        return outcome

    # -- the query and its restarts

    async def _run(self, actors: list[asyncio.Task[None]]) -> bool:
        """Run the query once; returns whether everything was read."""
        if self.moves:
            self.application.polls = self.random.random() < 0.5
        if self.changes_options and self.application.runs:
            self._change_options()
        query = self.query = Query(self.application)
        if self.table_is_late and self.more.random() < 0.5:
            self._delay_table(query)
        if self.at_start.random() < 0.15:
            self._refuse_at_start()
        self.crashing = False
        try:
            async with query:
                self.driving = asyncio.create_task(self._drive(query, actors))
                await self.driving
        except asyncio.CancelledError:
            if not self.crashing:
                raise
            return False
        except KinesisEfoError as error:
            await self._check_failure(query, error)
            return False
        finally:
            self.outcome.most_used = max(self.outcome.most_used, query.most_used)
        for verdict in query.oracle.verdicts:
            if verdict.at < self.clock.monotonic() - 1:
                self._fail(f"the query went on in spite of {verdict}")
        return True

    async def _drive(self, query: Query, actors: list[asyncio.Task[None]]) -> None:
        self.faults.refused.clear()
        offset = await query.begin()
        self.begun.set()
        progress, read = self.clock.monotonic(), len(self.application.rows)
        while not (all(actor.done() for actor in actors) and self.world.all_read):
            offset = await query.batch(offset)
            if self.repeats_backlog and self.application.rows:
                self._lower_budget()
                raise asyncio.CancelledError
            now = self.clock.monotonic()
            if len(self.application.rows) > read or self.world.all_read:
                progress, read = now, len(self.application.rows)
            quiet = max(progress, self.disturbed, self.began + self.faults.quiet_since)
            if now - quiet > STALLED:
                self._fail(f"nothing was read for {now - quiet:.0f} s, at {offset}")
        # The next poll raises a failure of the last micro-batch.
        await query.poll(offset)

    def _begin_at_latest(self) -> None:
        """Let the query begin at `LATEST`, by a clock that is off: what was put before it began is left out, and nothing else."""
        self.outcome.moves["latest"] += 1
        self.application.start = Start()
        clock = self.application.clock
        assert isinstance(clock, JumpingClock)
        clock.jump = self.more.choice((-200.0, -3.0, 3.0, 40.0, 200.0))
        self.world.put_some(30)
        self.world.skipped = dict(self.world.written)

    def _wait_with_backlog(self) -> None:
        """Put so much that the first micro-batch is large, for a run that ends right after it."""
        application = self.application
        application.buffer_bytes, application.max_bytes, application.max_records = 4 << 20, NO_LIMIT, NO_LIMIT
        for _ in range(4):
            self.world.put_some(50, size=5_000)

    def _lower_budget(self) -> None:
        """Kill the query, and go on with a budget that its last micro-batch does not fit into, and with attempts that hang."""
        self.outcome.moves["less budget than the repeated micro-batch"] += 1
        self.repeats_backlog, self.crashing = False, True
        self.application.buffer_bytes, self.application.hanging = 20_000, 0.1

    def _change_options(self) -> None:
        """Start again with other options than the run before had."""
        self.outcome.moves["other options"] += 1
        application, more = self.application, self.more
        application.buffer_bytes = more.choice((20_000, 200_000, 4 << 20))
        application.max_bytes = more.choice((5_000, NO_LIMIT))
        application.max_records = more.choice((5, NO_LIMIT))
        application.slowness = more.choice((0.0, 0.5))

    def _delay_table(self, query: Query) -> None:
        """Throttle the lease table while the query starts, which waits that out."""
        self.outcome.moves["table throttled at start"] += 1
        query.network.throttled = True

        def recover() -> None:
            query.network.throttled = False

        asyncio.get_running_loop().call_later(self.more.choice((0.5, 5.0, 20.0, 90.0)), recover)

    def _refuse_at_start(self) -> None:
        """Refuse the calls that a start makes of Kinesis, as often as its patience bears."""
        self.outcome.moves["refused at start"] += 1
        code = self.at_start.choice(("LimitExceededException", "InternalFailure", "ServiceUnavailable"))
        # Lists without shards come on top, and again for who asks at the same time as somebody who got the right one.
        most = 10 - 2 * self.hidden_lists
        for operation in ("ListShards", "DescribeStreamSummary"):
            self.faults.refused[operation] = min(self.at_start.randint(0, 10), most), code

    async def _check_failure(self, query: Query, error: KinesisEfoError) -> None:
        verdicts = query.oracle.verdicts
        soon = [verdict.error for verdict in verdicts if verdict.at <= verdicts[0].at + 1]
        if type(error) not in soon:
            self._fail(f"it failed with {error!r}; expected was {verdicts or 'no failure'}")
        self.outcome.errors.append(type(error).__name__)
        if "consumer/" in str(error) and "does not exist" in str(error):
            while self.kinesis.state.streams[STREAM].status != "ACTIVE":
                await asyncio.sleep(1)
                self.kinesis.state.settle()
            self.application.ref = self.world.deployed()
        self._check_rows(whole=False)

    # -- writes and disturbances

    async def _write(self) -> None:
        await self.begun.wait()
        random = self.random
        keys = [f"key{number}" for number in range(random.randint(1, 20))]
        until = self.clock.monotonic() + SECONDS
        aggregated = random.random() < 0.3
        sizes = random.choice(((1, 50), (100, 3_000), (1, 30_000)))
        while self.clock.monotonic() < until:
            for _ in range(random.randint(1, 8)):
                self.world.put(random.choice(keys), random.randint(*sizes), 3 if aggregated else 1)
            await asyncio.sleep(random.expovariate(1.0))

    async def _disturb(self) -> None:
        random = self.random
        happens = random.sample(
            (self._reshard, self._steal, self._crash, self._stop, self._trouble_table, self._jump, self._redeploy),
            random.randint(0, 4),
        )
        while happens and self.clock.monotonic() < self.began + SECONDS:
            await asyncio.sleep(random.expovariate(1 / 7))
            await random.choice(happens)()
            self.disturbed = self.clock.monotonic()

    async def _reshard(self) -> None:
        random, world = self.random, self.world
        shards = len(self.kinesis.state.streams[STREAM].open_shards)
        try:
            if shards > 1 and random.random() < 0.4:
                world.merge(random.randrange(shards - 1))
            elif random.random() < 0.2:
                world.scale(random.choice(((shards + 1) // 2, shards * 2)))
            else:
                world.split(random.randrange(shards))
        except AwsError as refused:
            # The stream is still UPDATING, or has the least or the largest number of shards.
            if refused.code not in ("ResourceInUseException", "InvalidArgumentException", "LimitExceededException"):
                raise

    async def _steal(self) -> None:
        if subscriptions := self.kinesis.state.subscriptions:
            taken = self.random.choice(subscriptions)
            request = {
                "ConsumerARN": taken.consumer.arn,
                "ShardId": taken.shard.id,
                "StartingPosition": {"Type": "LATEST"},
            }
            try:
                open_subscription(self.kinesis.state, request)
            except AwsError as refused:
                if refused.code not in ("ResourceInUseException", "LimitExceededException"):
                    raise

    async def _crash(self) -> None:
        if self.query is not None and self.driving is not None and not self.driving.done():
            self.outcome.moves["planner killed"] += 1
            self.query.crash()
            self._end_run(self.driving)

    async def _stop(self) -> None:
        if self.driving is not None and not self.driving.done():
            self._end_run(self.driving)

    def _end_run(self, driving: asyncio.Task[None]) -> None:
        self.crashing = True
        driving.cancel()

    async def _trouble_table(self) -> None:
        if self.query is None:
            return
        network, random = self.query.network, self.random
        trouble = random.choice(("throttled", "cut", "lossy", "late"))
        network.throttled, network.cut = trouble == "throttled", trouble == "cut"
        network.lose_requests = 0.3 if trouble in ("lossy", "late") else 0.0
        network.lose_answers = 0.3 if trouble == "lossy" else 0.0
        network.late = 0.5 if trouble == "late" else 0.0
        network.latency = random.choice((0.005, 1.0))
        await asyncio.sleep(random.uniform(0, 25))
        network.throttled = network.cut = False
        network.lose_requests = network.lose_answers = network.late = 0.0
        network.latency = 0.005

    async def _jump(self) -> None:
        clock = self.random.choice((self.clock, self.application.clock))
        if self.world.skipped:
            clock = self.application.clock  # a service whose clock goes back has another past to begin in
        assert isinstance(clock, JumpingClock)
        clock.jump += self.random.uniform(-3600, 3600)

    async def _redeploy(self) -> None:
        """Delete the consumer. The next run registers it again, with another ARN."""
        if self.random.random() < 0.2:
            self.kinesis.call("DeregisterStreamConsumer", ConsumerARN=self.application.ref.consumer_arn)

    async def _read_in_one_batch(self) -> None:
        """Read the whole stream as a batch read does, from its horizon to its tip."""
        self.kinesis.faults = NoFaults()
        # More in a row are believed.
        self.kinesis.state.wrong.in_a_row = 1
        try:
            rows = await batch_rows(self.kinesis, self.world.deployed(), self.clock)
        except KinesisEfoError as error:
            self._fail(f"a batch read fails: {error}")
        numbers: dict[str, list[int]] = defaultdict(list)
        for key, data in rows:
            numbers[key].append(int(data.split(b":", 1)[0]))
        if {key: sorted(found) for key, found in numbers.items()} != {
            key: list(range(count)) for key, count in self.world.written.items()
        }:
            self._fail("a batch read has other rows")

    # -- what must hold

    def _check_rows(self, *, whole: bool = True) -> None:
        try:
            self.world.check(whole=whole)
        except AssertionError as error:
            self._fail(str(error))

    def _fail(self, why: str) -> NoReturn:
        raise AssertionError(f"seed {self.seed}: {why}\nstrikes:\n{self.faults!r}")


def play(seed: int, *, moves: bool = False) -> Outcome:
    """Play the scenario of a seed, for at most three hours of virtual time."""
    standard_random.seed(f"{seed}: backoffs")

    async def main() -> Outcome:
        try:
            return await asyncio.wait_for(Scenario(seed, moves=moves).play(), 3 * 3600)
        except TimeoutError:
            raise AssertionError(f"seed {seed}: it is not over after three hours: something waits for ever") from None

    return run(main())
