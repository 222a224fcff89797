"""What `top` shows on terminals of all sizes: it fits, the worst is in it, and what is slow has its remedy."""

import pytest

from kinesis_efo.fetcher.status import QueryShard, QueryStatus, RunStatus, ShardStatus, Subscription
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.row import Lease
from kinesis_efo_tools.cli.top.figures import data
from kinesis_efo_tools.cli.top.terminal import show
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.pulse import Pulse
from tests.unit.cli.test_lag_report import shown

NOW = 1_700_000_000.0


def status(number: int, stream: str, *, later: bool) -> ShardStatus:
    waits = number % 50 == 3
    return ShardStatus(
        stream,
        f"shardId-{number:012d}",
        "AFTER:7",
        64_000 * number,
        number,
        12.0 * (waits and later) or None,
        1_000 * number,
        "3 on ip-10-0-0-7.eu-west-1.compute.internal",
        Subscription("paused" if waits else "streaming", 3, 1, 1_500_000 * number * later, 0.1, 1_500 * number * later),
    )


def query(number: int, streams: list[str], *, later: bool) -> QueryStatus:
    apart = number % 3 == 0
    return QueryStatus(
        number,
        streams,
        f"7c1f09{number:02x}",
        900_000 - 10_000 * later if apart else 400 * number,
        streams[0],
        "shardId-000000000017",
        30_000 * number,
        1_200_000 * number,
        1_000 * later,
        20_000_000 * later,
        0 if apart else 1_200_000 * number,
        2 * apart,
        100 + 20 * later,
        5_000_000 + 20_000_000 * later,
        [QueryShard(streams[0], "shardId-000000000017", "AFTER:7", 3, 400, 890_000, 0, True)] if later else None,
    )


def look(shards: int, streams: int = 1, trouble: str = "", said: float = NOW, queries: int = 0) -> Observation:
    names = [f"orders{number}" for number in range(streams)]
    pulse = Pulse()
    pulse.begin(NOW - 10, "ip-10-0-0-7:4711 reads now")
    for at, cpu, later in ((NOW - 10, 0.0, False), (NOW, 3.4, True)):
        found = [status(number, names[number % streams], later=later) for number in range(shards)]
        asked = [query(number + 1, names, later=later) for number in range(queries)]
        view = pulse.add(RunStatus(at, found, 256_000_000, cpu, asked))
    owner = "ip-10-0-0-7:6f2c:4026531836:4711:88123:00c0ffee00c0ffee"
    runs = {name: Lease(run_key(name), owner=owner, lag=Lag(shards, 1)) for name in names}
    return Observation(NOW, runs, view, said, trouble, pulse.events)


@pytest.mark.slow
@pytest.mark.parametrize("queries", [0, 3, 40])
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("shards", [1, 60, 2_000])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (160, 50), (240, 100)])
def test_view_fits_the_terminal(width: int, height: int, shards: int, streams: int, queries: int) -> None:
    trouble = "the run cannot be asked: " + "x" * 300
    lines = shown(show("lake", look(shards, min(streams, shards), trouble, queries=queries), width, height), width)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert "…" not in "".join(line for line in lines if "cannot be asked" not in line), "nothing is cut off"
    if shards == 2_000:
        assert "shards more, none further behind than" in "\n".join(lines)


def test_what_is_slow_comes_first_with_its_remedy() -> None:
    lines = shown(show("lake", look(60), 80, 40), 80)
    table = [line for line in lines if "streaming" in line or "paused" in line]
    assert table[0].split()[0] == "53"
    assert table[0].rstrip().endswith("Spark")
    text = " ".join(" ".join(lines).split())
    assert "Spark: Spark is slow (2 shards). What to do: look at the query in Spark's UI" in text
    assert "docs/runbook.md#fetching-or-spark" in text


def test_old_and_missing_figures_are_shown_as_such() -> None:
    def text(found: Observation) -> str:
        return "\n".join(shown(show("lake", found, 80, 24), 80))

    old = text(look(2, trouble="nobody answers", said=NOW - 42))
    assert "as of 42.0s ago" in old
    assert "nobody answers" in old
    first = text(Observation(NOW, {}, Pulse().add(RunStatus(NOW, [status(1, "orders", later=False)], 1)), NOW, ""))
    assert "in -, processed -" in first
    assert "None" not in first
    unanswered = text(Observation(NOW, look(5).runs, None, None, "nobody answers"))
    assert "what runs said with their last renewal" in unanswered


def test_json_has_the_same() -> None:
    found = data("lake", look(60))
    worst = {"stream": "orders0", "shardId": "shardId-000000000053", "state": "paused", "trend": 1.2, "cause": "Spark"}
    figures = {"secondsBehind": 65.0, "caughtUpInSeconds": None, "waitingSeconds": 12.0, "lastEventSeconds": 0.1}
    rates = {"bytesInPerSecond": 7_950_000.0, "recordsProcessedPerSecond": 7_950.0, "dataInPerSecond": 4_859_437.5}
    held = {"bufferedBytes": 3_392_000, "bufferedRecords": 53, "opened": 3, "failures": 1}
    assert (worst | figures | rates | held).items() <= found["shards"][0].items()
    assert (found["runs"], found["asOfSeconds"], round(found["plannerCpu"], 3)) == (["ip-10-0-0-7:4711"], 0.0, 0.34)


def test_several_queries_have_a_line_each() -> None:
    lines = shown(show("lake", look(3, queries=3), 100, 30), 100)
    head = next(index for index, line in enumerate(lines) if line.startswith("query"))
    assert lines[head].split() == ["query", "checkpoint", "behind", "slowest", "to", "do", "out/s", "holds", "apart"]
    assert [line.split()[:4] for line in lines[head + 1 : head + 4]] == [
        ["1", "7c1f0901", "0.4s", "17"],
        ["2", "7c1f0902", "0.8s", "17"],
        ["3", "7c1f0903", "14m50s", "\N{DOWNWARDS ARROW}"],
    ]
    assert lines[head + 3].rstrip().endswith("2 shards, 1.9 MiB/s")
    assert "query" not in "\n".join(shown(show("lake", look(3), 100, 30), 100)), "nothing changes for one"
    lines = shown(show("lake", look(3, queries=40), 100, 24), 100)
    head = next(index for index, line in enumerate(lines) if line.startswith("query"))
    assert [line.split()[0] for line in lines[head + 1 : head + 4]] == ["3", "6", "9"], "the slowest of many"
    assert lines[head + 4].startswith("and 37 queries more")


def test_queries_in_plain_data() -> None:
    found = data("lake", look(3, queries=3))["queries"]
    assert [each["number"] for each in found] == [1, 2, 3]
    about = {
        "number": 3,
        "name": None,
        "checkpoint": "7c1f0903",
        "stream": "orders0",
        "shardId": "shardId-000000000017",
    }
    lag = {"secondsBehind": 890.0, "trend": -1.0, "waitingBytes": 3_600_000, "waitingRecords": 90_000, "heldBytes": 0}
    rates = {"bytesProcessedPerSecond": 2_000_000.0, "recordsProcessedPerSecond": 100.0, "callsApartPerSecond": 2.0}
    assert (about | lag | rates | {"shardsApart": 2, "recordsProcessed": 1_000}).items() <= found[2].items()
    (shard,) = found[2]["shards"]
    assert {"position": "AFTER:7", "waitingBytes": 400, "waitingRecords": 3, "apart": True}.items() <= shard.items()
    assert data("lake", look(3))["queries"] == []
