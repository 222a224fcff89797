"""Finds out whether a fetcher's process has ended, by trying to connect to its port."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Final

from kinesis_efo.calls.address import FetcherAddress, network_namespace
from kinesis_efo.fetcher.background import all_of

_CONNECT_SECONDS: Final = 1.0


class _Answer(Enum):
    ACCEPTED = auto()
    REFUSED = auto()
    SILENCE = auto()
    NO_WAY = auto()


async def nobody_listens(address: FetcherAddress) -> bool:
    """Whether a fetcher's port is certainly closed. Takes at most a second, because all addresses are tried concurrently.

    A paused process keeps its port, and a process that is cut off does not answer: both may be alive. A single refusal is not enough,
    because the address of a container bridge, for example, may lead to another host. So no other address may accept or be silent.
    """
    hosts = address.hosts_from(network_namespace())
    answers = await all_of(*(_answer(host, address.port) for host in hosts))
    return _Answer.REFUSED in answers and not {_Answer.ACCEPTED, _Answer.SILENCE} & set(answers)


async def _answer(host: str, port: int) -> _Answer:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return _Answer.REFUSED
    except TimeoutError:
        return _Answer.SILENCE
    except OSError:
        return _Answer.NO_WAY
    writer.close()
    return _Answer.ACCEPTED
