"""A planner's plan, offered to the job of its fetchers on the same host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.remote import FetcherPlan
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.spark.plan_offer import PlanOffer, offered_plan

PLAN = FetcherPlan(
    Manifest(
        "lake",
        "dev",
        "us-east-1",
        "leases",
        {"orders": StreamRef("orders", "dev-orders", "arn:s", "arn:c")},
        "m.json",
        {"orders": "dev-orders"},
    ),
    SourceOptions.parse({"manifest": "m.json"}),
    FetcherAddress("here", 4242),
    "the secret",
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "private"


def offer(stack: ExitStack, place: Path, name: str = "job") -> PlanOffer:
    made = PlanOffer(name, PLAN, place)
    stack.callback(made.stop)
    return made


def test_the_plan_is_sent_to_whoever_asks_for_it_by_its_name(stack: ExitStack, place: Path) -> None:
    made = offer(stack, place)
    assert "has not submitted their job" in made.problem()
    for _ in range(2):
        assert offered_plan("job", 0.0, lambda: place) == PLAN
    assert made.problem() == ""
    assert offered_plan("another", 0.0, lambda: place) is None


def test_the_job_waits_for_a_planner_that_is_just_starting(stack: ExitStack, place: Path) -> None:
    timer = threading.Timer(0.3, lambda: offer(stack, place))
    timer.start()
    assert offered_plan("job", 30.0, lambda: place) == PLAN
    timer.join()


def test_what_a_killed_planner_left_is_nothing_and_is_replaced(stack: ExitStack, place: Path) -> None:
    made = PlanOffer("job", PLAN, place)
    path = place / "job.plan"
    made.stop()
    assert not path.exists()
    path.touch()
    assert offered_plan("job", 0.0, lambda: place) is None
    offer(stack, place)
    assert offered_plan("job", 0.0, lambda: place) == PLAN


def test_a_second_query_of_the_same_dataframe_is_told(stack: ExitStack, place: Path) -> None:
    offer(stack, place)
    with pytest.raises(
        FetcherError, match=r"another query of this DataFrame runs.*call kinesis_efo.read_stream for each"
    ):
        offer(stack, place)
    assert offered_plan("job", 0.0, lambda: place) == PLAN


def test_nothing_is_offered_nor_taken_where_others_may_enter(stack: ExitStack, place: Path) -> None:
    offer(stack, place)
    place.chmod(0o755)
    assert offered_plan("job", 0.0, lambda: place) is None
    with pytest.raises(FetcherError, match=rf"others than this user can enter {place}: remove it"):
        offer(stack, place, "next")


def test_no_name_leads_out_of_the_directory(stack: ExitStack, place: Path) -> None:
    offer(stack, place, "../../job")
    assert [path.name for path in place.iterdir()] == ["job.plan"]
