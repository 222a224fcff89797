"""Aggregates as readers decode them: AWS's own Python library, and this library's reader."""

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.producer.aggregation import Aggregate, Packer
from kinesis_efo.producer.record import Record, SizeLimit, make_record
from kinesis_efo.records.aggregation import deaggregate
from tests.support.aggregates import read_by_aws

RING = (0, (1 << 128) - 1)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
# Some lengths are those at which a varint gets another byte.
DATA = st.binary(max_size=300) | st.sampled_from([0, 127, 128, 16_383, 16_384]).map(bytes)
USERS = st.lists(st.tuples(DATA, KEYS, st.none() | st.integers(0, (1 << 128) - 1)), min_size=2, max_size=40)


def record(data: bytes, key: str, hash_key: int | None) -> Record:
    return make_record(data, key, hash_key, SizeLimit(10 << 20), 0)


@given(USERS)
def test_both_readers_decode_records_in_order(users: list[tuple[bytes, str, int | None]]) -> None:
    packer = Packer(1 << 20)
    assert all(packer.add(record(*user)) for user in users)
    aggregate = packer.seal()
    assert isinstance(aggregate, Aggregate)
    first = record(*users[0])
    assert (aggregate.key, aggregate.hash_key) == (first.key, str(first.hash))
    assert aggregate.size == len(aggregate.data) + len(first.key.encode())
    expected = [(data, key, None if place is None else str(place)) for data, key, place in users]
    by_aws = [(data, key, place) for key, data, place in read_by_aws(aggregate.key, aggregate.data)]
    assert [each[:2] for each in by_aws] == [each[:2] for each in expected]
    # The AWS library returns the first hash key for records without one: comparable only if all have one.
    if all(place is not None for *_, place in users):
        assert by_aws == expected
    ours = deaggregate(aggregate.data, RING)
    assert ours is not None
    assert [(user.data, user.partition_key) for user in ours] == [(data, key) for data, key, _ in users]


@given(USERS, st.integers(64, 3_000))
def test_aggregate_fills_its_bound_and_never_exceeds_it(users: list[tuple[bytes, str, int | None]], bound: int) -> None:
    packer, taken = Packer(bound), []
    for user in users:
        made = record(*user)
        if not packer.add(made):
            wider = Packer(1 << 20)
            for other in [*taken, made]:
                assert wider.add(other)
            sealed = wider.seal()
            if isinstance(sealed, Aggregate):
                assert sealed.size > bound
            break
        taken.append(made)
    if len(taken) > 1:
        aggregate = packer.seal()
        assert isinstance(aggregate, Aggregate)
        assert aggregate.size <= bound
        assert list(aggregate.records) == taken
