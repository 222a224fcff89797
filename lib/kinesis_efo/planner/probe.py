"""Finds out whether a fetcher's process has ended: then nobody listens at its port any more."""

from __future__ import annotations

import asyncio
from typing import Final

from kinesis_efo.fetcher.address import FetcherAddress, network_namespace

_CONNECT_SECONDS: Final = 1.0


async def nobody_listens(address: FetcherAddress) -> bool:
    """Whether a host says that nobody listens at a fetcher's port.

    One that is paused still has its port, and one that is cut off does not answer: both may be alive.

    Args:
        address: The fetcher's.
    """
    for host in address.hosts_from(network_namespace()):
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(host, address.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            continue
        writer.close()
        return False
    return False
