"""Options of other sources: what users who give them are told, and that what they are told is an option here."""

from __future__ import annotations

import pytest

from kinesis_efo.errors import OptionsError
from kinesis_efo.options import SOURCE_OPTIONS, SourceOptions
from kinesis_efo.options.batch import BatchOptions
from kinesis_efo.options.elsewhere import CONNECTOR, DATABRICKS, KAFKA, SYSTEMS, Counterpart, System
from kinesis_efo.options.table import Option
from kinesis_efo.spark.sink_options import SINK_OPTIONS, SinkOptions

pytestmark = pytest.mark.spark43
DATABRICKS_QUERY = {
    "streamname": "orders",
    "initialposition": "earliest",
    "region": "eu-west-1",
    "awsaccesskey": "AKIA",
    "awssecretkey": "do not show me",
    "consumermode": "efo",
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
        ("KINESIS.STSROLEARN", "'kinesis.stsRoleArn' is spark-sql-kinesis-connector's; here it is 'roleArn'"),
        ("path", "'path' is Spark's; here it is 'manifest': 'load()' takes no path; a manifest is a path, ssm:///name or s3://bucket/key"),
        (
            "provider",
            "'provider' is Spark's; leave it out: CREATE TABLE ... USING keeps no options for a source like this one; CREATE TEMPORARY VIEW ... USING \"kinesis-efo\" OPTIONS (manifest '...') reads a stretch",
        ),
        ("minPartitions", "'minPartitions' is Kafka's; leave it out: tasks get even shares of a micro-batch's bytes"),
        ("kafka.security.protocol", "'kafka.security.protocol' is Kafka's; leave it out: it goes to Kafka's client, which is not here"),
        ("kinesis.metadataPath", "'kinesis.metadataPath' is spark-sql-kinesis-connector's; leave it out: positions are in Spark's checkpoint alone"),
    ],
)  # fmt: skip
def test_an_option_of_another_source_is_answered_with_ours(name: str, told: str) -> None:
    assert faults({"manifest": "m", name: "1"}) == (f"kinesis-efo option {told}",)


def test_all_of_them_are_told_together_without_their_values() -> None:
    """Spark hands names over in lower case."""
    found = faults(DATABRICKS_QUERY)
    assert [fault.split(";")[0] for fault in found] == [
        "kinesis-efo option 'streamName' is Databricks'",
        "kinesis-efo option 'initialPosition' is Databricks'",
        "kinesis-efo option 'awsAccessKey' is Databricks'",
        "kinesis-efo option 'awsSecretKey' is Databricks'",
        "kinesis-efo option 'consumerMode' is Databricks'",
        "kinesis-efo needs option 'manifest' (a path, ssm:///name or s3://bucket/key), or 'streamArn', 'consumerArn' and 'leaseTable'",
    ]
    assert "do not show me" not in "".join(found)


def test_batch_reads_answer_them_too() -> None:
    with pytest.raises(OptionsError, match="'endingOffsets' is Kafka's; here it is 'endingPosition'"):
        BatchOptions.parse({"manifest": "m", "endingOffsets": "latest"})


def test_the_sink_answers_with_options_of_the_sink() -> None:
    with pytest.raises(OptionsError) as refused:
        SinkOptions.parse({"topic": "orders", "kinesis.streamName": "orders"})
    assert [fault.partition(":")[0] for fault in refused.value.faults] == [
        "kinesis-efo sink option 'topic' is Kafka's; here it is 'stream'",
        "kinesis-efo sink option 'kinesis.streamName' is spark-sql-kinesis-connector's; here it is 'stream'",
    ]


def test_other_unknown_options_still_get_a_near_one() -> None:
    assert faults({"manifest": "m", "bufferByte": "1"}) == (
        "kinesis-efo has no option 'bufferByte'; did you mean 'bufferBytes'?",
    )


@pytest.mark.parametrize(
    ("counterparts", "options"),
    [
        *((system.source, SOURCE_OPTIONS) for system in SYSTEMS),
        (KAFKA.sink, SINK_OPTIONS),
        (CONNECTOR.sink, SINK_OPTIONS),
    ],
)
def test_what_takes_their_place_is_there(counterparts: tuple[Counterpart, ...], options: tuple[Option, ...]) -> None:
    ours = {option.name for option in options}
    assert {each.ours for each in counterparts} - {""} <= ours
    assert all(each.ours or each.remark for each in counterparts)
    lower = {name.lower(): name for name in ours}
    for each in counterparts:
        # One that has the same name here is never told as another's.
        assert lower.get(each.name.lower(), each.ours) == each.ours


@pytest.mark.parametrize("system", [KAFKA, DATABRICKS, CONNECTOR])
def test_each_name_is_told_once(system: System) -> None:
    for counterparts in (system.source, system.sink):
        names = [each.name.lower() for each in counterparts]
        assert len(set(names)) == len(names)
        wild = [name[:-1] for name in names if name.endswith("*")]
        # The first that fits is told.
        assert not [
            name for prefix in wild for name in names[names.index(f"{prefix}*") + 1 :] if name.startswith(prefix)
        ]
