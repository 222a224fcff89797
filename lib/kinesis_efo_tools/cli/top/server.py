"""Serves the page of ``kinesis-efo top`` to browsers on this machine."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Final

from aiohttp import web

from kinesis_efo.errors import ConfigurationError
from kinesis_efo_tools.cli.top.document import document
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.history import History

HOST: Final = "127.0.0.1"
_NOTHING_ELSE: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class Page:
    """Serves a web page that polls the server for the newest observation. The first response also has the figures of the last hour.

    If `port` is 0, a free port is used. `pause` is the time between two observations, in seconds.
    """

    def __init__(self, application: str, port: int, pause: float) -> None:
        self._application = application
        self._port = port
        self._history = History(pause)
        self._look: Observation | None = None
        self._runner: web.AppRunner | None = None

    def show(self, look: Observation) -> None:
        """Make an observation available to the page, and keep its figures for an hour."""
        if look.view is not None and (self._look is None or self._look.said != look.said):
            self._history.add(look.at, look.view)
        self._look = look

    async def start(self) -> str:
        """Start serving, and return the page's URL. Raises ConfigurationError if the port cannot be used."""
        app = web.Application(middlewares=[_known_host])
        app.router.add_get("/", _file("top.html", "text/html"))
        app.router.add_get("/top.js", _file("top.js", "text/javascript"))
        app.router.add_get("/top.css", _file("top.css", "text/css"))
        app.router.add_get("/look.json", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, self._port)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            raise ConfigurationError(
                f"--port {self._port}: the page cannot be served there: {error}. Give a port that is free, or leave it out"
            ) from None
        return f"http://{HOST}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            since = float(request.query.get("since", "0"))
        except ValueError:
            raise web.HTTPBadRequest(text="since must be epoch seconds") from None
        found = None if self._look is None else document(self._application, self._look, self._history, since)
        return web.Response(text=json.dumps(found), content_type="application/json", headers=_NOTHING_ELSE)


@web.middleware
async def _known_host(request: web.Request, handler: Any) -> web.StreamResponse:
    # Reject other host names. This prevents DNS rebinding, by which a page of another site could read from this server.
    if request.host.rpartition(":")[0] not in (HOST, "localhost"):
        raise web.HTTPForbidden(text="this page is for browsers on this machine")
    answer: web.StreamResponse = await handler(request)
    return answer


def _file(name: str, content_type: str) -> Any:
    text = files("kinesis_efo_tools.cli.top").joinpath("page", name).read_text(encoding="utf-8")

    async def serve(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type, headers=_NOTHING_ELSE)

    return serve
