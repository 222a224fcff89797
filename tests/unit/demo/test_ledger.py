"""The comparison must see every way in which an archive can be wrong."""

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


(A, KEY_A, DATA_A), (B, KEY_B, DATA_B) = ROWS[:2]


@pytest.mark.parametrize(
    ("archived", "lost", "surplus", "exact", "text"),
    [
        (random.Random(1).sample(ROWS, len(ROWS)), 0, 0, True, "EXACTLY ONCE: all 50 events are archived, none lost, none twice, with the job killed once on the way"),
        (ROWS[1:], 1, 0, False, "BROKEN: a: 1 lost"),
        ([*ROWS, ROWS[3]], 0, 1, False, "1 too many"),
        ([*ROWS[1:], ROWS[3]], 1, 1, False, "1 lost, 1 too many"),
        ([(A, KEY_A, DATA_A + b" "), *ROWS[1:]], 0, 0, False, "content altered"),
        ([(A, KEY_B, DATA_A), (B, KEY_A, DATA_B), *ROWS[2:]], 0, 0, False, "content altered"),
    ],
    ids=["another order", "lost", "doubled", "one lost and one doubled", "altered payload", "swapped partition keys"],
)  # fmt: skip
def test_every_wrong_archive_is_seen(archived: Rows, lost: int, surplus: int, exact: bool, text: str) -> None:
    *found, told = _verdict(archived)
    assert found == [lost, surplus, exact]
    assert text in told


def test_missing_or_unknown_stream_is_seen() -> None:
    missing = compare({"a": _tally(ROWS), "b": _tally(ROWS)}, {"a": _tally(ROWS)})
    assert [verdict.lost for verdict in missing] == [0, 50]
    unknown = compare({"a": _tally(ROWS)}, {"a": _tally(ROWS), "b": _tally(ROWS)})
    assert [verdict.surplus for verdict in unknown] == [0, 50]


def test_nothing_put_or_archived_proves_nothing() -> None:
    assert sentence(compare({"a": Tally()}, {"a": Tally()}), kills=1).startswith("NOT PROVEN")
    assert sentence_of_read(compare({}, {}), 1.0).startswith("BROKEN")


def test_each_stream_has_a_line() -> None:
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
def test_batch_read_is_compared_with_the_archive(read: Rows, said: str) -> None:
    assert sentence_of_read(compare({"a": _tally(ROWS)}, {"a": _tally(read)}), 2.6) == said
