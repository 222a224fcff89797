"""Lists the options of a run, which must be the same for all queries that share it, and the options of a query."""

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
"""Options of a run: how it reads, its memory, its AWS identity, and its addresses."""

OF_QUERY: Final = frozenset(
    {
        # What is read. Queries are compared by the resulting streams, consumers and lease table instead.
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
        # Facts about the Spark session: its address, and the supervisor that starts fetchers.
        DRIVER_HOST,
        SUPERVISOR,
        PROGRAM,
        LISTENS,
    }
)
"""Options of a query."""

_SECRET: Final = frozenset({"externalId"})


def of_run(options: SourceOptions) -> dict[str, str]:
    """Return a run's options by name, as texts to compare and to show. Secrets are replaced by hashes."""
    return {
        option.name: _text(option.name, attrgetter(option.field)(options))
        for option in OPTIONS
        if option.name in OF_RUN
    }


def differences(run: Mapping[str, str], query: Mapping[str, str]) -> list[str]:
    """Describe the differences that keep a query from sharing a run, one sentence per option.

    Args:
        run: The run's options, from `of_run`.
        query: The query's options, from `of_run`.
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
