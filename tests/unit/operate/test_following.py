"""Following runs through outages, ends and beginnings."""

import asyncio
from collections.abc import Mapping

import pytest

from kinesis_efo.errors import TableUnavailableError
from kinesis_efo.fetcher.status import QueryStatus, RunStatus, ShardStatus
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.row import Lease
from kinesis_efo_tools.operate.following import READ_AGAIN_SECONDS, Following, Observation
from kinesis_efo_tools.operate.live import RunReplies
from kinesis_efo_tools.operate.pulse import LagCause
from tests.support.answers import FixedClock


class Runs:
    """An application's runs as the table and they themselves tell."""

    def __init__(self) -> None:
        self.clock = FixedClock(1_700_000_000.0)
        self.owner: str | None = "host-1"
        self.answers = True
        self.table = True
        self.shards = [ShardStatus("orders", "s-1", "AFTER:7", 0, 0, None, 0)]
        self.reads = 0
        self.following = Following(self.find, self.clock, self.ask)

    async def find(self) -> Mapping[str, Lease]:
        self.reads += 1
        if not self.table:
            raise TableUnavailableError("the network is down")
        return {"orders": Lease(run_key("orders"), owner=self.owner)} if self.owner else {}

    async def ask(self, runs: Mapping[str, Lease]) -> RunReplies:
        owner = runs["orders"].owner or ""
        if not self.answers:
            return RunReplies({}, {owner: "nobody answers"})
        return RunReplies({owner: RunStatus(self.clock.time(), self.shards)}, {})

    def look(self, after: float = 2.0) -> Observation:
        self.clock.pass_by(after)
        return asyncio.run(self.following.look())


def test_silent_run_leaves_the_last_view_and_age() -> None:
    runs = Runs()
    first = runs.look()
    assert (first.trouble, first.owners, first.said) == ("", ["host-1"], first.at)
    assert [text for _, text in first.events] == ["host-1 reads now"]
    runs.answers = False
    look = runs.look()
    assert look.trouble == "host-1 cannot be asked: nobody answers"
    assert look.said == first.at
    grown = (look.view.total().seconds or 0.0) - (first.view.total().seconds or 0.0)
    assert grown == look.at - first.at > 0
    assert {each.cause for each in look.view.shards} == {LagCause.NO_REPLY}
    runs.answers = True
    look = runs.look()
    assert [text for _, text in look.events][1:] == ["host-1 cannot be asked: nobody answers", "the run answers again"]


def test_end_of_a_run_and_its_successor_are_shown() -> None:
    runs = Runs()
    runs.look()
    runs.owner = None
    look = runs.look(READ_AGAIN_SECONDS)
    assert look.trouble == "no run holds the lease"
    assert [(each.cause, each.seconds) for each in look.view.shards] == [(LagCause.NO_RUN, READ_AGAIN_SECONDS)]
    runs.owner = "host-2"
    assert runs.look().trouble == "no run holds the lease"
    look = runs.look(READ_AGAIN_SECONDS)
    assert (look.trouble, look.owners) == ("", ["host-2"])
    assert [text for _, text in look.events][1:] == [
        "no run holds the lease",
        "host-2 reads now",
        "the run answers again",
    ]


@pytest.mark.parametrize("owner", ["host-1", None])
def test_unreachable_table_fails_only_the_first_look(owner: str | None) -> None:
    runs = Runs()
    runs.table = False
    with pytest.raises(TableUnavailableError):
        runs.look()
    runs.table, runs.owner = True, owner
    runs.look()
    runs.table = False
    look = runs.look(READ_AGAIN_SECONDS)
    assert look.trouble == "the lease table cannot be read: the network is down"
    assert look.said == (look.at if owner else None), "a run that was found before is still asked"


def test_runs_of_different_streams_are_looked_at_as_one() -> None:
    async def find() -> Mapping[str, Lease]:
        return {stream: Lease(run_key(stream), owner=f"host of {stream}") for stream in ("clicks", "orders")}

    async def question(runs: Mapping[str, Lease]) -> RunReplies:
        return RunReplies(
            {
                row.owner or "": RunStatus(
                    5.0, [ShardStatus(stream, "s-1", "AFTER:7", 10, 0, None, 0)], 100, 0.5, [QueryStatus(1, [stream])]
                )
                for stream, row in runs.items()
            },
            {},
        )

    view = asyncio.run(Following(find, FixedClock(0.0), question).look()).view
    assert (view.streams, view.buffered, view.room) == (["clicks", "orders"], 20, 200)
    assert [each.status.streams for each in view.queries] == [["clicks"], ["orders"]]
