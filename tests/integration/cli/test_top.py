"""`kinesis-efo top` beside a real run: in a pipe, on a terminal, and as a page."""

import json
import os
import pty
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.integration.cli.conftest import AN_HOUR_FAST, Cli, process
from tests.support.fetching import reading
from tests.support.world import World, wait_until


@contextmanager
def top(here: World, *options: str, **more: Any) -> Iterator[Any]:
    """The command, interrupted in the end as by Ctrl-C; it has to end cleanly."""
    command = ("top", "--manifest", here.manifest, "--interval", "100ms", *options)
    with process(*command, env={**os.environ, "TERM": "xterm"}, **more) as running:
        yield running
        running.send_signal(signal.SIGINT)
        # It may be writing into a pipe that is full.
        running.communicate(timeout=30)
        assert running.returncode == 0


def look(running: Any) -> Any:
    return json.loads(running.stdout.readline())


@pytest.mark.slow
def test_each_look_is_a_line_of_json(cli: Cli) -> None:
    here = cli.world({"orders": 2})
    with reading(here, leaseTimeout="8s") as query, top(here, "--json") as running:
        here.put([(str(number), b"x") for number in range(40)])
        query.until(40)
        found = wait_until(lambda: (each := look(running))["shards"] and each)
        assert {shard["shardId"] for shard in found["shards"]} == {each["ShardId"] for each in here.shards()}
        assert (found["application"], found["trouble"], len(found["runs"])) == ("lake", None, 1)
        assert 0 < sum(shard["bufferedRecords"] for shard in found["shards"]) <= 40
        query.commit()
        wait_until(lambda: sum(shard["bufferedRecords"] for shard in look(running)["shards"]) == 0)
        query.runtime.stop()
        assert wait_until(lambda: look(running)["trouble"])


def test_times_are_those_of_aws(cli: Cli) -> None:
    with top(cli.world(), "--json", program=AN_HOUR_FAST) as running:
        at = datetime.fromisoformat(json.loads(running.stdout.readline())["at"])
    assert abs(at.timestamp() - time.time()) < 600


@pytest.mark.slow
def test_terminal_is_restored_at_the_end(cli: Cli) -> None:
    here = cli.world({"orders": 2})
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    shown = b""

    def see(text: bytes) -> bool:
        nonlocal shown
        try:
            shown += os.read(ours, 1 << 20)
        except BlockingIOError:
            return False
        return text in shown

    with reading(here) as query, top(here, stdout=theirs):
        here.put([("k", b"x")])
        query.until(1)
        wait_until(lambda: see(b"streaming"))
    wait_until(lambda: see(b"\x1b[?1049l"))  # the other screen is left
    os.close(ours)
    os.close(theirs)


@pytest.mark.slow
def test_page_is_for_browsers_on_this_machine(cli: Cli) -> None:
    here = cli.world({"orders": 2})
    with reading(here) as query, top(here, "--web") as running:
        here.put([("k", b"x")])
        query.until(1)
        found = re.fullmatch(r"kinesis-efo: the page is at (http://127\.0\.0\.1:(\d+))\n", running.stderr.readline())
        assert found is not None
        address, port = found[1], found[2]

        def get(path: str, host: str = f"localhost:{port}") -> tuple[str, str]:
            request = urllib.request.Request(address + path, headers={"Host": host})
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
                return answer.headers["Content-Type"].partition(";")[0], answer.read().decode()

        page = get("/")
        assert page[0] == "text/html"
        for name in re.findall(r'(?:src|href)="([^"]+)"', page[1]):
            assert get(f"/{name}")[0] in ("text/javascript", "text/css")
        wait_until(lambda: (look := json.loads(get("/look.json")[1])) and len(look["streams"]) == 1)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get("/look.json", host=f"elsewhere.example:{port}")
        here.run("top", "--web", "--port", port).ends(1, f"--port {port}: the page cannot be served there")
        here.run("top", "--port", port).ends(2, "--port goes with --web")
