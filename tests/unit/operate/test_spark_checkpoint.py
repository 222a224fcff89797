"""Reading the offset log of a query: both of its versions, other sources beside ours, and files that are none of it."""

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.positions import Offset, Position, ShardKey
from kinesis_efo_tools.operate.findings import CheckFailed, CheckUnknown
from kinesis_efo_tools.operate.spark_checkpoint import PlannedBatch, folder_at, planned
from tests.support.checkpoint_states import NEWEST, REFUSED, SINCE_42, SKIPPING, STATES
from tests.support.messages import raises

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795456444971,"conf":{}}'
RATE = "2"
KAFKA = '{"orders":{"0":12}}'


def at(number: int, stream: str = "orders") -> Offset:
    return Offset({ShardKey(stream, "shardId-000000000000"): Position.after(number)})


def numbered(tmp_path: Path, batches: int, commits: int) -> PlannedBatch | None:
    """Micro-batches that end at 1, 2 and so on."""
    return written(tmp_path, *[(at(number).to_json(),) for number in range(1, batches + 1)], commits=commits)


def written(tmp_path: Path, *batches: tuple[str, ...], commits: int, version: str = "v1") -> PlannedBatch | None:
    for folder, texts in (
        ("offsets", ["\n".join([version, METADATA, *lines]) for lines in batches]),
        ("commits", ['v1\n{"nextBatchWatermarkMs":0}'] * commits),
    ):
        (tmp_path / folder).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / folder / str(number)).write_text(text)
            (tmp_path / folder / f".{number}.crc").write_bytes(b"crc")
    (tmp_path / "offsets" / ".9.tmp").write_text("v1")
    (tmp_path / "metadata").write_text('{"id":"86f1b4a9-7d4b-4ea9-8aa4-3ed7ad1c3e33"}')
    return look(f"file://{tmp_path}")


def look(location: object) -> PlannedBatch | None:
    client: Any = None
    return asyncio.run(planned(folder_at(str(location), client)))


@pytest.mark.parametrize(
    ("version", "lines", "ends"),
    [
        (
            "v1",
            [(RATE, "-", KAFKA, at(1).to_json()), (RATE, at(7, "clicks").to_json(), "-", at(2).to_json())],
            [(None, at(7, "clicks")), (at(1), at(2))],
        ),
        ("v2", [(f"0:{RATE}", f"1:{at(1).to_json()}", f"orders:{at(2).to_json()}")], [(at(1), at(1)), (at(2), at(2))]),
    ],
)
def test_other_sources_of_the_query_are_left_out(
    tmp_path: Path, version: str, lines: list[tuple[str, ...]], ends: list[tuple[Offset | None, Offset]]
) -> None:
    assert [(end.begin, end.offset) for end in written(tmp_path, *lines, commits=1, version=version).ends] == ends


def test_location_without_a_micro_batch_is_empty(tmp_path: Path) -> None:
    assert look(tmp_path) is None
    assert written(tmp_path, commits=0) is None


@pytest.mark.parametrize(
    ("line", "version", "message"),
    [
        (at(1).to_json(), "v3", r"offsets/0 begins with 'v3', not with v1 or v2"),
        ('{"streams":{},"version":2}', "v1", r"offsets/0: the offset has version 2, this library reads version 1"),
        ('{"streams":{"orders":{"s":"SOON"}},"version":1}', "v1", r"offsets/0: 'SOON' is not a position"),
    ],
)
def test_unreadable_log_is_named(tmp_path: Path, line: str, version: str, message: str) -> None:
    with pytest.raises(CheckFailed, match=message) as failed:
        written(tmp_path, (line,), commits=0, version=version)
    assert failed.value.fix.startswith("use the versions of Spark and kinesis-efo that wrote it, or restore all")


@pytest.mark.parametrize(
    ("way", "fault"),
    [("empty", "is empty"), ("cut off", "has 0"), ("cut off in its last line", "is cut off in the offset of source 0")],
)
@pytest.mark.parametrize("commits", [NEWEST, NEWEST + 1])
def test_damaged_file_is_named_with_ways_to_recover(tmp_path: Path, way: str, fault: str, commits: int) -> None:
    numbered(tmp_path, NEWEST + 1, commits)
    STATES[f"offsets/2 {way}"](tmp_path)
    with pytest.raises(CheckFailed, match=f"^{tmp_path}: Spark refuses this checkpoint: .*offsets/2 {fault}") as failed:
        look(tmp_path)
    deletion = "if the output has no rows of micro-batch 2, delete offsets/2: a start plans this micro-batch again"
    assert (deletion in failed.value.fix) == (commits == NEWEST)
    assert failed.value.fix.startswith(
        "restore all of its files from one moment, or start the query with a new checkpoint"
    )
    if commits == NEWEST:
        (tmp_path / "offsets" / "2").unlink()
        found = look(tmp_path)
        assert (found.batch, found.finished) == (1, True)


def test_other_file_systems_are_copied_first() -> None:
    with raises(ConfigurationError, "checkpoint s3:///prefix must be s3://bucket/prefix"):
        look("s3:///prefix")
    with raises(
        ConfigurationError,
        "checkpoint abfss://a@b/c: file system 'abfss' cannot be read from here. Copy its folders 'offsets' and 'commits' and "
        "its file 'metadata' into a local folder, and give that",
    ):
        look("abfss://a@b/c")


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_verdict_of_spark_is_predicted(tmp_path: Path, name: str) -> None:
    numbered(tmp_path, NEWEST + 1, NEWEST + 1)
    STATES[name](tmp_path)
    if name in SINCE_42 | SKIPPING:
        with pytest.raises(CheckUnknown, match=r"metadata is missing|is among the offsets and not among the commits"):
            look(tmp_path)
    elif name in REFUSED:
        with pytest.raises(CheckFailed):
            look(tmp_path)
    else:
        look(tmp_path)


def test_asynchronous_progress_leaves_out_micro_batches(tmp_path: Path) -> None:
    numbered(tmp_path, 7, 7)
    for number in (1, 2, 4, 5):
        (tmp_path / "offsets" / str(number)).unlink()
        (tmp_path / "commits" / str(number)).unlink()
    (tmp_path / "commits" / "6").unlink()
    found = look(tmp_path)
    assert (found.batch, found.finished, found.ends[0].begin) == (6, False, at(4))


def test_log_that_grows_meanwhile_is_not_broken(tmp_path: Path) -> None:
    written(tmp_path, (at(1).to_json(),), commits=1)
    client: Any = None
    there = folder_at(str(tmp_path), client)

    class Live:
        """Two micro-batches pass between two looks."""

        exists, read, next = there.exists, there.read, 1

        async def names(self, folder: str) -> Collection[str]:
            found = await there.names(folder)
            for number in (self.next, self.next + 1):
                for name in ("offsets", "commits"):
                    (tmp_path / name / str(number)).write_text((tmp_path / name / "0").read_text())
            self.next += 2
            return found

    found = asyncio.run(planned(Live()))
    assert found.batch == 2
