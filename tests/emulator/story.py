"""One seed's story: a stream that is written, read, resharded and disturbed at random, and what must have come of it.

Everything happens in virtual time, so that minutes cost milliseconds, and the same seed tells the same story.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

from aws_kinesis_agg.aggregator import RecordAggregator

from kinesis_efo.errors import KinesisEfoError, TableUnavailableError
from kinesis_efo.local import AwsError, Settings
from kinesis_efo.local.subscribe import open_subscription
from kinesis_efo.manifest import StreamRef
from tests.emulator.faults import ScriptedFaults
from tests.emulator.memory import MemoryKinesis
from tests.emulator.query import NO_LIMIT, Application, Query
from tests.emulator.script import generate
from tests.support.virtual_time import LoopClock, run

STREAM = "dev-orders"
SECONDS = 30.0
"""For so long something is written and something goes wrong; then everything must be read."""

STALLED = 200.0
"""Nothing may stand still for so many seconds after the last disturbance. Opening (60 s), silence (35 s), the longest backoffs
in a row (10 s each) and the wait for an expired lease lie below."""


class JumpingClock(LoopClock):
    """Wall time that is not as monotonic as the other."""

    def __init__(self) -> None:
        self.jump = 0.0

    def time(self) -> float:
        return super().time() + self.jump


@dataclass
class Outcome:
    """What a story came to.

    Attributes:
        records: User records written, all of which were read.
        runs: How often the query was started.
        faults: Faults that struck, by kind.
        errors: What ended the runs that failed.
        most_used: The most bytes that a fetcher held.
    """

    records: int = 0
    runs: int = 0
    faults: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    errors: list[str] = field(default_factory=list)
    most_used: int = 0


class Story:
    """See the module.

    Args:
        seed: What happens.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.outcome = Outcome()
        self.clock = JumpingClock()
        self.shards = random.randint(1, 4)
        settings = Settings(
            subscription_seconds=random.choice((7.0, 20.0, 300.0)),
            consumer_creating_seconds=0.0,
            consumer_deleting_seconds=0.0,
            reshard_seconds=random.choice((0.0, 3.0)),
            max_event_records=random.choice((1, 3, 500)),
        )
        self.began = self.clock.monotonic()
        script = generate(random, SECONDS, self.shards, fatal=random.random() < 0.15)
        self.faults = ScriptedFaults(script, lambda: self.clock.monotonic() - self.began)
        self.kinesis = MemoryKinesis(settings, self.clock, self.faults)
        self.kinesis.call("CreateStream", StreamName=STREAM, ShardCount=self.shards)
        self.application = Application(
            self.kinesis,
            self._deployed(),
            Random(random.random()),
            buffer_bytes=random.choice((20_000, 200_000, 4 << 20)),
            max_bytes=random.choice((5_000, NO_LIMIT)),
            max_records=random.choice((5, NO_LIMIT)),
            slowness=random.choice((0.0, 0.0, 0.5, 30.0)),
            clock=JumpingClock(),
        )
        self.written: dict[str, int] = defaultdict(int)
        self.query: Query | None = None
        self.driving: asyncio.Task[None] | None = None
        self.crashing = False
        self.disturbed = self.began
        self.last_put = self.began

    async def tell(self) -> Outcome:
        """Let it happen, and check what came of it.

        Raises:
            AssertionError: Something was lost, doubled, out of order, stalled, or failed as it should not.
        """
        actors = [asyncio.create_task(actor()) for actor in (self._write, self._disturb)]
        try:
            while not await self._run(actors):
                self.application.runs < 30 or self._fail("it fails again and again")
        finally:
            for actor in actors:
                actor.cancel()
            await asyncio.gather(*actors, return_exceptions=True)
        self._check_rows(whole=True)
        outcome = self.outcome
        outcome.records, outcome.runs = sum(self.written.values()), self.application.runs
        for _, fault in self.faults.strikes:
            outcome.faults[" ".join(filter(None, (fault.kind, fault.code)))] += 1
        return outcome

    # -- the query and whoever restarts it

    async def _run(self, actors: list[asyncio.Task[None]]) -> bool:
        """One run of the query; whether everything was read in the end."""
        query = self.query = Query(self.application)
        self.crashing = False
        try:
            async with query:
                self.driving = asyncio.create_task(self._drive(query, actors))
                await self.driving
        except asyncio.CancelledError:
            if not self.crashing:
                raise
            return False
        except TableUnavailableError:
            # The table could not be reached at the start: whoever runs the query starts it again.
            await asyncio.sleep(5)
            return False
        except KinesisEfoError as error:
            await self._check_failure(query, error)
            return False
        finally:
            self.outcome.most_used = max(self.outcome.most_used, query.most_used)
        for verdict in query.referee.verdicts:
            if verdict.at < self.clock.monotonic() - 1:
                self._fail(f"the query went on in spite of {verdict}")
        return True

    async def _drive(self, query: Query, actors: list[asyncio.Task[None]]) -> None:
        offset = await query.begin()
        progress, read = self.clock.monotonic(), len(self.application.rows)
        while not (all(actor.done() for actor in actors) and self._all_read()):
            offset = await query.batch(offset)
            now = self.clock.monotonic()
            if len(self.application.rows) > read or self._all_read():
                progress, read = now, len(self.application.rows)
            quiet = max(progress, self.disturbed, self.began + self.faults.quiet_since)
            if now - quiet > STALLED:
                self._fail(f"nothing was read for {now - quiet:.0f} s, at {offset}")
        # What failed during the last micro-batch comes out with the next.
        await query.poll(offset)

    async def _check_failure(self, query: Query, error: KinesisEfoError) -> None:
        verdicts = query.referee.verdicts
        soon = [verdict.error for verdict in verdicts if verdict.at <= verdicts[0].at + 1]
        if type(error) not in soon:
            self._fail(f"it failed with {error!r}; expected was {verdicts or 'no failure'}")
        self.outcome.errors.append(type(error).__name__)
        if "consumer/" in str(error) and "does not exist" in str(error):
            while self.kinesis.state.streams[STREAM].status != "ACTIVE":
                await asyncio.sleep(1)
                self.kinesis.state.settle()
            self.application.ref = self._deployed()
        self._check_rows(whole=False)

    # -- what happens meanwhile

    async def _write(self) -> None:
        random = self.random
        keys = [f"key{number}" for number in range(random.randint(1, 20))]
        until = self.began + SECONDS
        aggregated = random.random() < 0.3
        sizes = random.choice(((1, 50), (100, 3_000), (1, 30_000)))
        while self.clock.monotonic() < until:
            for _ in range(random.randint(1, 8)):
                self._put(random.choice(keys), random.randint(*sizes), 3 if aggregated else 1)
            self.last_put = self.clock.monotonic()
            await asyncio.sleep(random.expovariate(1.0))

    def _put(self, key: str, size: int, count: int) -> None:
        datas = []
        for _ in range(count):
            datas.append(f"{self.written[key]}:{'x' * size}".encode())
            self.written[key] += 1
        if count == 1:
            self.kinesis.put(STREAM, key, datas[0])
            return
        aggregator = RecordAggregator()
        for data in datas:
            aggregator.add_user_record(key, data)
        _, _, data = aggregator.clear_and_get().get_contents()
        self.kinesis.put(STREAM, key, data)

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
        random, stream = self.random, self.kinesis.state.streams[STREAM]
        shards = stream.open_shards
        try:
            if len(shards) > 1 and random.random() < 0.4:
                at = random.randrange(len(shards) - 1)
                one, other = shards[at : at + 2]
                self.kinesis.call("MergeShards", StreamName=STREAM, ShardToMerge=one.id, AdjacentShardToMerge=other.id)
            elif random.random() < 0.2:
                target = random.choice((max(1, (len(shards) + 1) // 2), len(shards) * 2))
                request = {"TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
                self.kinesis.call("UpdateShardCount", StreamName=STREAM, **request)
            else:
                shard = random.choice(shards)
                middle = sum(shard.hash_range) // 2 + 1
                request = {"ShardToSplit": shard.id, "NewStartingHashKey": str(middle)}
                self.kinesis.call("SplitShard", StreamName=STREAM, **request)
        except AwsError as refused:
            # Still UPDATING, or as few or as many shards as there may be.
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
        network.throttled, network.cut = random.choice(((True, False), (False, True)))
        network.latency = random.choice((0.005, 1.0))
        await asyncio.sleep(random.uniform(0, 25))
        network.throttled = network.cut = False
        network.latency = 0.005

    async def _jump(self) -> None:
        clock = self.random.choice((self.clock, self.application.clock))
        assert isinstance(clock, JumpingClock)
        clock.jump += self.random.uniform(-3600, 3600)

    async def _redeploy(self) -> None:
        """The consumer is deleted and created again under its name: it has another ARN then."""
        if self.random.random() < 0.2:
            self.kinesis.call("DeregisterStreamConsumer", ConsumerARN=self.application.ref.consumer_arn)

    def _deployed(self) -> StreamRef:
        arn = self.kinesis.call("DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
        consumers = self.kinesis.call("ListStreamConsumers", StreamARN=arn)["Consumers"]
        if not consumers:
            consumers = [self.kinesis.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName="lake")["Consumer"]]
        return StreamRef("orders", STREAM, arn, consumers[0]["ConsumerARN"])

    # -- what must hold

    def _all_read(self) -> bool:
        return len(self.application.rows) >= sum(self.written.values())

    def _check_rows(self, *, whole: bool) -> None:
        read: dict[str, list[int]] = defaultdict(list)
        for row in self.application.rows:
            read[row.key].append(int(row.data.split(b":", 1)[0]))
        for key, numbers in read.items():
            if numbers != list(range(len(numbers))):
                self._fail(f"{key} was read as {numbers}")
            if len(numbers) > self.written[key]:
                self._fail(f"{key} was read more often than written")
        if whole and {key: len(numbers) for key, numbers in read.items()} != dict(self.written):
            self._fail("not everything was read")

    def _fail(self, why: str) -> None:
        raise AssertionError(f"seed {self.seed}: {why}\nstrikes:\n{self.faults!r}")


def tell(seed: int) -> Outcome:
    """Tell one seed's story, in virtual time, three hours of it at most."""

    async def main() -> Outcome:
        return await asyncio.wait_for(Story(seed).tell(), 3 * 3600)

    return run(main())
