"""``kinesis-efo top``: shows from moment to moment how an application's run does. It reads nothing of the streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rich.live import Live

from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.lease_access import opened
from kinesis_efo.cli.top_page import Page
from kinesis_efo.cli.top_view import data, show
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import UsageError
from kinesis_efo.leases.row import Lease
from kinesis_efo.operate.following import Following, Look
from kinesis_efo.options import AwsSettings


def top(
    *, aws: AwsSettings, manifest: str, stream: list[str] | None, interval: str, web: bool, port: int, as_json: bool
) -> None:
    """Carry out the command, with its options as `commands.top` declares them."""
    pause = arguments.seconds("--interval", interval)
    if port and not web:
        raise UsageError("--port goes with --web: give both")
    try:
        asyncio.run(_watch(aws, manifest, stream, pause, Page(port) if web else None, as_json=as_json))
    except KeyboardInterrupt:
        raise output.stop(output.ExitCode.OK) from None


async def _watch(
    aws: AwsSettings, location: str, streams: list[str] | None, pause: float, page: Page | None, *, as_json: bool
) -> None:
    clock, terminal = SystemClock(), output.terminal()
    async with opened(aws, location, streams) as application:
        name = application.manifest.application

        async def runs() -> dict[str, Lease]:
            return application.runs(await application.table.scan())

        following = Following(runs, clock)
        printed: Callable[[Look], None]
        with Live(console=terminal, auto_refresh=False, screen=terminal.is_terminal and not as_json) as live:
            if as_json:
                printed = lambda look: output.line(data(name, look))  # noqa: E731
            elif terminal.is_terminal:
                printed = lambda look: live.update(  # noqa: E731
                    show(name, look, terminal.width, terminal.height), refresh=True
                )
            elif page is not None:
                printed = lambda _: None  # noqa: E731
            else:
                printed = lambda look: terminal.print(show(name, look, terminal.width, output.WIDE))  # noqa: E731
            if page is not None:
                output.remark(f"kinesis-efo: the page is at {await page.start()}")
            try:
                while True:
                    began = clock.monotonic()
                    look = await following.look()
                    printed(look)
                    if page is not None:
                        page.show(data(name, look))
                    await clock.sleep(max(0.0, began + pause - clock.monotonic()))
            finally:
                if page is not None:
                    await page.stop()
