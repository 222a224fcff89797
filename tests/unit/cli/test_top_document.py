"""What the page of `top` is told: its scales hold all that is drawn, its rows are bounded, and old runs lack records only."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.fetcher.status import RunStatus, ShardStatus, Subscription
from kinesis_efo_tools.cli.top.axis import BYTES, RECORDS, SECONDS, axis
from kinesis_efo_tools.cli.top.document import MOST_ROWS, document
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.history import History
from kinesis_efo_tools.operate.pulse import Pulse
from tests.unit.cli.test_top_view import NOW, look


def shown(found: Observation, since: float = 0.0) -> dict[str, Any]:
    history = History()
    if found.view is not None:
        history.add(found.at, found.view)
    return document("lake", found, history, since)


@given(st.floats(0, 1e15), st.sampled_from([SECONDS, BYTES, RECORDS]))
def test_scale_covers_its_figures_with_few_lines(most: float, units: tuple[tuple[float, str], ...]) -> None:
    found = axis(most, units)
    top = found.step * found.steps * found.unit
    assert 1 <= found.steps <= 5
    assert most <= top * (1 + 1e-9)
    assert top <= max(2.5 * most, units[-1][0])


def test_page_has_state_charts_and_bounded_rows() -> None:
    words = [shown(each)["word"] for each in (look(3), look(60), look(3, trouble="gone"))]
    assert words == ["reading", "31 shards slow", "no answer"]
    assert shown(look(2, said=NOW - 42))["about"].endswith("as of 42.0s ago")
    (stream,) = shown(look(2_000))["streams"]
    assert (len(stream["rows"]), stream["left"][:19]) == (MOST_ROWS, "and 1,000 shards mo")
    for streams, charts in ((1, [False]), (2, [True, True])):
        assert [bool(each["charts"]) for each in shown(look(4, streams))["streams"]] == charts


def test_before_a_run_has_answered_its_row_is_shown() -> None:
    found = shown(Observation(NOW, look(5).runs, None, None, "nobody answers"))
    assert found["rows"] == ["orders0: ip-10-0-0-7:4711, 5 shards"]
    assert (found["trouble"], found["streams"], found["title"]) == ("nobody answers", [], "lake: no answer")


def test_several_queries_have_a_line_each() -> None:
    assert shown(look(3))["rows"] == []
    assert shown(look(3, queries=3))["rows"][1:] == [
        "query 2 (checkpoint 7c1f0902): 0.8s behind, processed 1.9 MiB/s, holds 2.3 MiB",
        "query 3 (checkpoint 7c1f0903): 14m50s behind, processed 1.9 MiB/s, holds 0 B, reads apart: 2 shards, 1.9 MiB/s",
    ]


def test_run_of_an_old_version_has_bytes_only() -> None:
    former = msgspec.json.decode(b'["streaming",1,0,5000,0.1]', type=Subscription)
    pulse = Pulse()
    for at, arrived in ((NOW, 0), (NOW + 10, 5000)):
        subscription = msgspec.structs.replace(former, arrived=arrived)
        view = pulse.add(RunStatus(at, [ShardStatus("orders", "0", "AFTER:7", 0, 0, None, 0, None, subscription)]))
    found = shown(Observation(NOW, {}, view, NOW, ""))
    assert (view.shards[0].records_in, view.shards[0].incoming) == (None, 500.0)
    assert [each["title"] for each in found["charts"]] == ["behind", "bytes"]
