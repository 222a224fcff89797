"""Draws the pictures of the pages on architecture and clusters as SVG, which follow the reader's light or dark scheme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:12px}.middle{text-anchor:middle}.end{text-anchor:end}"
    "rect{fill:#f6f8fa;stroke:#8c959f;rx:6}rect.host{fill:none;stroke-dasharray:5 4}rect.bar{fill:#0969da;stroke:none;rx:2}"
    "path{fill:none;stroke:#57606a;stroke-width:1.3}path.life{stroke:#d0d7de}marker path{fill:#57606a;stroke:none}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}rect{fill:#161b22;stroke:#6e7681}path{stroke:#9198a1}"
    "path.life{stroke:#30363d}marker path{fill:#9198a1}}"
)
_HEAD: Final = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
    '<path d="M0 0L8 4L0 8z"/></marker></defs>'
)
_COLUMN: Final = 148
_ROW: Final = 34


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{_STYLE}</style>", _HEAD, *parts, "</svg>", ""])


def _text(x: int, y: int, text: str, kind: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def _box(x: int, y: int, width: int, height: int, *lines: str) -> str:
    """A box with centered lines of text."""
    first = y + height // 2 + 5 - 9 * (len(lines) - 1)
    texts = [_text(x + width // 2, first + 18 * number, line) for number, line in enumerate(lines)]
    return "".join([f'<rect x="{x}" y="{y}" width="{width}" height="{height}"/>', *texts])


def _host(x: int, y: int, width: int, height: int, name: str) -> str:
    return f'<rect class="host" x="{x}" y="{y}" width="{width}" height="{height}"/>' + _text(x + 10, y + 18, name, "")


def _arrow(path: str, label: tuple[int, int, str] | None = None) -> str:
    """An arrow along an SVG path, with a text beside it."""
    return f'<path d="{path}" marker-end="url(#head)"/>' + (_text(*label, "small") if label else "")


def _sequence(title: str, actors: Sequence[str], steps: Sequence[tuple[str, str, str]]) -> str:
    """Who sends what to whom, from top to bottom.

    Args:
        title: The picture's title.
        actors: The columns, from left to right.
        steps: Sender, receiver and text; a sender that is the receiver does something by itself.
    """
    x = {actor: 20 + _COLUMN // 2 + _COLUMN * number for number, actor in enumerate(actors)}
    width, height = 40 + _COLUMN * len(actors), 70 + _ROW * len(steps)
    parts = [f'<path class="life" d="M{at} 44V{height - 10}"/>' for at in x.values()]
    parts += [_box(at - 58, 12, 116, 32, actor) for actor, at in x.items()]
    for number, (sender, receiver, text) in enumerate(steps):
        y = 78 + _ROW * number
        if sender == receiver:
            parts.append(_box(x[sender] - 70, y - 18, 140, 26, text))
        else:
            parts.append(_arrow(f"M{x[sender]} {y}H{x[receiver]}", (min(x[sender], x[receiver]) + 6, y - 6, text)))
    return _svg(width, height, title, parts)


def parts() -> str:
    """The processes of a query, and what passes between them."""
    return _svg(
        860,
        330,
        "The parts",
        [
            _box(20, 14, 130, 40, "environment file"),
            _arrow("M150 34H266", (158, 28, "infra/ (CDKTF)")),
            _text(274, 38, "streams, consumers, lease table, manifest with their ARNs", ""),
            _host(190, 70, 340, 240, "Spark driver"),
            _box(210, 100, 300, 46, "Spark: offset log, micro-batches"),
            _box(210, 172, 300, 46, "planner: a stream reader for each query"),
            _box(
                210, 244, 300, 52, "run, one process: exact ranges, leases,", "subscriptions, events under one budget"
            ),
            _arrow("M350 146V170", (358, 163, "offsets")),
            _arrow("M350 218V242", (358, 235, "next, plan (Unix socket)")),
            _box(20, 172, 110, 46, "manifest"),
            _arrow("M130 195H208"),
            _box(20, 226, 110, 34, "lease table"),
            _arrow("M208 256H132"),
            _box(20, 270, 110, 34, "Kinesis"),
            _arrow("M130 284H208"),
            _box(600, 164, 150, 62, "tasks on executors:", "decode to Arrow"),
            _arrow("M510 123H675V162", (560, 117, "ranges")),
            _arrow("M510 270H675V228", (545, 264, "raw events")),
            _arrow("M750 195H782"),
            _text(790, 199, "your sink", ""),
        ],
    )


def cluster() -> str:
    """A run with fetchers on executors."""
    return _svg(
        820,
        250,
        "A run on a cluster",
        [
            _host(150, 14, 300, 222, "driver's host"),
            _box(170, 44, 260, 52, "your program's supervisor:", "one Spark job for each run"),
            _box(170, 158, 260, 58, "run: who reads what,", "how far a micro-batch goes"),
            _arrow("M300 158V98", (308, 134, "asks for fetchers")),
            _host(530, 14, 160, 222, "executors"),
            _box(545, 44, 130, 52, "fetchers 0 to 7", "(tasks of that job)"),
            _box(545, 158, 130, 58, "tasks: decode", "ranges"),
            _arrow("M430 70H543", (438, 64, "starts")),
            _arrow("M430 172L543 92", (436, 104, "work, report")),
            _arrow("M610 158V98", (618, 134, "get")),
            _arrow("M545 190H432", (440, 206, "who has it?")),
            _box(20, 164, 90, 46, "lease table"),
            _arrow("M170 187H112"),
            _box(730, 47, 80, 46, "Kinesis"),
            _arrow("M730 70H677"),
        ],
    )


def micro_batch() -> str:
    """Who asks whom during a micro-batch, and what Spark logs when."""
    return _sequence(
        "Micro-batch 12",
        ("Spark", "planner", "run", "fetcher", "task"),
        [
            ("Spark", "planner", "how far may it go?"),
            ("planner", "run", "next"),
            ("run", "planner", "positions"),
            ("planner", "Spark", "offset"),
            ("Spark", "Spark", "logs offsets/12"),
            ("Spark", "planner", "offsets 11 and 12"),
            ("planner", "run", "plan: who serves it?"),
            ("planner", "Spark", "ranges (after, through]"),
            ("Spark", "task", "a partition's ranges"),
            ("task", "fetcher", "get"),
            ("fetcher", "task", "raw events"),
            ("task", "Spark", "rows, to the sink with number 12"),
            ("Spark", "Spark", "logs commits/12"),
            ("Spark", "planner", "how far may 13 go?"),
            ("planner", "run", "next: 12 is done"),
            ("run", "run", "lease table follows"),
        ],
    )


def reshard() -> str:
    """A split, from the end of the parent to the records of its children."""
    return _sequence(
        "A shard is split",
        ("Kinesis", "fetcher", "run", "planner", "Spark"),
        [
            ("Kinesis", "fetcher", "last event: children"),
            ("fetcher", "run", "end, children"),
            ("run", "planner", "parent: end; children"),
            ("planner", "Spark", "offset 13 names all"),
            ("Spark", "Spark", "logs offsets/13"),
            ("Spark", "Spark", "logs commits/13"),
            ("Spark", "planner", "how far may 14 go?"),
            ("planner", "run", "next"),
            ("run", "fetcher", "read the children"),
            ("fetcher", "Kinesis", "SubscribeToShard"),
            ("run", "planner", "children; parent leaves"),
            ("planner", "Spark", "offset 14: children only"),
        ],
    )


def latency(stages: Sequence[tuple[str, float, float]]) -> str:
    """Where a record waits: a bar for each stage, one after the other.

    Args:
        stages: Name, p50 and p99 in ms; the last one is the sum of the others.
    """
    *parts, (total, p50, p99) = stages
    scale, at = 360 / sum(median for _, median, _ in parts), 0.0
    lines = [_text(690, 28, "p50", "end"), _text(760, 28, "p99", "end")]
    for number, (name, median, tail) in enumerate(parts):
        y = 54 + _ROW * number
        bar = f'<rect class="bar" x="{300 + at * scale:.1f}" y="{y - 14}" width="{max(1.0, median * scale):.1f}" height="18"/>'
        lines += [
            _text(20, y, name, ""),
            bar,
            _text(690, y, f"{median:.0f} ms", "end"),
            _text(760, y, f"{tail:.0f} ms", "end"),
        ]
        at += median
    y = 54 + _ROW * len(parts)
    lines += [_text(20, y, total, ""), _text(690, y, f"{p50:.0f} ms", "end"), _text(760, y, f"{p99:.0f} ms", "end")]
    return _svg(780, y + 24, "Where a record waits", lines)
