"""Who reads which shard while fetchers come, go, fall silent and come back: never two at a time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kinesis_efo.cluster.members import Members, MemberState, MissingFetchers
from kinesis_efo.positions import ShardKey

TIMEOUT = 10.0
SHARDS = [ShardKey("orders", f"shardId-{number:012}") for number in range(8)]
EVEN = dict.fromkeys(SHARDS, 1.0)


class Fetcher:
    """Follows what it is told, as a fetcher does."""

    def __init__(self, members: Members[str], name: str, place: int) -> None:
        self.members, self.name, self.place = members, name, place
        self.obeyed = 0
        self.reads: set[ShardKey] = set()

    def ask(self, now: float = 0.0) -> MemberState:
        standing = self.members.ask(self.name, self.place, "host", "address", self.obeyed, now)
        member = self.members.get(self.name)
        if standing is MemberState.WORKING:
            assert member is not None
            self.reads, self.obeyed = set(member.shards), member.revision
        else:
            self.reads, self.obeyed = set(), 0
        return standing


def test_shards_are_shared_out_to_those_who_ask() -> None:
    members: Members[str] = Members(TIMEOUT)
    one, two = Fetcher(members, "one", 0), Fetcher(members, "two", 1)
    assert one.ask() is two.ask() is MemberState.WORKING
    members.share(EVEN)
    one.ask()
    two.ask()
    assert len(one.reads) == len(two.reads) == 4
    assert one.reads | two.reads == set(SHARDS)


def test_who_keeps_its_shards_is_told_nothing() -> None:
    told: list[str] = []
    members: Members[str] = Members(TIMEOUT, told.append)
    one = Fetcher(members, "one", 0)
    one.ask()
    members.share(EVEN)
    assert told == ["one"]
    one.ask()
    revision = one.obeyed
    members.share(EVEN)
    members.share(EVEN)
    one.ask()
    assert (told, one.obeyed) == (["one"], revision)


def test_no_fetcher_is_borne_for_a_time() -> None:
    missing = MissingFetchers(60.0, 100.0, lambda: "Spark has no cores.")
    assert missing.look(159.9) is None
    assert str(missing.look(160.0)).startswith("no fetcher has come up for 60 s. Spark has no cores. Fetchers run as")
    missing.begin(150.0)
    assert missing.look(209.9) is None, "one had come"
    assert missing.look(210.0) is not None


def test_a_shard_moves_only_when_the_one_that_had_it_has_closed_it() -> None:
    members: Members[str] = Members(TIMEOUT)
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
    members: Members[str] = Members(TIMEOUT)
    one, two = Fetcher(members, "one", 0), Fetcher(members, "two", 1)
    one.ask()
    two.ask()
    members.share(EVEN)
    members.lose("one")
    members.share(EVEN)
    two.ask()
    assert two.reads == set(SHARDS)


def test_a_second_attempt_at_a_place_waits_until_the_first_is_gone() -> None:
    members: Members[str] = Members(TIMEOUT)
    first, second = Fetcher(members, "first", 0), Fetcher(members, "second", 0)
    first.ask()
    members.share(EVEN)
    assert second.ask() is MemberState.STANDBY
    members.lose("first")
    assert second.ask() is MemberState.WORKING
    members.share(EVEN)
    second.ask()
    assert second.reads == set(SHARDS)


def test_one_that_counted_as_dead_reads_nothing_until_it_has_begun_anew() -> None:
    members: Members[str] = Members(TIMEOUT)
    one = Fetcher(members, "one", 0)
    one.ask(0.0)
    members.share(EVEN)
    one.ask(1.0)
    assert members.silent(10.9) == []
    assert [member.name for member in members.silent(11.0)] == ["one"]
    members.lose("one")
    assert one.ask(30.0) is MemberState.UNKNOWN
    assert one.reads == set()
    assert one.ask(30.1) is MemberState.WORKING


def test_withheld_shards_are_read_by_nobody() -> None:
    members: Members[str] = Members(TIMEOUT)
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
        self.members: Members[str] = Members(TIMEOUT)
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
