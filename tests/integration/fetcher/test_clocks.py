"""A host whose clock is off: AWS refuses its signatures, and reading continues once the clock is right.

Kinesis' clock is moved instead of the host's, which is the same to whoever compares the two.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import KinesisEfoError, RetriesExhaustedError
from kinesis_efo.options import RetrySettings
from kinesis_efo_local import LocalAws, Settings
from tests.support.fetching import reading
from tests.support.world import QUICK, World, make_world, wait_until


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
@pytest.mark.parametrize(("mode", "ahead"), [("efo", 400.0), ("polling", -400.0)])
def test_clock_that_jumps_and_returns_only_delays_reading(
    world: Callable[..., World],
    kinesis_time: KinesisTime,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    ahead: float,
) -> None:
    w = world(subscription_seconds=1.0)
    # With a lease that is lost meanwhile, as in the default 10 s, and with one that lasts.
    lease = "1s" if mode == "polling" else "30s"
    backoff = RetrySettings(base_ms=50, max_ms=200)
    with reading(w, leaseTimeout=lease, retry=backoff, readMode=mode, pollingInterval="200ms") as r:
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
    retry = RetrySettings(base_ms=50, max_ms=200, timeout=1.0)
    with reading(w, leaseTimeout="30s", retry=retry) as r:
        put(w, range(10))
        r.until(10, 20)
        kinesis_time.ahead = 400.0
        with pytest.raises(KinesisEfoError) as caught:
            wait_until(lambda: r.batch() and None, 30)
        assert isinstance(caught.value, RetriesExhaustedError)
        assert "Signature not yet current" in str(caught.value)
        assert "s ahead of AWS'; synchronize it" in str(caught.value)
