"""A proxy that opens ways to services (CONNECT), or does not."""

import asyncio
import contextlib
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """A running proxy.

    Attributes:
        port: Its port.
        asked: The requests that arrived.
        ways: Connections that are open.
    """

    port: int = 0
    ways: int = 0
    asked: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def connect_proxy(
    *, login: str | None = None, answer: bytes | None = None, hangs_up: bool = True, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ConnectProxy]:
    """Run a proxy.

    Args:
        login: Name and password that it asks for, with a colon between them.
        answer: What it says instead of doing its work.
        hangs_up: Whether it closes the connection then; if not, it waits for the client to do so.
        tls: For an https proxy.
    """
    proxy = ConnectProxy()
    running: set[asyncio.Task[None]] = set()
    ends: list[asyncio.StreamWriter] = []
    wanted = f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}" if login is not None else ""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        proxy.ways += 1
        ends.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            proxy.asked.append(head)
            if answer is not None:
                writer.write(answer)
                if not hangs_up:
                    await reader.read()
            elif wanted not in head.split("\r\n") and wanted:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n")
            else:
                host, _, port = head.split(" ")[1].rpartition(":")
                there, back = await asyncio.open_connection(host.strip("[]"), int(port))
                ends.append(back)
                writer.write(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
                await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        writer.close()
        proxy.ways -= 1
        running.discard(task)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        for end in ends:
            # asyncio before 3.11.5 trips over a connection with TLS that is gone already.
            with contextlib.suppress(AttributeError):
                end.transport.abort()
        await asyncio.gather(*running)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
