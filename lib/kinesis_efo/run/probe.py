"""Detects dead fetchers in other processes: they send no requests, or their port is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kinesis_efo.calls.address import FetcherAddress, network_namespace
from kinesis_efo.clock import Clock
from kinesis_efo.errors import FetcherError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.run.assignments import TICK_SECONDS, Assignments

logger = logging.getLogger(__name__)

_PROBE_SECONDS: Final = 1.5
"""A fetcher sends a request at least once a second. If it sends none for this many seconds, the run probes the fetcher's port."""
_CONNECT_SECONDS: Final = 1.0
_WORD_SECONDS: Final = 30.0


async def watch_fetchers(
    assignments: Assignments,
    failure: Failure,
    clock: Clock,
    patience: float,
    gone: Callable[[FetcherAddress], Coroutine[Any, Any, bool]],
    problem: Callable[[], str],
) -> None:
    """Remove dead fetchers and reassign their shards, until cancelled.

    Args:
        failure: Receives an error if the run is without fetchers for `patience` seconds.
        gone: Returns whether a fetcher's port is certainly closed.
        problem: Returns what prevents fetchers from starting, for the error message; empty if unknown.
    """
    members, word_at = assignments.members, _WORD_SECONDS
    while True:
        await clock.sleep(TICK_SECONDS)
        # Probe all ports concurrently, since each probe may take a second.
        late = members.silent(clock.monotonic(), _PROBE_SECONDS)
        ended = await all_of(*(gone(member.request.address) for member in late))
        # Fetchers that have sent a request during the probe are alive.
        still = members.silent(clock.monotonic(), _PROBE_SECONDS)
        dead = members.silent(clock.monotonic())
        dead += [member for member, has_ended in zip(late, ended, strict=True) if has_ended and member in still]
        for member in dead:
            assignments.remove(member.request.name)
        if assignments.measure() or dead:
            assignments.distribute()
        seconds = clock.monotonic() - assignments.empty_since
        word_at = _WORD_SECONDS if len(members) else word_at
        if len(members) or seconds < min(word_at, patience):
            continue
        said = f"no fetcher has started for {seconds:.0f} s. {problem()}".strip()
        if seconds < patience:
            word_at += _WORD_SECONDS
            logger.warning("%s", said)
        else:
            failure.set(
                FetcherError(
                    f"{said} Fetchers run as Spark tasks: Spark's UI shows their job, 'kinesis-efo fetchers', and why it waits or fails"
                )
            )


async def nobody_listens(address: FetcherAddress) -> bool:
    """Whether a fetcher's port is certainly closed. Tries all addresses concurrently, for at most a second.

    Returns False if any address accepts the connection or does not respond, even if another address refuses it: a silent process may only
    be paused, and an address that refuses (of a container bridge, for example) may belong to another host.
    """
    hosts = address.hosts_from(network_namespace())
    answers = await all_of(*(_refuses(host, address.port) for host in hosts))
    return True in answers and False not in answers


async def _refuses(host: str, port: int) -> bool | None:
    """Whether an address refuses connections; False if it accepts them or does not respond, None if it is unreachable."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        return False
    except OSError:
        return None
    writer.close()
    return False
