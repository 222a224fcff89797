"""Who reads which shard while fetchers come, go, fall silent and come back: never two at a time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.cluster.members import Member, Members
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.work import Work, WorkRequest
from kinesis_efo.positions import ShardKey

TIMEOUT = 10.0
ADDRESS = FetcherAddress("host", 4000)
STANDBY, UNKNOWN = Work("standby"), Work("unknown")
SHARDS = [ShardKey("orders", f"shardId-{number:012}") for number in range(8)]
EVEN = dict.fromkeys(SHARDS, 1.0)


class Fetcher:
    """Follows what it is told, as a fetcher does."""

    def __init__(self, members: Members, name: str, place: int) -> None:
        self.members, self.name, self.place = members, name, place
        self.obeyed = 0
        self.reads: set[ShardKey] = set()

    def ask(self, now: float = 0.0) -> Member | Work:
        request = WorkRequest(self.name, self.place, "host", ADDRESS, 1 << 20, self.obeyed, 0, 0.0)
        asked = self.members.ask(request, now)
        if isinstance(asked, Member):
            assert asked is self.members.get(self.name)
            self.reads, self.obeyed = set(asked.shards), asked.revision
        else:
            self.reads, self.obeyed = set(), 0
        return asked


def test_shards_are_shared_out_to_those_who_ask() -> None:
    members = Members(TIMEOUT)
    one, two = Fetcher(members, "one", 0), Fetcher(members, "two", 1)
    assert isinstance(one.ask(), Member)
    assert isinstance(two.ask(), Member)
    members.share(EVEN)
    one.ask()
    two.ask()
    assert len(one.reads) == len(two.reads) == 4
    assert one.reads | two.reads == set(SHARDS)


def test_who_keeps_its_shards_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[None] = []
    monkeypatch.setattr(Signal, "notify", lambda _: told.append(None))
    members = Members(TIMEOUT)
    one = Fetcher(members, "one", 0)
    one.ask()
    members.share(EVEN)
    assert len(told) == 1
    one.ask()
    revision = one.obeyed
    members.share(EVEN)
    members.share(EVEN)
    one.ask()
    assert (len(told), one.obeyed) == (1, revision)


def test_a_shard_moves_only_when_the_one_that_had_it_has_closed_it() -> None:
    members = Members(TIMEOUT)
    one = Fetcher(members, "one", 0)
    one.ask()
    members.share(EVEN)
    one.ask()
    two = Fetcher(members, "two", 1)
    two.ask()
    members.share(EVEN)
    two.ask()
    assert two.reads == set()
    assert len(members.closing) == 4
    one.ask()  # learns what it has lost
    two.ask()
    assert two.reads == set(), "one has not said yet that it has closed them"
    one.ask()
    two.ask()
    assert len(two.reads) == 4
    assert not one.reads & two.reads


def test_what_a_dead_fetcher_read_goes_to_the_others_at_once() -> None:
    members = Members(TIMEOUT)
    one, two = Fetcher(members, "one", 0), Fetcher(members, "two", 1)
    one.ask()
    two.ask()
    members.share(EVEN)
    members.lose("one")
    members.share(EVEN)
    two.ask()
    assert two.reads == set(SHARDS)


def test_a_second_attempt_at_a_place_waits_until_the_first_is_gone() -> None:
    members = Members(TIMEOUT)
    first, second = Fetcher(members, "first", 0), Fetcher(members, "second", 0)
    first.ask()
    members.share(EVEN)
    assert second.ask() == STANDBY
    members.lose("first")
    assert isinstance(second.ask(), Member)
    members.share(EVEN)
    second.ask()
    assert second.reads == set(SHARDS)


def test_one_that_counted_as_dead_reads_nothing_until_it_has_begun_anew() -> None:
    members = Members(TIMEOUT)
    one = Fetcher(members, "one", 0)
    one.ask(0.0)
    members.share(EVEN)
    one.ask(1.0)
    assert members.silent(10.9) == []
    assert [member.request.name for member in members.silent(11.0)] == ["one"]
    members.lose("one")
    assert one.ask(30.0) == UNKNOWN
    assert one.reads == set()
    assert isinstance(one.ask(30.1), Member)


def test_withheld_shards_are_read_by_nobody() -> None:
    members = Members(TIMEOUT)
    one = Fetcher(members, "one", 0)
    one.ask()
    members.share(EVEN)
    one.ask()
    members.share(EVEN, withheld=SHARDS[:2])
    one.ask()
    assert members.closing == set(SHARDS[:2])
    one.ask()
    assert one.reads == set(SHARDS[2:])
    assert members.closing == set()
    assert members.owner(SHARDS[0]) is None


class Comings(RuleBasedStateMachine):
    """Fetchers that come and go in any order, with answers that arrive late or never."""

    def __init__(self) -> None:
        super().__init__()
        self.members = Members(TIMEOUT)
        self.fetchers: dict[str, Fetcher] = {}
        self.number = 0

    @rule(place=st.integers(0, 3))
    def come(self, place: int) -> None:
        self.number += 1
        name = f"f{self.number}"
        self.fetchers[name] = Fetcher(self.members, name, place)

    @precondition(lambda self: self.fetchers)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        self.fetchers[data.draw(st.sampled_from(sorted(self.fetchers)))].ask()

    @precondition(lambda self: self.fetchers)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.fetchers)))
        del self.fetchers[name]
        self.members.lose(name)

    @precondition(lambda self: self.fetchers)
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        # It has stopped reading by then: what it may read ends by itself.
        fetcher = self.fetchers[data.draw(st.sampled_from(sorted(self.fetchers)))]
        fetcher.reads = set()
        self.members.lose(fetcher.name)

    @rule(count=st.integers(0, len(SHARDS)), heavy=st.integers(0, len(SHARDS) - 1))
    def share(self, count: int, heavy: int) -> None:
        self.members.share({key: 9.0 if number == heavy else 1.0 for number, key in enumerate(SHARDS[:count])})

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        read = [key for fetcher in self.fetchers.values() for key in fetcher.reads]
        assert len(read) == len(set(read))

    @rule()
    def everything_is_read_once_all_have_asked(self) -> None:
        for _ in range(6):
            self.members.share(EVEN)
            for fetcher in self.fetchers.values():
                fetcher.ask()
                self.nobody_reads_what_another_reads()
        if len(self.members):
            assert {key for fetcher in self.fetchers.values() for key in fetcher.reads} == set(SHARDS)


TestComings = Comings.TestCase
TestComings.settings = settings(stateful_step_count=30)
