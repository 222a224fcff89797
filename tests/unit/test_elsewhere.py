"""Options of other systems: each is answered with the option that takes its place, and the page has the same table."""

import pytest

from kinesis_efo.errors import OptionsError
from kinesis_efo.options import SOURCE_OPTIONS, BatchOptions, SourceOptions
from kinesis_efo.options.table import Foreign, foreign
from kinesis_efo.spark.sink import SINK_OPTIONS, SinkOptions

pytestmark = pytest.mark.spark43
OURS = {
    kind: {option.name.lower(): option.name for option in options}
    for kind, options in (("source", SOURCE_OPTIONS), ("sink", SINK_OPTIONS))
}
NAMES = [
    (row, name)
    for row in foreign()
    for name in row.names
    if name.lower() not in OURS[row.system.split()[-1]]
]  # fmt: skip


def faults(kind: str, name: str) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as refused:
        (SourceOptions if kind == "source" else SinkOptions).parse({"manifest": "m", name: "do not show me"})
    assert "do not show me" not in str(refused.value)
    return refused.value.faults


@pytest.mark.parametrize(("row", "name"), NAMES, ids=lambda value: value if isinstance(value, str) else value.system)
def test_foreign_option_is_answered_with_ours(row: Foreign, name: str) -> None:
    """Spark hands names over in lower case."""
    *system, kind = row.system.split()
    (fault,) = faults(kind, name.replace("*", "x").lower())
    assert " ".join(system) in fault.split(";")[0]
    assert ("leave it out" if row.here == "-" else f"here it is '{row.here}'") in fault
    assert row.here in {"-", *OURS[kind].values()}


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("source", "maxoffsetspertrigger", "option 'maxOffsetsPerTrigger' is Kafka's; here it is 'maxRecordsPerTrigger'"),
        ("source", "minfetchperiod", "option 'minFetchPeriod' is Databricks'; here it is 'pollingInterval': with 'readMode=polling'"),
        ("source", "kinesis.metadataCommitterType", "option 'kinesis.metadataCommitterType' is spark-sql-kinesis-connector's; leave it out: Spark's checkpoint has positions"),
        ("source", "kafka.sasl.jaas.config", "option 'kafka.sasl.jaas.config' is Kafka's; leave it out: not needed"),
        ("sink", "streamname", "sink option 'streamName' is Glue's; here it is 'stream'"),
        ("source", "path", "option 'path' is Spark's; here it is 'manifest': 'load()' takes no path; a manifest is a path, ssm:///name or s3://bucket/key"),
    ],
)  # fmt: skip
def test_answer_names_system_and_replacement(kind: str, name: str, told: str) -> None:
    assert faults(kind, name) == (f"kinesis-efo {told}",)


def test_batch_reads_answer_foreign_options() -> None:
    with pytest.raises(OptionsError, match="'startingOffsets' is Kafka's; here it is 'startingPosition'"):
        BatchOptions.parse({"manifest": "m", "startingOffsets": "latest"})
