"""Which options belong to a run, and so are the same for all queries of one Spark program that share it, and which to each query."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from kinesis_efo.options.shared import AWS_OPTIONS, METRICS_OPTIONS
from kinesis_efo.options.source import (
    BATCH,
    DRIVER_HOST,
    LISTENS,
    LOADED,
    PROGRAM,
    SUPERVISOR,
    TIMES,
    SourceOptions,
)
from kinesis_efo.options.source import SOURCE_OPTIONS as OPTIONS

OF_RUN: Final = frozenset(
    {
        "readMode",
        "transport",
        "polling.interval",
        "maxShardSkew",
        "bufferBytes",
        "slowQueries",
        "apartRate",
        "failOnDataLoss",
        "fetchers",
        "fetcherHost",
        "fetcherBindHost",
        "fetcherPort",
        "fetcherTls",
        "leaseTimeout",
        "checkpointRate",
        "subscribe.retryTimeout",
        "subscribe.maxRetries",
        "subscribe.backoff.baseMs",
        "subscribe.backoff.maxMs",
        "subscribe.backoff.factor",
        "metrics.shards",
        *(option.name for option in (*AWS_OPTIONS, *METRICS_OPTIONS)),
    }
)
"""What the one that reads decides once: how, into how much memory, with which identity, and where it is reached."""

OF_QUERY: Final = frozenset(
    {
        # What is read. It is compared by what it leads to: streams, consumers and lease table.
        "manifest",
        "streamArn",
        "consumerArn",
        "leaseTable",
        "streams",
        "registration",
        # Where a query begins and ends, and how it plans.
        "startingPosition",
        "newStreamPosition",
        "removedStreams",
        "endingPosition",
        "catchUp",
        "maxBytesPerTrigger",
        "maxRecordsPerTrigger",
        "deaggregate",
        "latencyHooks",
        "pollTimeout",
        "idleCheckpointInterval",
        # Batch reads have no run.
        "batch.maxRate",
        "batch.shardsPerTask",
        BATCH,
        TIMES,
        LOADED,
        # What a session tells: where it is, and who starts fetchers if this query's process has to.
        DRIVER_HOST,
        SUPERVISOR,
        PROGRAM,
        LISTENS,
    }
)
"""What each query decides for itself."""

_SECRET: Final = frozenset({"externalId"})


def of_run(options: SourceOptions) -> dict[str, str]:
    """The options that belong to a run, by name, as texts to compare and to show. Secrets are not among them, but what tells two apart."""
    return {
        option.name: _text(option.name, attrgetter(option.field)(options))
        for option in OPTIONS
        if option.name in OF_RUN
    }


def differences(run: Mapping[str, str], query: Mapping[str, str]) -> list[str]:
    """What keeps a query from sharing a run, one sentence per option.

    Args:
        run: The run's, from `of_run`.
        query: The query's.
    """
    return [
        f"kinesis-efo option '{name}' is {_shown(name, query.get(name, '-'))} here and {_shown(name, run.get(name, '-'))} in a query of this "
        "Spark program that reads the same stream: queries that share a stream share what reads it, so give all of them the same value"
        for name in sorted(run.keys() | query.keys())
        if run.get(name) != query.get(name)
    ]


def _text(name: str, value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case range():
            return "-" if value == range(1) else f"{value[0]}" if len(value) == 1 else f"{value[0]}-{value[-1]}"
    return hashlib.sha256(str(value).encode()).hexdigest() if name in _SECRET else str(value)


def _shown(name: str, text: str) -> str:
    if text == "-":
        return "not set"
    return "another" if name in _SECRET else text
