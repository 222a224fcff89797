"""The page of `kinesis-efo top` in a browser: an hour of a run of 60 shards that is told by hand, looked at in several ways."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import cos, sin
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from kinesis_efo.fetcher.status import RunStatus, ShardStatus, Subscription
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.row import Lease
from kinesis_efo_tools.cli.top.server import Page
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.pulse import Pulse
from scripts.picture import NOW
from tests.support.browser import browsing
from tests.support.world import wait_until

HOUR = range(-3600, 1, 10)
SPLIT_AT = -600
MARKUP = '<img src=x onerror="document.title=1">'
OWNER = "ip-10-0-1-7:6f2c:4026531836:4711:88123:00c0ffee00c0ffee"


def status(stream: str, number: int, at: int) -> ShardStatus:
    """A shard at some second of the hour: shard 17 waits for Spark since the split, and 3 catches up at Kinesis' limit."""
    since = at - HOUR[0]
    waits = number == 17 and at > SPLIT_AT
    catching_up = number == 3
    # What came so far: 90 kB a second, more or less, as the day goes.
    arrived = 1_800_000 * since if catching_up else round(90_000 * since - 60_000 * 400 * cos(at / 400 + number / 30))
    behind = max(0, 2_400 - since // 2) * 1000 if catching_up else round(600 + 300 * abs(sin(at / 300 + number)))
    return ShardStatus(
        stream,
        f"shardId-{number:012d}",
        "AFTER:7",
        21_000_000 if waits else 90_000 + 5_000 * (at // 10 + number) % 60_000,
        200 + number % 7,
        float(at - SPLIT_AT) if waits else None,
        behind,
        f"{number % 4} on ip-10-0-0-{number % 4}",
        Subscription("paused" if waits else "streaming", 3, 1, arrived, 0.1, arrived // 1000),
    )


def hour(page: Page, *others: str, trouble: str = "") -> None:
    """Show a page an hour of a run: one stream with 60 shards, one of which is split, and others with two each."""
    pulse = Pulse()
    pulse.begin(NOW + HOUR[0], "ip-10-0-1-7:4711 reads now")
    for at in HOUR:
        numbers = range(60) if at < SPLIT_AT else [*range(5), *range(6, 62)]
        shards = [status("orders", number, at) for number in numbers]
        shards += [status(stream, number, at) for stream in others for number in (0, 1)]
        view = pulse.add(RunStatus(NOW + at, shards, 4 << 26, 0.47 * (at - HOUR[0])))
        runs = {stream: Lease(run_key(stream), owner=OWNER) for stream in view.streams}
        page.show(Observation(NOW + at, runs, view, NOW + at, trouble, pulse.events))


@contextmanager
def served(*others: str) -> Iterator[str]:
    """The page, served from a loop of its own; gives its address."""
    loop = asyncio.new_event_loop()
    page = Page("lake", 0, 2.0)
    hour(page, *others)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(page.start(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(page.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@pytest.fixture(scope="module")
def page() -> Iterator[tuple[str, Callable[..., dict[str, Any]]]]:
    """The page's address, and what a browser shows of it."""
    with served(MARKUP, "payments") as address, browsing(address) as look:
        wait_until(lambda: look()["rows"], every=0.1)
        yield address, look


@pytest.mark.slow
def test_many_shards_are_folded_until_a_click(page: Any) -> None:
    _, look = page
    seen = look()
    # What is slow comes first, and so does its stream; then 8 of 61 shards, and two of each other stream.
    assert (seen["streams"][0], len(seen["rows"]), seen["folds"]) == ("orders", 8 + 4, ["Show all 61 shards"])
    assert [(row[0], row[1], row[-1]) for row in seen["rows"][:3]] == [
        ("3", "streaming", "limit"),
        ("17", "paused", "Spark"),
        ("0", "streaming", ""),
    ]
    assert (seen["slow"], seen["states"]) == (2, ["1 paused", "60 streaming", "2 streaming", "2 streaming"])
    assert [each.partition(":")[0] for each in seen["remedies"]] == ["Spark", "limit"]
    assert all(each.endswith(" (docs/runbook.md#fetching-or-spark)") for each in seen["remedies"])
    assert any("shardId-000000000060" in each and each.endswith("began") for each in seen["events"])
    opened = look("click #streams button")
    assert (len(opened["rows"]), opened["folds"]) == (61 + 4, ["Show the 8 slowest"])
    lookups = opened["answers"]
    later = wait_until(lambda: (each := look())["answers"] > lookups + 1 and each, every=0.2)
    assert len(later["rows"]) == 61 + 4, "it stays unfolded when the next look comes"
    assert len(look("click #streams button")["rows"]) == 8 + 4


@pytest.mark.slow
def test_lines_show_the_last_hour(page: Any) -> None:
    _, look = page
    seen = look()
    # Behind, records in and out, bytes in and out; for all streams and for each of three. A point for each 10 s.
    assert seen["lines"] == [360] * 5 * 4
    assert seen["charts"][:3] == [
        "behind, all streams: the slowest shard 10m",
        *(each for each in seen["charts"][1:3] if each.startswith(("records, all", "bytes, all"))),
    ]
    assert "behind, orders: the slowest shard 10m" in seen["charts"]
    pointed = look("hover #charts .chart:first-child svg")
    assert pointed["charts"][0] == "behind, all streams: the slowest shard 24.9m", "in the middle of the hour"
    look("hover h1")


@pytest.mark.slow
def test_page_shows_that_the_command_has_ended() -> None:
    with ExitStack() as stack:
        with served() as address:
            look = stack.enter_context(browsing(address))
            wait_until(lambda: look()["rows"], every=0.1)
        (trouble,) = wait_until(lambda: look()["trouble"], every=0.2)
        assert trouble.startswith("kinesis-efo top does not answer any more")
        assert [each for each in look()["errors"] if "ERR_CONNECTION_REFUSED" not in each] == []


@pytest.mark.slow
def test_names_are_text_without_other_requests(page: Any) -> None:
    address, look = page
    seen = look()
    assert MARKUP in seen["streams"]
    assert seen["title"] == "lake: 10m01s behind"
    assert (seen["asked"], seen["errors"]) == ([address], [])


@pytest.mark.slow
def test_it_is_dark_and_light_and_fits_a_phone(page: Any, tmp_path: Path) -> None:
    _, look = page
    assert (look("dark")["background"], look("light")["background"]) == ("rgb(13, 17, 23)", "rgb(246, 247, 249)")
    for width in (360, 768, 1280):
        look(f"width {width}")
        assert [(each["overflow"], each["cut"]) for each in [look()]] == [(0, 0)], width
    look(f"picture {tmp_path / 'page.svg'}")
    assert ET.parse(tmp_path / "page.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


if __name__ == "__main__":  # draws the picture of the documentation
    with served() as address, browsing(address) as shown:
        wait_until(lambda: shown()["rows"], every=0.1)
        shown(f"picture {Path(__file__).parents[3] / 'docs/images/top-web.svg'}")
