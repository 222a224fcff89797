"""Seeds in real time: real sockets, real DynamoDB requests, real services; fewer and shorter than those in virtual time.

Five seconds of writing, resharding, broken connections, refused calls, wrong answers and a lease table that stutters; then everything
must be there for each of up to four queries of one run, once and in order per key. Nothing in these scripts is fatal, so no error is expected.
"""

import asyncio
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from botocore.exceptions import ClientError

from kinesis_efo.kinesis.recovery import Limits
from kinesis_efo.options import RetrySettings
from kinesis_efo_local import AwsError, LocalAws, Request, Settings
from tests.emulator.faults import ScriptedFaults
from tests.emulator.script import BROKEN, HTTP2, ODD, Fault
from tests.support.fetching import beside, reading
from tests.support.world import World, make_world

SECONDS = 5.0
QUICK = Limits(between_calls=0.05, after_success=0.2, full=1.0, silence=2.0, too_short=0.01)
PATIENT = RetrySettings(max_retries=50, base_ms=20, max_ms=200)
REFUSALS = ("LimitExceededException", "InternalFailure", "KMSThrottlingException", "ResourceInUseException: too soon")


class Disturbed(ScriptedFaults):
    """The script, and a lease table that throttles now and then, and takes its time."""

    def __init__(self, random: Random, more: Sequence[str]) -> None:
        kinds = [*random.sample((*BROKEN, *ODD, "stall", "refuse", "exception"), 6), *more]
        script = [
            Fault(
                kind,
                at=random.uniform(0, SECONDS),
                times=1 if kind == "freeze" else random.randint(1, 4),  # it stops every shard of a connection
                seconds=random.choice((0.2, 3.0)),
                code=random.choice(REFUSALS) if kind == "refuse" else "InternalFailureException",
            )
            for kind in (random.choice(kinds) for _ in range(20))
        ]
        self.began = time.monotonic()
        super().__init__(sorted(script, key=lambda fault: fault.at), lambda: time.monotonic() - self.began)
        self._random = Random(random.random())
        self.throttled = 0

    async def before(self, request: Request) -> None:
        await super().before(request)
        if request.service == "dynamodb" and time.monotonic() - self.began < SECONDS:
            await asyncio.sleep(self._random.choice((0.0, 0.0, 0.1)))
            if self._random.random() < 0.1:
                self.throttled += 1
                raise AwsError("ProvisionedThroughputExceededException", "slow down")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    yield
    assert os.environ["AWS_ACCESS_KEY_ID"] == "test"


def write(world: World, random: Random, until: float, written: dict[str, int]) -> None:
    """Records of a few keys, and a reshard now and then."""
    name = world.streams["orders"]
    while time.monotonic() < until:
        keys = [f"k{random.randrange(12)}" for _ in range(random.randint(1, 30))]
        records = []
        for key in keys:
            records.append((key, b"%d:" % written[key] + bytes(random.choice((10, 3000)))))
            written[key] += 1
        world.put(records)
        if random.random() < 0.1:
            shards = [shard for shard in world.shards() if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]
            low, high = (int(bound) for bound in random.choice(shards)["HashKeyRange"].values())
            low, high = min(low, high), max(low, high)
            (shard,) = (each for each in shards if int(each["HashKeyRange"]["StartingHashKey"]) == low)
            try:
                world.kinesis.split_shard(
                    StreamName=name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2 + 1)
                )
            except ClientError as error:
                if error.response["Error"]["Code"] != "ResourceInUseException":
                    raise
        time.sleep(random.uniform(0, 0.2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(0, marks=pytest.mark.long), 1, 2, pytest.param(3, marks=pytest.mark.long)]
)
def test_real_sockets_lose_and_double_nothing(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    transport = ("http2", "http1")[seed % 2]
    faults = Disturbed(random, HTTP2 if transport == "http2" else ())
    settings = Settings(
        consumer_creating_seconds=0.0,
        subscription_seconds=random.choice((1.5, 300.0)),
        idle_event_seconds=0.3,
        resubscribe_seconds=0.2,
        subscribe_interval_seconds=0.0,
        # Of a query that reads apart, GetRecords gives as many a second.
        max_event_records=random.choice((50 if seed % 4 else 3, 500)),
        wrong_answers=random.choice(("", "all")),
    )
    with LocalAws(settings=settings, faults=faults) as aws:
        world = make_world(aws, tmp_path, {"orders": 2})
        written: dict[str, int] = defaultdict(int)
        options = {"bufferBytes": random.choice(("1m", "64m")), "leaseTimeout": "5s", "transport": transport}
        with ExitStack() as stack:
            r = stack.enter_context(reading(world, limits=QUICK, retry=PATIENT, **options))
            queries = [r, *(stack.enter_context(beside(r, f"q{number}", r.offset)) for number in range(seed % 4))]
            faults.began = time.monotonic()
            writing = threading.Thread(target=write, args=(world, Random(seed), time.monotonic() + SECONDS, written))
            writing.start()
            while writing.is_alive():
                random.choice(queries).batch()
            deadline = time.monotonic() + 60
            while any(len(query.rows) < sum(written.values()) for query in queries):
                assert time.monotonic() < deadline
                for query in queries:
                    query.batch()
            for query in queries:
                query.batch()
    for query in queries:
        read: dict[str, list[int]] = defaultdict(list)
        for row in query.rows:
            assert row.key is not None
            read[row.key].append(int(row.data.split(b":", 1)[0]))
        assert read == {key: list(range(count)) for key, count in written.items()}
    assert len(faults.strikes) > 5
