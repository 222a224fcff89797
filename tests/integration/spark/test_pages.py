"""The Python on the pages of docs/ runs as it stands, and does what the page says.

What says that it is an excerpt, or needs what is not here, is checked in tests/unit/test_pages.py alone.
"""

import gzip
import shlex
import sys
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import kinesis_efo
from kinesis_efo_local import LocalAws
from tests.support.aws_lines import run_line
from tests.support.commands import outcome
from tests.support.pages import blocks
from tests.support.world import World, make_world, wait_for_rows, wait_until

pytestmark = pytest.mark.spark43
Run = Callable[..., dict[str, Any]]
AWAIT: Final = StreamingQuery.awaitTermination

MANIFEST: Final = "ssm:///kinesis-efo/dev/lake"
BUCKET: Final = "s3://lake"
ORDERS: Final = [
    ("ann", b'{"id": "1", "customer": "ann", "amount": "12.50", "placed": "2027-01-31T12:00:00Z"}'),
    ("bob", b'{"id": "2", "customer": "bob", "amount": "3.20", "placed": "2027-01-31T12:00:30Z"}'),
    ("eve", b"no"),
    ("eve", b" "),
]
# What a decoder may meet: records that are good, and those that are not.
JSON: Final = ORDERS[0][1]
MALFORMED: Final = [
    None, b"", b" ", b"no", b"[]", JSON[:20], b'{"id": "\xff"}', b'{"amount": "much"}', b"\x1f\x8b",
    *(b'{"amount": %s}' % each for each in (b'"1,50"', b'"1.505"', b"1.505", b'""', b'"."', b'"1e2"', b'"12345678901"', b'"1 2"', b'"1\\n2"')),
    *(b'{"placed": %s}' % each for each in (b"2027", b"1769860800", b'"2027-01-31"', b'"2027-01-31T12:00"', b'"2027-02-30T12:00:00Z"')),
    gzip.compress(JSON)[:-9], gzip.compress(JSON)[:-4], gzip.compress(b"\xff"), zlib.compress(JSON),
]  # fmt: skip
PAYMENTS: Final = [("ann", b'{"order_id": "1", "paid": "2027-01-31T12:03:00Z"}')]
# By test_sink.py beside this file, and by test_pages.py in tests/unit and tests/unit/constructs.
ELSEWHERE: Final = {
    "README.md",
    "docs/costs.md",
    "docs/how-to/own-cdktf-app.md",
    "docs/writing.md",
}
RUN: Final = {
    "docs/how-to/errors.md",
    "docs/how-to/existing-stream.md",
    "docs/how-to/glue-schema-registry.md",
    "docs/how-to/json-to-columns.md",
    "docs/how-to/latency.md",
    "docs/how-to/notebooks.md",
    "docs/how-to/replay.md",
    "docs/how-to/several-tables.md",
    "docs/how-to/upserts.md",
    "docs/tutorial.md",
    "docs/watermarks.md",
}


def test_every_page_with_python_is_run() -> None:
    assert {block.page for block in blocks("python") if block.marker is None} == RUN | ELSEWHERE


@pytest.fixture(scope="module")
def lake(local_aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> World:
    """What all pages read. Queries of one page after the other read it, as one application."""
    lake = make_world(local_aws, tmp_path_factory.mktemp("lake"), ["orders", "payments"])
    lake.put(ORDERS)
    lake.put(PAYMENTS, "payments")
    return lake


@pytest.fixture
def run(spark: SparkSession, lake: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the blocks of a page one after the other, and returns the names that they defined.

    Queries end when they have read so many rows. Before the next block begins, they are stopped.
    """

    def run(page: str, *, rows: int = len(ORDERS), texts: Mapping[str, str] | None = None) -> dict[str, Any]:
        replaced = {MANIFEST: str(lake.manifest), BUCKET: str(tmp_path), **(texts or {})}
        here = {"endpointUrl": lake.aws.endpoint_url}

        def finish(query: StreamingQuery) -> None:
            wait_for_rows(query, rows)
            query.stop()

        def at_hand(read: Callable[..., Any], **defaults: str) -> Callable[..., Any]:
            return lambda spark, **given: read(spark, **{**defaults, **given, **here})

        monkeypatch.setattr(kinesis_efo, "read", at_hand(kinesis_efo.read))
        monkeypatch.setattr(
            kinesis_efo,
            "read_stream",
            at_hand(kinesis_efo.read_stream, startingPosition="TRIM_HORIZON", leaseTimeout="10s"),
        )
        monkeypatch.setattr(StreamingQuery, "awaitTermination", finish)
        # The session is that of other tests as well.
        monkeypatch.setattr(SparkSession, "stop", lambda _session: None)
        names: dict[str, Any] = {"spark": spark, "kinesis_efo": kinesis_efo, "__name__": "__main__"}
        for block in blocks("python"):
            if block.page == page and block.marker is None:
                text = block.text
                for old, new in replaced.items():
                    text = text.replace(old, new)
                exec(compile(text, str(block), "exec"), names)
                for query in spark.streams.active:
                    finish(query)
        return names

    return run


def rows(directory: Path) -> list[dict[str, Any]]:
    """What is in the Parquet files below a directory."""
    return [row for file in sorted(directory.rglob("*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]


@pytest.mark.long
def test_latency(session: SparkSession, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("docs/how-to/latency.md")
    (shown,) = (block.text for block in blocks("text") if block.page == "docs/how-to/latency.md")
    assert capsys.readouterr().out == shown


def test_tutorial(lake: World, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"manifest": lake.manifest, "output": tmp_path / "out", "checkpoint": tmp_path / "checkpoint"}
    monkeypatch.setattr(sys, "argv", ["orders.py", *(f"--{name}={value}" for name, value in given.items())])
    run("docs/tutorial.md")
    found = {row["customer"]: row["amount"] for row in rows(tmp_path / "out")}
    assert found == {"ann": "12.50", "bob": "3.20", None: None}


def given(spark: SparkSession, *data: bytes | None) -> DataFrame:
    """Records with these data, as a batch."""
    columns = "approximateArrivalTimestamp timestamp, shardId string, sequenceNumber string, subSequenceNumber long"
    return spark.createDataFrame([(each, None, "", "", 0) for each in data], f"data binary, {columns}")


@pytest.mark.long
def test_json_to_columns(tmp_path: Path, spark: SparkSession, run: Run) -> None:
    names = run("docs/how-to/json-to-columns.md")
    found = [row for row in rows(tmp_path / "orders") if "malformed" in row]
    assert {(row["customer"], row["malformed"]) for row in found} == {
        ("ann", None),
        ("bob", None),
        (None, b"no"),
        (None, b" "),
    }
    assert all(row["sequenceNumber"] for row in found)
    assert names["orders"].columns == ["order"]
    for ansi in (True, False):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        decoded = names["columns"](given(spark, *MALFORMED, JSON, b"{}")).collect()
        assert [row.malformed for row in decoded] == [*MALFORMED, None, None], ansi
        assert (decoded[-2].amount, str(decoded[-2].amount)) == (Decimal("12.50"), "12.50")
    spark.conf.unset("spark.sql.ansi.enabled")
    zipped = [*MALFORMED, JSON, gzip.compress(JSON), gzip.compress(b"")]
    texts = given(spark, *zipped).select(names["unzipped"]("data"), "data").collect()
    assert [tuple(row) for row in texts[-2:]] == [(JSON.decode(), zipped[-2]), ("", zipped[-1])]
    # Python reads nothing as gzip of nothing.
    assert {row[1] for row in texts if row[0] is None} == {*zipped[:-2]} - {b""}


@pytest.mark.long
def test_several_tables(tmp_path: Path, run: Run) -> None:
    run("docs/how-to/several-tables.md")
    for good, bad in (("orders", "malformed"), ("all/good", "all/bad")):
        assert sorted(row["id"] for row in rows(tmp_path / good)) == ["1", "2"]
        assert sorted(row["malformed"] for row in rows(tmp_path / bad)) == [b" ", b"no"]


@pytest.mark.long
def test_glue_schema_registry(
    spark: SparkSession, local_aws: LocalAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records as aws-glue-schema-registry 1.1.3 writes them, and one without a header."""
    lake = make_world(local_aws, tmp_path, ["orders"])
    header = "b7b4a7f09c964e4aa687fb5de9ef0c63"
    plain = f"0300{header}7b226964223a2231222c22616d6f756e74223a31322e357d"
    packed = f"0305{header}789cab56ca4c51b2523254d2514acccd2fcd2b51b23234d233ad0500536906bd"
    lake.put([(str(number), bytes.fromhex(each)) for number, each in enumerate((plain, packed, b"{}".hex()))])
    names: dict[str, Any] = {"spark": spark, "kinesis_efo": kinesis_efo}
    here = f'"{lake.manifest}", endpointUrl="{local_aws.endpoint_url}", startingPosition="TRIM_HORIZON"'
    for block in blocks("python"):
        if block.page == "docs/how-to/glue-schema-registry.md" and block.marker is None:
            exec(block.text.replace(f'"{MANIFEST}"', here).replace(BUCKET, str(tmp_path)), names)
    wait_for_rows(names["query"], 3)
    names["query"].stop()
    read = ("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63", "1", "12.5")
    found = [(row["version"], row["id"], row["amount"]) for row in rows(tmp_path / "orders")]
    assert sorted(found, key=str) == sorted([read, read, (None, None, None)], key=str)
    avro = names["opened"].func(bytes.fromhex(f"0305{header}789c63326400034d07000269009d"))
    assert avro == (read[0], bytes.fromhex("02310000000000002940"))
    assert names["opened"].func(None) == (None, None)
    assert names["opened"].func(bytes.fromhex(f"0301{header}")) == (None, None)
    assert names["opened"].func(bytes.fromhex("0300")) == (None, None)
    for broken in (packed[:-8], packed[:36], plain.replace("0300", "0305")):
        assert names["opened"].func(bytes.fromhex(broken)) == (read[0], None)
    assert [names["opened"].func(each)[1] for each in MALFORMED] == [None] * len(MALFORMED)


@pytest.mark.long
def test_upserts(tmp_path: Path, run: Run) -> None:
    names = run("docs/how-to/upserts.md")
    written = rows(tmp_path / "orders")
    assert [row["data"] for row in written] == [data for _, data in ORDERS]
    # Again, as after a failure.
    for directory in {path.parent for path in (tmp_path / "orders").rglob("*.parquet")}:
        again = names["spark"].read.parquet(str(directory)).localCheckpoint()
        names["write"](again, int(directory.name.removeprefix("batch=")))
    assert rows(tmp_path / "orders") == written


@pytest.mark.long
def test_notebooks(run: Run) -> None:
    names = run("docs/how-to/notebooks.md")
    assert names["recent"].count() == len(ORDERS)


@pytest.mark.long
def test_a_join(tmp_path: Path, run: Run) -> None:
    # Each side of the join counts the records of both.
    names = run("docs/watermarks.md", rows=2 * len(ORDERS + PAYMENTS))
    assert [(row["id"], row["order_id"]) for row in rows(tmp_path / "paid")] == [("1", "1")]
    assert len(names["query"].lastProgress["sources"]) == 1


@pytest.mark.long
def test_replay(lake: World, tmp_path: Path, run: Run) -> None:
    arrived = lake.records()[0]["ApproximateArrivalTimestamp"]
    times = {
        "2026-11-16T00:00:00Z": (arrived - timedelta(hours=1)).isoformat(),
        "2026-11-20T08:00:00Z": arrived.isoformat(),
        "2026-11-20T09:00:00Z": (arrived + timedelta(seconds=1)).isoformat(),
    }
    run("docs/how-to/replay.md", texts=times)
    for directory in ("repaired", "orders-2"):
        assert [row["data"] for row in rows(tmp_path / directory)] == [data for _, data in ORDERS], directory


@pytest.mark.long
def test_a_stream_that_exists(
    local_aws: LocalAws, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a stream alone, by the page's own lines: consumer, table, manifest, check, rows."""
    page = "docs/how-to/existing-stream.md"
    local_aws.client("kinesis").create_stream(StreamName="there", ShardCount=1)
    local_aws.put("there", [data for _, data in ORDERS])
    for name, value in local_aws.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    arn = f"arn:aws:kinesis:us-east-1:{local_aws.settings.account_id}:stream/there"
    made, *commands = (block.text for block in blocks("sh") if block.page == page)
    for line in made.replace("\\\n", "").splitlines():
        run_line(local_aws.client, line.replace("arn:aws:kinesis:us-east-1:123456789012:stream/orders", arn))
    for line in commands:
        words = shlex.split(line.replace("--stream orders", "--stream orders=there"))
        ran = outcome([Path(sys.executable).with_name(words[0]), *words[1:]], seconds=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    (program,) = (block for block in blocks("python") if block.page == page)
    names: dict[str, Any] = {}
    here = f'"{tmp_path}/lake.json", endpointUrl="{local_aws.endpoint_url}"'
    # Spark's own working directory is that of the JVM.
    text = program.text.replace('"lake.json"', here)
    for name in ("orders", "checkpoint"):
        text = text.replace(f', "{name}")', f', "{tmp_path / name}")')
    exec(text, names)
    wait_for_rows(names["query"], len(ORDERS))
    names["query"].stop()
    assert [row["data"] for row in rows(tmp_path / "orders")] == [data for _, data in ORDERS]


@pytest.mark.long
def test_a_backfill_and_then_live(
    spark: SparkSession, local_aws: LocalAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_world(local_aws, tmp_path, ["orders"])
    # The page cuts a minute ago.
    local_aws.backdate(lake.streams["orders"], 90)
    lake.put([(str(number), b"backlog") for number in range(20)])
    local_aws.backdate(lake.streams["orders"], 0)
    lake.put([(str(number), b"live") for number in range(30)])
    monkeypatch.chdir(tmp_path)
    (block,) = (each for each in blocks("python") if each.page == "docs/how-to/replay.md" and "CUT =" in each.text)
    text = block.text.replace(BUCKET, str(tmp_path))
    here = f'"{lake.manifest}", endpointUrl="{local_aws.endpoint_url}"'
    imported = {"UTC": UTC, "Path": Path, "datetime": datetime, "timedelta": timedelta}
    names: dict[str, Any] = {"spark": spark, "kinesis_efo": kinesis_efo, **imported}
    exec(text.replace(f'"{MANIFEST}"', here), names)
    assert (tmp_path / "cut").read_text() == names["CUT"], "the other program takes the same"
    wait_for_rows(names["query"], 30)
    names["query"].stop()
    found = [row["data"] for row in rows(tmp_path / "all-orders")]
    assert sorted(found) == [b"backlog"] * 20 + [b"live"] * 30


@pytest.mark.long
def test_errors(
    spark: SparkSession,
    run: Run,
    lake: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = run("docs/how-to/errors.md")
    monkeypatch.setattr(StreamingQuery, "awaitTermination", AWAIT)
    broken = make_world(lake.aws, tmp_path, ["broken"])
    broken.dynamodb.delete_table(TableName=broken.lease_table)
    query = (
        kinesis_efo.read_stream(spark, **broken.options)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "broken"))
        .start()
    )
    assert names["outcome"](query).startswith("stop: ")
    said: list[str] = []

    def told() -> bool:
        said.append(capsys.readouterr().out)
        return "LeaseTableError: lease table" in "".join(said)

    wait_until(told)
