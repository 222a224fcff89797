"""Every program in examples/ does what it says, run as `spark-submit` runs it."""

import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.commands import outcome
from tests.support.orders import order, rows
from tests.support.world import World

pytestmark = pytest.mark.spark40
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
Run = Callable[[str, Mapping[str, object], Callable[[], bool]], dict[str, Any]]


def test_all_are_here() -> None:
    tested = {"copy_stream.py", "json_to_columns.py", "several_tables.py", "upsert.py", "windowed_sums.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested
    for path in EXAMPLES.glob("*.py"):
        assert 20 <= len(path.read_text().splitlines()) <= 50, "short enough to be copied"


@pytest.mark.long
def test_json_to_columns(world: Callable[..., World], tmp_path: Path, example: Run) -> None:
    w, output = world(), tmp_path / "out"
    w.put(
        [
            order("ann", "12.50", "2027-01-31T12:00:00Z"),
            ("bob", b'{"customer": "bob", "amount": "much"}'),
            ("eve", b"no"),
            ("eve", b"\n"),
        ]
    )
    arguments = {"output": output, "checkpoint": tmp_path / "checkpoint", "interval": "0 seconds", **w.options}
    example("json_to_columns.py", arguments, lambda: len(rows(output)) >= 4)
    found = {row["malformed"]: row for row in rows(output)}
    assert set(found) == {None, b'{"customer": "bob", "amount": "much"}', b"no", b"\n"}
    assert (found[None]["customer"], found[None]["amount"]) == ("ann", Decimal("12.50"))
    assert found[None]["placed"] == datetime(2027, 1, 31, 12)  # noqa: DTZ001 - Spark's files say no time zone
    assert all(row["approximateArrivalTimestamp"] for row in found.values())


@pytest.mark.long
def test_windowed_sums(world: Callable[..., World], tmp_path: Path, example: Run) -> None:
    w, output = world(), tmp_path / "out"
    w.put([order("ann", "1.50", "2027-01-31T12:00:10Z"), order("ann", "2.00", "2027-01-31T12:00:50Z")])
    w.put([order("bob", "4.00", "2027-01-31T12:01:00Z"), order("bob", "0.01", "2027-01-31T12:30:00Z")])
    arguments = {"output": output, "checkpoint": tmp_path / "checkpoint", **w.options}
    example("windowed_sums.py", arguments, lambda: len(rows(output)) >= 2)
    found = {(row["start"].strftime("%H:%M"), row["customer"], row["orders"], row["amount"]) for row in rows(output)}
    assert found == {("12:00", "ann", 2, Decimal("3.50")), ("12:01", "bob", 1, Decimal("4.00"))}


def newest(database: Path) -> dict[str, bytes]:
    """What the example of upserts keeps."""
    with closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("select 1 from sqlite_master where name = 'newest'").fetchall()
        return dict(connection.execute("select key, data from newest").fetchall() if tables else [])


COLUMNS = "partitionKey string, data binary, sequenceNumber string, subSequenceNumber long"


@pytest.mark.long
def test_upsert(spark: SparkSession, world: Callable[..., World], tmp_path: Path, example: Run) -> None:
    w, database = world({"orders": 2}), tmp_path / "newest.db"
    w.put((f"k{number % 10}", f"version {number}".encode()) for number in range(200))
    expected = {f"k{number % 10}": f"version {number}".encode() for number in range(190, 200)}
    arguments = {"database": database, "checkpoint": tmp_path / "checkpoint", **w.options}
    program = example("upsert.py", arguments, lambda: newest(database) == expected)
    # A micro-batch that is done again, after a later one.
    program["upsert"](spark.createDataFrame([("k0", b"version 0", "9", 0)], COLUMNS), 0)
    assert newest(database) == expected


def distribute(w: World) -> None:
    """Let Kinesis distribute the records itself."""
    arn = w.kinesis.describe_stream_summary(StreamName=w.streams["orders"])["StreamDescriptionSummary"]["StreamARN"]
    w.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    w.kinesis.update_stream_record_distribution_strategy(StreamARN=arn, RecordDistributionStrategy="AUTO")


@pytest.mark.long
@pytest.mark.spark43
@pytest.mark.parametrize("prepare", [distribute, lambda _: None], ids=["AUTO", "late"])
def test_upsert_by_version_keeps_newest_of_unordered_records(
    spark: SparkSession, prepare: Callable[[World], None], world: Callable[..., World], tmp_path: Path, example: Run
) -> None:
    w, database = world({"orders": 4}), tmp_path / "newest.db"
    prepare(w)
    # As DynamoDB's change records may: neighbors have changed places. The partition key is not the data's.
    w.put((f"p{number}", b'{"id": "k%d", "version": %d}' % (number // 100, number ^ 1)) for number in range(1_000))
    expected = {f"k{key}": b'{"id": "k%d", "version": %d}' % (key, 100 * key + 99) for key in range(10)}
    by = {name: f"get_json_object(string(data), '$.{path}')" for name, path in (("key", "id"), ("version", "version"))}
    arguments = {"database": database, "checkpoint": tmp_path / "checkpoint", **by, **w.options}
    program = example("upsert.py", arguments, lambda: newest(database) == expected)
    assert newest(database) == expected
    for wrong in (
        b'{"id": "k1"}',
        b'{"id": "k1", "version": "1.5"}',
        b'{"id": "k1", "version": -1}',
        b'{"version": 2000}',
    ):
        rows = [("p", b'{"id": "k1", "version": 2000}', "9", 0), ("p", wrong, "9", 1)]
        with pytest.raises(sqlite3.IntegrityError, match=r"NOT NULL constraint failed: newest\.(key|place)"):
            program["upsert"](spark.createDataFrame(rows, COLUMNS), 0)
    assert newest(database) == expected


@pytest.mark.long
def test_copy_stream(world: Callable[..., World], tmp_path: Path, example: Run) -> None:
    w = world({"orders": 2, "copy": 1})
    given = [(f"k{number % 7}", f"payload {number}".encode()) for number in range(300)]
    w.put(given)
    target = {"to.manifest": w.manifest, "to.stream": "copy", "to.endpointUrl": w.aws.endpoint_url}
    arguments = {"checkpoint": tmp_path / "checkpoint", "streams": "orders", **w.options, **target}
    example("copy_stream.py", arguments, lambda: len(w.records("copy")) >= 300)
    copied = [(record["PartitionKey"], record["Data"]) for record in w.records("copy")]
    assert sorted(copied) == sorted(given)
    for key in {key for key, _ in given}:
        assert [data for other, data in copied if other == key] == [data for other, data in given if other == key]


@pytest.mark.long
def test_records_reach_their_tables_across_a_restart(world: Callable[..., World], tmp_path: Path, example: Run) -> None:
    w, tables = world({"orders": 2}), tmp_path / "out"
    # A busy machine renews late, and whoever takes a lease again counts it anew.
    given = {**w.options, "leaseTimeout": "60s"}
    arguments = {"output": tables, "checkpoint": tmp_path / "checkpoints", "interval": "0 seconds", **given}

    def run(orders: int, malformed: int, minutes: int) -> None:
        wanted = {"orders": orders, "malformed": malformed, "orders_per_minute": minutes}

        def has_all() -> bool:
            has = all(len(rows(tables / name)) >= number for name, number in wanted.items())
            epochs.add(w.leases()["#run:orders"]["epoch"]["N"] if has else "")
            return has

        epochs: set[str] = set()
        before = w.leases().get("#run:orders")
        example("several_tables.py", arguments, has_all)
        # While it stops, one query after the other, those that are left may go on with the run for a moment.
        first = 1 if before is None else int(before["epoch"]["N"]) + 1
        assert epochs - {""} == {str(first)}, "one run for all three"

    w.put([order("ann", "1.50", "2027-01-31T12:00:10Z"), ("eve", b"no"), order("bob", "2.00", "2027-01-31T12:00:50Z")])
    w.put([("eve", b"\n"), ("bob", b'{"id": "1", "amount": "much"}'), order("bob", "0.01", "2027-01-31T12:30:00Z")])
    run(orders=3, malformed=3, minutes=1)
    w.put([order("ann", "4.00", "2027-01-31T12:30:59Z"), ("eve", b"[]"), order("ann", "3.00", "2027-01-31T12:50:00Z")])
    run(orders=5, malformed=4, minutes=2)

    orders = rows(tables / "orders")
    assert sorted((row["customer"], str(row["amount"])) for row in orders) == [
        ("ann", "1.50"), ("ann", "3.00"), ("ann", "4.00"), ("bob", "0.01"), ("bob", "2.00"),
    ]  # fmt: skip
    assert all(row["sequenceNumber"] for row in orders)
    malformed = [row["data"] for row in rows(tables / "malformed")]
    assert sorted(malformed) == [b"\n", b"[]", b"no", b'{"id": "1", "amount": "much"}']
    minutes = {(row["start"], row["count"]) for row in rows(tables / "orders_per_minute")}
    assert minutes == {
        (datetime(2027, 1, 31, 12, 0), 2),  # noqa: DTZ001 - Spark's files say no time zone
        (datetime(2027, 1, 31, 12, 30), 2),  # noqa: DTZ001
    }


@pytest.mark.long
@pytest.mark.slow
def test_the_example_test_passes_under_pytest() -> None:
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "-q", "-p", "no:cacheprovider"]
    ran = outcome([*command, "test_big_orders.py"], seconds=300, cwd=EXAMPLES / "tests")
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
