"""Options of other sources: what users who give them are told, and that what they are told is an option here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinesis_efo.errors import OptionsError
from kinesis_efo.options import SOURCE_OPTIONS, SourceOptions
from kinesis_efo.options.batch import BatchOptions
from kinesis_efo.options.table import Option
from kinesis_efo.spark.sink import SINK_OPTIONS, SinkOptions

pytestmark = pytest.mark.spark43
PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from.md"
DATABRICKS_QUERY = {
    "streamname": "orders",
    "initialposition": "earliest",
    "region": "eu-west-1",
    "awsaccesskey": "do not show me",
}


def faults(options: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as refused:
        SourceOptions.parse(options)
    assert str(refused.value) == "\n".join(refused.value.faults)
    return refused.value.faults


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("maxOffsetsPerTrigger", "'maxOffsetsPerTrigger' is Kafka's; here it is 'maxRecordsPerTrigger'"),
        ("consumername", "'consumerName' is Databricks'; here it is 'consumerArn': consumers are declared, and the manifest has their ARNs"),
        ("KINESIS.STREAMNAME", "'kinesis.streamName' is spark-sql-kinesis-connector's; here it is 'streams'"),
        ("path", "'path' is Spark's; here it is 'manifest': 'load()' takes no path; a manifest is a path, ssm:///name or s3://bucket/key"),
        (
            "provider",
            "'provider' is Spark's; leave it out: CREATE TABLE ... USING keeps no options for a source like this one; CREATE TEMPORARY VIEW ... USING \"kinesis-efo\" OPTIONS (manifest '...') reads a part of the streams",
        ),
    ],
)  # fmt: skip
def test_options_of_other_sources_are_answered_with_ours(name: str, told: str) -> None:
    assert faults({"manifest": "m", name: "1"}) == (f"kinesis-efo option {told}",)


def test_foreign_options_are_reported_without_values() -> None:
    """Spark hands names over in lower case."""
    found = faults(DATABRICKS_QUERY)
    assert [fault.split(";")[0] for fault in found] == [
        "kinesis-efo option 'streamName' is Databricks'",
        "kinesis-efo option 'initialPosition' is Databricks'",
        "kinesis-efo option 'awsAccessKey' is Databricks'",
        "kinesis-efo needs option 'manifest' (a path, ssm:///name or s3://bucket/key), or 'streamArn', 'consumerArn' and 'leaseTable'",
    ]
    assert "do not show me" not in "".join(found)


def test_batch_reads_answer_foreign_options() -> None:
    with pytest.raises(OptionsError, match="'startingOffsets' is Kafka's; here it is 'startingPosition'"):
        BatchOptions.parse({"manifest": "m", "startingOffsets": "latest"})


def test_the_sink_answers_with_sink_options() -> None:
    with pytest.raises(OptionsError) as refused:
        SinkOptions.parse({"topic": "orders", "kinesis.streamName": "orders"})
    assert [fault.partition(":")[0] for fault in refused.value.faults] == [
        "kinesis-efo sink option 'topic' is Kafka's; here it is 'stream'",
        "kinesis-efo sink option 'kinesis.streamName' is spark-sql-kinesis-connector's; here it is 'stream'",
    ]


@pytest.mark.parametrize(
    ("title", "options"),
    [
        ("Kafka source", SOURCE_OPTIONS),
        ("Kafka sink", (*SINK_OPTIONS, *SOURCE_OPTIONS)),
        ("Databricks", SOURCE_OPTIONS),
        ("spark-sql-kinesis-connector, source", SOURCE_OPTIONS),
        ("the connector's sink", SINK_OPTIONS),
    ],
)
def test_replacements_on_the_page_exist(title: str, options: tuple[Option, ...]) -> None:
    (table,) = re.findall(rf"^\| {title} \| here \| \|\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    ours = {row.split("|")[2].strip(" `") for row in table.splitlines()[1:]}
    assert ours - {"-"}
    assert ours - {"-"} <= {option.name for option in options}
