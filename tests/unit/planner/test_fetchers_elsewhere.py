"""What starts and ends the fetchers of other processes, and the one that takes their place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from kinesis_efo.errors import FetcherError, KinesisEfoError, StreamError
from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.remote import FetcherPlan
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner import fetchers_elsewhere
from kinesis_efo.planner.fetchers_elsewhere import FetchersElsewhere

PLAN = FetcherPlan(
    Manifest("lake", "test", "eu-west-1", "leases", {}, "manifest.json", {}),
    SourceOptions.parse({"manifest": "manifest.json", "fetchers": "3", "session.supervisor": "somewhere"}),
    FetcherAddress("here", 4000),
    "secret",
)


@dataclass
class Remote:
    """Fetchers that do not come."""

    optional: bool
    stopped: bool = False

    def problem(self) -> str:
        return "no cores"

    def stop(self) -> None:
        self.stopped = True


class Elsewhere:
    """Those of a run, with what it was told."""

    def __init__(self, *, optional: bool) -> None:
        self.remote = Remote(optional)
        self.plans: list[FetcherPlan] = []
        self.errors: list[KinesisEfoError] = []
        self.of_run = FetchersElsewhere(self.begin, Listening(), KINESIS_LIMITS, self.errors.append)

    def begin(self, plan: FetcherPlan) -> Remote:
        self.plans.append(plan)
        return self.remote


def fetching(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> list[int]:
    """Let a fetcher of this process end with an error, or go on; returns the places that it fills."""
    places: list[int] = []

    async def fetch(plan: FetcherPlan, place: int, *_: object) -> None:
        assert plan is PLAN
        places.append(place)
        if error is not None:
            raise error
        await asyncio.Event().wait()

    monkeypatch.setattr(fetchers_elsewhere, "fetch", fetch)
    return places


def test_nothing_runs_before_the_start_and_nothing_is_left_after_the_end() -> None:
    elsewhere = Elsewhere(optional=True)
    run = elsewhere.of_run
    assert run.fetch_here() is False
    assert run.problem() == ""
    run.stop()
    run.start(PLAN)
    assert elsewhere.plans == [PLAN]
    assert run.problem() == "no cores"
    run.stop()
    assert elsewhere.remote.stopped
    asyncio.run(run.end_own())


def test_a_fetcher_here_fills_one_more_place_if_the_others_need_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    places = fetching(monkeypatch, None)

    async def go() -> None:
        required = Elsewhere(optional=False)
        required.of_run.start(PLAN)
        assert required.of_run.fetch_here() is False
        elsewhere = Elsewhere(optional=True)
        elsewhere.of_run.start(PLAN)
        assert elsewhere.of_run.fetch_here() is True
        await asyncio.sleep(0)
        assert places == [3]
        await elsewhere.of_run.end_own()
        assert len(asyncio.all_tasks()) == 1
        assert elsewhere.errors == []

    asyncio.run(go())


@pytest.mark.parametrize("error", [StreamError("not allowed"), ZeroDivisionError("planted")])
def test_an_error_of_the_fetcher_here_is_the_runs(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    fetching(monkeypatch, error)

    async def go() -> None:
        elsewhere = Elsewhere(optional=True)
        elsewhere.of_run.start(PLAN)
        elsewhere.of_run.fetch_here()
        for _ in range(5):
            await asyncio.sleep(0)
        (told,) = elsewhere.errors
        assert str(error) in str(told)
        assert type(told) is (StreamError if isinstance(error, StreamError) else FetcherError)
        await elsewhere.of_run.end_own()

    asyncio.run(go())
