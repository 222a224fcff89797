"""What benchmarks do with versions of the library before the run's table of rows, and with this one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from inspect import signature
from typing import Any

from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.positions import Mark, Offset, Position, ShardKey, ShardRange


def row_of(key: ShardKey) -> Any:
    """The row of a shard that all queries share; the shard, where there are no rows."""
    try:
        from kinesis_efo.fetcher.work import RowKey
    except ImportError:
        return key
    return RowKey(None, key)


def read_by(writer: type[Any], source: Any, registry: Any) -> Any:
    """What a writer of EMF lines reads."""
    return source if "source" in signature(writer).parameters else registry


def begin(feed: ShardFeed, position: Position) -> None:
    """Start to fetch."""
    getattr(feed, "from_position", feed.begin)(position)


def drop(buffer: Any, position: Position) -> None:
    """Drop what is before a position."""
    if hasattr(buffer, "commit"):
        buffer.commit(position)
    else:
        getattr(buffer, "drop_before" if hasattr(buffer, "drop_before") else "keep")(position, {})


def run_of(streams: Any, fetcher: Any, lease: Any, keys: Any, clock: Any, gone: Any = None) -> tuple[Any, Any]:
    """A run whose lease table is in memory, and what tells it of fetchers elsewhere; `gone` is None if it fetches by itself."""
    from kinesis_efo.run import run

    rest: Any = (lease, lease._table, keys, 25.0, 60.0, clock)
    if (elsewhere := getattr(run, "Elsewhere", None)) is not None:
        where = None if gone is None else elsewhere(10.0, gone=gone)
        made = run.Run(streams, fetcher, *rest, elsewhere=where)
        return made, made
    from importlib import import_module

    if gone is None:
        local: Any = import_module("kinesis_efo.sharing.local_fetching")
        return run.Run(streams, local.LocalFetching(fetcher, clock), *rest), None
    cluster: Any = import_module("kinesis_efo.cluster.cluster").Cluster(streams, lease.seconds, 10.0, clock, gone=gone)
    return run.Run(streams, cluster, *rest), cluster


def service_of(cluster: Any, *arguments: Any) -> Any:
    """The service that fetchers elsewhere call, of the second result of `run_of`."""
    from importlib import import_module

    if hasattr(cluster, "serving"):
        return import_module("kinesis_efo.run.serving").PlannerService(cluster.serving, *arguments)
    return import_module("kinesis_efo.cluster.cluster").PlannerService(cluster, *arguments)


def fetcher_of(whole: Any) -> Any:
    """The fetcher in the process of a run."""
    return whole.fetcher if hasattr(whole, "fetcher") else whole.run.fetcher


async def endless(whole: Any, wanted: ShardRange) -> AsyncIterator[list[bytes]]:
    """The payloads of a range that nobody has planned."""
    if hasattr(whole, "fetcher"):
        reading = whole.fetcher.read(wanted)
    else:
        (query,) = whole.run.queries
        query.plan(Offset({**query.progress.reach, wanted.key: wanted.through}, mark=Mark("endless", 1)))
        reading = whole.run.serving.of("").read(wanted)
    async for payloads in reading:
        yield payloads
