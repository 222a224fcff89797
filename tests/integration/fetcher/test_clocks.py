"""A host whose clock is off, or jumps: times in streams are Kinesis', and nothing is left out.

Not the host's clock is set here but Kinesis', which comes to the same: whoever compares the two finds the difference.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import KinesisEfoError, RetriesExhaustedError
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import Offset, Position, ShardKey
from kinesis_efo_local import LocalAws, Settings
from tests.integration.fetcher.conftest import QUICK
from tests.support.fetching import QUICK as QUICK_LIMITS
from tests.support.fetching import reading
from tests.support.world import World, make_world, wait_until

MODES = ({"readMode": "efo"}, {"readMode": "polling", "pollingInterval": "200ms"})
FIRST = ShardKey("orders", "shardId-000000000000")


class KinesisTime:
    """The clock of one Kinesis: the host is so many seconds ahead of it."""

    ahead = 0.0
    monotonic = staticmethod(time.monotonic)

    def time(self) -> float:
        return time.time() - self.ahead


@pytest.fixture
def kinesis_time() -> KinesisTime:
    return KinesisTime()


@pytest.fixture
def world(kinesis_time: KinesisTime, tmp_path: Path) -> Iterator[Callable[..., World]]:
    started: list[LocalAws] = []

    def make(**settings: Any) -> World:
        aws = LocalAws(settings=Settings(**{**QUICK, **settings}), clock=kinesis_time)
        started.append(aws.start())
        return make_world(aws, tmp_path, ["orders"])

    yield make
    for aws in started:
        aws.stop()


def put(w: World, numbers: range) -> None:
    w.put((f"key{number}", b"%d" % number) for number in numbers)


def skew_warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The figure and the direction of each warning."""
    return re.findall(r"this machine's clock is about (\d+) s (ahead of|behind) Kinesis'", caplog.text)


@pytest.mark.parametrize("mode", MODES, ids=["efo", "polling"])
@pytest.mark.parametrize(("ahead", "words"), [(40.0, "ahead of"), (-40.0, "behind"), (0.0, None)])
def test_latest_is_the_current_time_of_kinesis(
    world: Callable[..., World],
    kinesis_time: KinesisTime,
    caplog: pytest.LogCaptureFixture,
    mode: dict[str, str],
    ahead: float,
    words: str | None,
) -> None:
    kinesis_time.ahead = ahead
    w = world()
    w.aws.backdate(w.streams["orders"], 20)
    put(w, range(100, 110))
    w.aws.backdate(w.streams["orders"], 0)
    began = kinesis_time.time()
    with reading(w, startingPosition="LATEST", **mode) as r:
        start = r.offset[FIRST].value / 1000
        # A second in which nobody knows, and what an answer takes on a busy machine; but never late.
        assert began - 5.0 < start <= kinesis_time.time()
        put(w, range(20))
        assert sorted(int(row.data) for row in r.until(20, 20)) == list(range(20))
    said = skew_warnings(caplog)
    assert len(said) == (words is not None)
    for seconds, way in said:
        assert way == words
        assert 35 <= int(seconds) <= 45


def test_fast_host_clock_reports_no_false_loss(world: Callable[..., World], kinesis_time: KinesisTime) -> None:
    kinesis_time.ahead = 200.0
    w = world(retention_seconds=100.0)
    put(w, range(10))
    limits = replace(QUICK_LIMITS, shortest_retention=50.0)
    at = Offset({FIRST: Position.at_timestamp(round((kinesis_time.time() - 20) * 1000))})
    with reading(w, at=at, limits=limits) as r:
        assert len(r.until(10, 20)) == 10


def test_progress_of_a_shard_follows_the_clock_of_kinesis(
    world: Callable[..., World], kinesis_time: KinesisTime
) -> None:
    """`maxShardSkew` holds shards back by that."""
    kinesis_time.ahead = 100.0
    w = world()
    with reading(w, maxShardSkew="10s") as r:
        table = r.runtime.whole.run.table
        r.poll()
        known = wait_until(lambda: (row := table.shared.get(FIRST)) and row.read_until, 20)
        assert -30.0 < known - kinesis_time.time() <= 0.0


def test_lag_of_a_run_follows_the_clock_of_kinesis(world: Callable[..., World], kinesis_time: KinesisTime) -> None:
    kinesis_time.ahead = 100.0
    w = world()
    put(w, range(10))
    with reading(w, leaseTimeout="1s") as r:
        r.until(10, 20)
        r.commit()
        at = wait_until(lambda: w.leases()["#run:orders"].get("lag", {}).get("M", {}).get("at"), 20)
        assert -30.0 < int(at["N"]) / 1000 - kinesis_time.time() <= 0.0


# Shows clock off by minutes.
@pytest.mark.parametrize("mode", MODES, ids=["efo", "polling"])
@pytest.mark.parametrize("ahead", [400.0, -400.0], ids=["fast", "slow"])
def test_clock_that_jumps_and_returns_only_delays_reading(
    world: Callable[..., World],
    kinesis_time: KinesisTime,
    caplog: pytest.LogCaptureFixture,
    mode: dict[str, str],
    ahead: float,
) -> None:
    w = world(subscription_seconds=1.0)
    # With a lease that is lost meanwhile, as in the default 10 s, and with one that lasts.
    lease = "1s" if mode["readMode"] == "polling" else "30s"
    backoff = RetrySettings(base_ms=50, max_ms=200)
    with reading(w, leaseTimeout=lease, retry=backoff, **mode) as r:
        put(w, range(50))
        r.until(50, 20)
        with caplog.at_level(logging.WARNING):
            kinesis_time.ahead = ahead
            wait_until(lambda: "s ahead of AWS'" in caplog.text or "s behind AWS'" in caplog.text, 20)
            for _ in range(5):
                r.batch()
        assert re.search(rf"clock is (399|40[012]) s {'ahead of' if ahead > 0 else 'behind'} AWS'", caplog.text)
        kinesis_time.ahead = 0.0
        put(w, range(50, 100))
        assert sorted(int(row.data) for row in r.until(100, 30)) == list(range(100)), "each record once"


# Shows clock off by minutes.
def test_clock_that_stays_wrong_fails_the_query(world: Callable[..., World], kinesis_time: KinesisTime) -> None:
    w = world(subscription_seconds=1.0)
    retry = RetrySettings(base_ms=50, max_ms=200, timeout=3.0)
    with reading(w, leaseTimeout="30s", retry=retry) as r:
        put(w, range(10))
        r.until(10, 20)
        kinesis_time.ahead = 400.0
        with pytest.raises(KinesisEfoError) as caught:
            wait_until(lambda: r.batch() and None, 30)
        assert isinstance(caught.value, RetriesExhaustedError)
        assert "Signature not yet current" in str(caught.value)
        assert "s ahead of AWS'; synchronize it" in str(caught.value)
