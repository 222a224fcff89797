"""``kinesis-efo top``: watches an application's run. Does not read records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from rich.live import Live

from kinesis_efo.errors import UsageError
from kinesis_efo.leases.row import Lease
from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.commands.top import Top
from kinesis_efo_tools.cli.ending import forced_end
from kinesis_efo_tools.cli.lease_access import watched
from kinesis_efo_tools.cli.top.figures import data
from kinesis_efo_tools.cli.top.server import Page
from kinesis_efo_tools.cli.top.terminal import show
from kinesis_efo_tools.operate.following import Following, Observation
from kinesis_efo_tools.operate.live import ask


def top(given: Top) -> None:
    pause = arguments.seconds("--interval", given.interval)
    if given.port and not given.web:
        raise UsageError("--port goes with --web: give both")
    forced_end.code = output.ExitCode.OK
    try:
        asyncio.run(_watch(given, pause))
    except KeyboardInterrupt:
        raise output.stop(output.ExitCode.OK) from None


async def _watch(given: Top, pause: float) -> None:
    terminal = output.terminal()
    async with watched(given.aws, given.manifest, given.stream) as application:
        name, clock = application.manifest.application, application.access.table_clock
        page = Page(name, given.port, pause) if given.web else None

        async def runs() -> dict[str, Lease]:
            return application.runs(await application.table.scan())

        following = Following(runs, clock, partial(ask, query_shards=given.as_json))
        printed: Callable[[Observation], None]
        with Live(console=terminal, auto_refresh=False, screen=terminal.is_terminal and not given.as_json) as live:
            if given.as_json:
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
                        page.show(look)
                    await clock.sleep(max(0.0, began + pause - clock.monotonic()))
            finally:
                if page is not None:
                    await page.stop()
