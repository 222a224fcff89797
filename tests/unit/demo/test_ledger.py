"""The comparison must see every way in which an archive can be wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.ledger import Tally, compare, line, sentence, sentence_of_read

Rows = list[tuple[str, str, bytes]]
ROWS: Rows = [(f"id-{number}", f"key-{number % 7}", f'{{"id":"id-{number}"}}'.encode()) for number in range(50)]


def _tally(rows: Rows) -> Tally:
    tally = Tally()
    for row in rows:
        tally.add(*row)
    return tally


def _verdict(archived: Rows) -> tuple[int, int, bool, str]:
    verdicts = compare({"a": _tally(ROWS)}, {"a": _tally(archived)})
    return verdicts[0].lost, verdicts[0].surplus, verdicts[0].exact, sentence(verdicts, kills=1)


def test_order_does_not_matter() -> None:
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    assert _verdict(shuffled) == (
        0, 0, True, "EXACTLY ONCE: all 50 events are archived, none lost, none twice, with the job killed once on the way",
    )  # fmt: skip


def test_a_lost_event_is_seen() -> None:
    assert _verdict(ROWS[1:])[:3] == (1, 0, False)
    assert _verdict(ROWS[1:])[3].startswith("BROKEN: a: 1 lost")


def test_a_doubled_event_is_seen() -> None:
    assert _verdict([*ROWS, ROWS[3]])[:3] == (0, 1, False)


def test_one_lost_and_one_doubled_do_not_cancel_out() -> None:
    assert _verdict([*ROWS[1:], ROWS[3]]) == (1, 1, False, _verdict([*ROWS[1:], ROWS[3]])[3])
    assert "1 lost, 1 too many" in _verdict([*ROWS[1:], ROWS[3]])[3]


def test_an_altered_payload_is_seen() -> None:
    name, key, payload = ROWS[0]
    lost, surplus, exact, said = _verdict([(name, key, payload + b" "), *ROWS[1:]])
    assert (lost, surplus, exact) == (0, 0, False)
    assert "content altered" in said


def test_swapped_partition_keys_are_seen() -> None:
    (a, key_a, data_a), (b, key_b, data_b) = ROWS[:2]
    assert _verdict([(a, key_b, data_a), (b, key_a, data_b), *ROWS[2:]])[2] is False


def test_a_stream_that_is_missing_or_unknown_is_seen() -> None:
    missing = compare({"a": _tally(ROWS), "b": _tally(ROWS)}, {"a": _tally(ROWS)})
    assert [verdict.lost for verdict in missing] == [0, 50]
    unknown = compare({"a": _tally(ROWS)}, {"a": _tally(ROWS), "b": _tally(ROWS)})
    assert [verdict.surplus for verdict in unknown] == [0, 50]


def test_nothing_put_proves_nothing() -> None:
    assert sentence(compare({"a": Tally()}, {"a": Tally()}), kills=1).startswith("NOT PROVEN")


def test_a_line_for_each_stream_says_what_differs() -> None:
    same, other = compare({"a": _tally(ROWS), "b": _tally(ROWS)}, {"a": _tally(ROWS), "b": _tally(ROWS[1:])})
    put = same.put.checksum
    assert line(same) == f"a: 50 put, 50 archived, 50 distinct, 0 lost, 0 too many, checksum = {put:016x}"
    assert line(other) == "b: 50 put, 49 archived, 49 distinct, 1 lost, 0 too many, CHECKSUMS DIFFER"


_rows = st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=3), st.binary(max_size=3)), max_size=12)


@pytest.mark.slow
@given(_rows, _rows)
def test_exact_means_the_same_multiset(put: Rows, archived: Rows) -> None:
    (verdict,) = compare({"a": _tally(put)}, {"a": _tally(archived)})
    assert verdict.exact is (sorted(put) == sorted(archived))


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (ROWS, "THE SAME AGAIN: a batch read of the streams gives the archive's 50 events, in 3 s"),
        (ROWS[1:], "BROKEN: the batch read is not the archive: a: 1 lost"),
        ([*ROWS, ROWS[0]], "BROKEN: the batch read is not the archive: a: 1 too many"),
    ],
)
def test_a_batch_read_is_compared_with_the_archive(read: Rows, said: str) -> None:
    assert sentence_of_read(compare({"a": _tally(ROWS)}, {"a": _tally(read)}), 2.6) == said


def test_nothing_read_of_nothing_archived_proves_nothing() -> None:
    assert sentence_of_read(compare({}, {}), 1.0).startswith("BROKEN")
