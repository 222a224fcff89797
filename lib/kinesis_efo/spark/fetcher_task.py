"""Runs a fetcher as a Spark task until the run has ended."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark import TaskContext

from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.remote import FetcherPlan, fetch
from kinesis_efo.hosts import is_loopback
from kinesis_efo.options import SourceOptions
from kinesis_efo.spark.host import where_to_listen
from kinesis_efo.spark.lifecycle import log_to_stderr

RESULT = "place long"
"""The schema of the fetchers' result, which has no rows."""


def fetcher_task(plan: FetcherPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of the tasks, for `DataFrame.mapInArrow`. The number of its partition is the fetcher's number.

    Args:
        plan: The settings of the fetchers.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        run_fetcher(plan, context.partitionId())
        yield from ()

    return run


def run_fetcher(plan: FetcherPlan, place: int) -> None:
    """Fetch until the run has ended.

    Args:
        plan: The settings of the fetchers.
        place: The number of this fetcher in the run.

    Raises:
        FetcherError: Any error; the message names the host.
    """
    log_to_stderr()
    options = here(plan.options)
    try:
        asyncio.run(fetch(replace(plan, options=options), place, where_to_listen(options)))
    except Exception as error:
        raise FetcherError(
            f"fetcher {place} on host {socket.gethostname()}: {error or type(error).__name__}"
        ) from error


def here(options: SourceOptions) -> SourceOptions:
    """The options of a query without those for the driver's host, unless all of Spark is on one host."""
    if options.driver_host is not None and is_loopback(options.driver_host):
        return options
    return replace(options, driver_host=None, fetcher_host=None, fetcher_bind_host=None)
