"""Every option belongs to the run that queries share, or to each query; and what differs is named."""

import pytest

from kinesis_efo.options import SOURCE_OPTIONS, SourceOptions
from kinesis_efo.options.source import (
    BATCH,
    CLOCK,
    CORES,
    DRIVER_HOST,
    HINTS,
    LISTENS,
    LOADED,
    PROGRAM,
    SUPERVISOR,
    TIMES,
    differences,
    of_run,
)

# What is read (queries are compared by the resulting streams, consumers and lease table instead); where a query begins and ends, and
# how it plans; batch reads, which have no run; facts about the Spark session.
OF_QUERY = {
    "manifest", "streamArn", "consumerArn", "leaseTable", "streams", "registration",
    "startingPosition", "newStreamPosition", "removedStreams", "endingPosition", "catchUp", "maxBytesPerTrigger", "maxRecordsPerTrigger",
    "minBytesPerTrigger", "maxTriggerDelay", "deaggregate", "acceptDataLoss", "pollTimeout", "idleCheckpointInterval",
    BATCH, CLOCK, CORES, TIMES, LOADED,
    DRIVER_HOST, SUPERVISOR, PROGRAM, LISTENS,
}  # fmt: skip


def parsed(**options: str) -> SourceOptions:
    return SourceOptions.parse(
        {"manifest": "m.json", **{name.replace("_", "."): text for name, text in options.items()}}
    )


def test_other_options_belong_to_the_run() -> None:
    assert {option.name for option in (*SOURCE_OPTIONS, *HINTS) if not option.of_run} == OF_QUERY


def test_options_of_the_query_alone_do_not_differ() -> None:
    mine = parsed(
        startingPosition="TRIM_HORIZON",
        maxRecordsPerTrigger="5",
        pollTimeout="1s",
        deaggregate="strict",
        catchUp="true",
    )
    assert differences(of_run(parsed()), of_run(mine)) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"bufferBytes": "64m"}, "'bufferBytes' is 67108864 here and 268435456 in"),
        ({"leaseTimeout": "20s"}, "'leaseTimeout' is 20 here and 10 in"),
        ({"failOnDataLoss": "false"}, "'failOnDataLoss' is false here and true in"),
        ({"fetcherPort": "40000-40100"}, "'fetcherPort' is 40000-40100 here and not set in"),
        ({"fetcherPort": "40000"}, "'fetcherPort' is 40000 here and not set in"),
        ({"metricsExport": "none"}, "'metricsExport' is none here and otel in"),
        ({"metricsExport": "emf:stderr"}, "'metricsExport' is emf:stderr:60s here and otel in"),
        ({"awsProfile": "dev"}, "'awsProfile' is dev here and not set in"),
        ({"fetcherBindHost": "::"}, "'fetcherBindHost' is :: here and not set in"),
        ({"endpointUrl": "http://127.0.0.1:1"}, "'endpointUrl' is http://127.0.0.1:1 here and not set in"),
    ],
)
def test_different_run_options_are_named_with_both_values(given: dict[str, str], text: str) -> None:
    (fault,) = differences(of_run(parsed()), of_run(parsed(**given)))
    assert text in fault
    assert "give all of them the same value" in fault


def test_secrets_are_compared_and_never_shown() -> None:
    role = {"roleArn": "arn:aws:iam::123456789012:role/reader"}
    one, other = (of_run(parsed(**role, externalId=secret)) for secret in ("first-secret", "second-secret"))
    (fault,) = differences(one, other)
    assert "'externalId' is another here and another in" in fault
    assert "-secret" not in str(one) + str(other) + fault
    assert differences(one, of_run(parsed(**role, externalId="first-secret"))) == []
