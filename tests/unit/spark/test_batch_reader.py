"""How the ranges of a batch read become tasks, and what the source makes of its options."""

import pickle
import time
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from kinesis_efo.batch import planning, reading
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.options import BatchOptions
from kinesis_efo.options.source import CORES, LOADED
from kinesis_efo.spark import source
from kinesis_efo.spark.source import SCHEMA, BatchPartition, KinesisBatchReader, KinesisEfoSource
from kinesis_efo.tasks import latency
from kinesis_efo.tasks.left_out import LEFT_OUT
from tests.support.answers import FixedClock
from tests.support.shared_runs import manifest

pytestmark = pytest.mark.spark


class Planned:
    """Plans so many ranges, and records what was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.ranges = 0

    async def plan(self, *given: object, here: bool) -> list[int]:
        self.asked.append((*given, here))
        return list(range(self.ranges))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    planned = Planned()
    monkeypatch.setattr(planning, "plan", planned.plan)
    monkeypatch.setattr(source, "resolve_manifest", lambda *_: manifest("orders"))
    return planned


@pytest.mark.parametrize(
    ("ranges", "cores", "tasks"),
    [
        (0, 4, [()]),
        (3, 4, [(0,), (1,), (2,)]),
        (5, 3, [(0, 3), (1, 4), (2,)]),
        (2, 1, [(0, 1)]),
        (10, 4, [(0, 4, 8), (1, 5, 9), (2, 6), (3, 7)]),
        (100, 4, [tuple(range(task, 100, 7)) for task in range(7)]),
    ],
)
def test_ranges_are_dealt_to_at_least_one_task(
    ranges: int, cores: int, tasks: list[tuple[int, ...]], planned: Planned
) -> None:
    planned.ranges = ranges
    options = BatchOptions.parse({"manifest": "m.json", CORES: str(cores)})
    reader = KinesisBatchReader(options, manifest("orders"), 1_700_000_000.0, here=False)
    partitions: list[Any] = pickle.loads(pickle.dumps(reader.partitions()))
    assert [partition.parts for partition in partitions] == tasks
    assert planned.asked == [(manifest("orders"), options, planning.tip_at(1_700_000_000.0), False)]


def test_a_task_without_ranges_reads_nothing() -> None:
    reader = KinesisBatchReader(BatchOptions.parse({"manifest": "m.json"}), manifest("orders"), 0.0)
    assert list(reader.read(BatchPartition(()))) == []


def test_worker_installs_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[None] = []
    monkeypatch.setattr(latency, "install", lambda: installed.append(None))
    options = BatchOptions.parse({"manifest": "m.json"})
    reader = KinesisBatchReader(options, manifest("orders"), 0.0)
    assert vars(pickle.loads(pickle.dumps(reader))) == vars(reader)
    assert len(installed) == 1


@pytest.mark.parametrize(("loaded", "here"), [({}, True), ({LOADED: "1700000000000"}, False)])
def test_a_read_ends_at_its_load(
    loaded: dict[str, str], here: bool, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FixedClock(1_700_000_063.0)
    monkeypatch.setattr(time, "time", clock.time)
    monkeypatch.setattr(time, "clock_gettime", lambda _: 5.0)
    made = KinesisEfoSource({"manifest": "m.json", "maxShardRate": "1m", **loaded})
    clock.now += 60  # it was slow, and is set before the first action
    made.reader(SCHEMA).partitions()
    ((*_, tip, asked_here),) = planned.asked
    assert (tip, asked_here) == (planning.tip_at(1_700_000_123.0 if here else 1_700_000_000.0), here)
    assert made.schema() == SCHEMA


def test_other_columns_are_refused() -> None:
    other = StructType([StructField("value", StringType())])
    for make in (KinesisEfoSource({"manifest": "m.json"}).reader, KinesisEfoSource({}).streamReader):
        with pytest.raises(ConfigurationError, match=r"got struct<value:string>. Leave \.schema"):
            make(other)


def test_a_task_reads_its_ranges_and_counts_omissions(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock()
    made.return_value.batches.return_value = ["rows"]
    monkeypatch.setattr(reading, "Reading", made)
    options = BatchOptions.parse({"manifest": "m.json"})
    ranges: Any = ("a range",)
    assert list(KinesisBatchReader(options, manifest("orders"), 0.0).read(BatchPartition(ranges))) == ["rows"]
    given, more = made.call_args
    assert (given, more["again"]) == ((ranges, manifest("orders"), options.source), False)
    assert (more["left_out"].func, more["left_out"].keywords) == (LEFT_OUT.add, {"settings": options.source.metrics})
