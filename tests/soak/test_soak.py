"""The soak's checks, which must find violations, and a very short soak."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak.oracle import Ledger, Oracle, Violation, encode
from tests.soak.run import Plan, soak
from tests.soak.vitals import Sample, growth


def rows(*numbers: tuple[int, int]) -> list[bytes]:
    return [encode(key, number, 1_000, 40) for key, number in numbers]


@given(
    st.permutations([key for key in range(3) for _ in range(4)]),
    st.sampled_from(["lost", "twice", "swapped"]),
    st.data(),
)
def test_only_orders_within_keys_are_right(keys: list[int], how: str, data: st.DataObject) -> None:
    records = [(key, keys[:at].count(key)) for at, key in enumerate(keys)]
    ledger = Ledger()
    assert ledger.take(rows(*records), "here") == 1_000
    assert ledger.records == 12
    # Not the last of its key: whether that is lost cannot be told.
    at = data.draw(st.sampled_from([at for at, (_, number) in enumerate(records) if number < 3]))
    later = records.index((records[at][0], records[at][1] + 1))
    match how:
        case "lost":
            del records[at]
        case "twice":
            records.insert(data.draw(st.integers(at + 1, 12)), records[at])
        case "swapped":
            records[at], records[later] = records[later], records[at]
    with pytest.raises(Violation):
        Ledger().take(rows(*records), "here")


def write(directory: Path, batch: int, *numbers: tuple[int, int], committed: bool = True) -> None:
    for name in ("output", "checkpoint/commits"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    output = directory / "output" / f"batch={batch}"
    output.mkdir()
    pq.write_table(pa.table({"data": rows(*numbers)}), output / "part-0.parquet")
    if committed:
        (directory / "checkpoint" / "commits" / str(batch)).write_text("v1")


def test_only_committed_batches_count(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path)
    oracle.look()
    write(tmp_path, 0, (1, 0), (1, 1))
    write(tmp_path, 1, (1, 2), committed=False)
    oracle.look()
    assert (oracle.ledger.records, oracle.batches) == (2, 1)
    assert oracle.largest_lag > 0
    assert not (tmp_path / "output" / "batch=0").exists()
    write(tmp_path, 2, (1, 4))
    with pytest.raises(Violation, match="micro-batch 2: of key 1, record 4 came, but 3 is lost"):
        oracle.look()


def life(number: int, first: int, seconds: int, **grow: int) -> list[Sample]:
    values = {"memory": 100 << 20, "files": 50, "threads": 14}
    return [
        Sample(
            first + second,
            number,
            backlog=0,
            **{
                name: value + grow.get(name, 0) * second // seconds + (second % 20) * (value // 10)
                for name, value in values.items()
            },
        )
        for second in range(seconds)
    ]


def test_only_lasting_growth_is_reported() -> None:
    assert growth([]) == []
    assert growth(life(0, 0, 600)) == []
    assert growth(life(0, 0, 90, memory=1 << 30)) == [], "too short to tell"
    pool = [
        Sample(second, 0, 100 << 20, files=26 if second < 90 else 42, threads=14, backlog=0) for second in range(180)
    ]
    assert growth(pool) == [], "a connection per shard, opened once they were all busy"
    found = growth(life(0, 0, 600) + life(1, 700, 600, memory=200 << 20, files=60, threads=30))
    assert [sentence.partition(" grew from ")[0] for sentence in found] == [
        "run 1: memory",
        "run 1: files",
        "run 1: threads",
    ]
    assert found[0].endswith(" MiB")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_very_short_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "soak")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "soak")
    plan = Plan(tmp_path, 8.0, shards=4, rate=100.0, fault_seconds=1.0, reshard_seconds=5.0, life_seconds=5.0)
    report = soak(plan)
    assert report.violations == []
    assert report.records > 1000
    assert report.kills == 2
    assert report.modes == ["http2", "http1, 2 fetchers", "http2"]
    assert report.faults.total() >= 5
    assert report.reshards.total() >= 1
    assert report.peak_memory > 0
