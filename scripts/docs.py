"""Writes the tables that come from the code into README.md and docs/: `make docs`.

A table starts at its header line and ends at the next blank line; everything around it is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kinesis_efo.metrics import METRICS
from kinesis_efo.options import SOURCE_OPTIONS
from kinesis_efo.options.elsewhere import CONNECTOR, DATABRICKS, KAFKA, Counterpart
from kinesis_efo.options.table import Option
from kinesis_efo.spark.sink_options import SINK_OPTIONS

ROOT: Final = Path(__file__).resolve().parents[1]


def summary(title: str, options: Iterable[Option]) -> str:
    """A Markdown table of options, with their meaning."""
    rows = [f"| `{option.name}` | {option.default} | {option.meaning} |" for option in options]
    return "\n".join([f"| {title} | default | |", "|---|---|---|", *rows])


def reference(title: str, options: Iterable[Option]) -> str:
    """A Markdown table of options, with their meaning and the rule for their values."""
    rows = [f"| `{option.name}` | {option.rule} | {option.default} | {option.meaning} |" for option in options]
    return "\n".join([f"| {title} | value | default | |", "|---|---|---|---|", *rows])


def elsewhere(title: str, counterparts: Iterable[Counterpart]) -> str:
    """A Markdown table of another system's options, with those that take their place."""
    rows = [f"| `{each.name}` | {f'`{each.ours}`' if each.ours else '-'} | {each.remark} |" for each in counterparts]
    return "\n".join([f"| {title} | here | |", "|---|---|---|", *rows])


def metrics() -> str:
    """The metrics as a Markdown table."""
    rows = [
        f"| `{metric.name}` | `{metric.cloudwatch}` | {metric.kind.value} | {metric.unit} | "
        f"{', '.join(f'`{name}`' for name in metric.attributes) or '-'} | {metric.meaning} |"
        for metric in METRICS
    ]
    return "\n".join(
        ["| OpenTelemetry | CloudWatch | kind | unit | attributes | |", "|---|---|---|---|---|---|", *rows]
    )


TABLES: Final = {
    "README.md": (summary("option", SOURCE_OPTIONS), summary("sink option", SINK_OPTIONS)),
    "docs/options.md": (reference("option", SOURCE_OPTIONS), reference("sink option", SINK_OPTIONS)),
    "docs/coming-from.md": (
        elsewhere("Kafka source", KAFKA.source),
        elsewhere("Kafka sink", KAFKA.sink),
        elsewhere("Databricks", DATABRICKS.source),
        elsewhere("spark-sql-kinesis-connector, source", CONNECTOR.source),
        elsewhere("spark-sql-kinesis-connector, sink", CONNECTOR.sink),
    ),
    "docs/metrics.md": (metrics(),),
}
"""The tables of each page."""


def pages() -> Iterator[tuple[Path, str]]:
    """Every page that has tables, and its text with the current tables."""
    for name, tables in TABLES.items():
        text = (ROOT / name).read_text()
        for table in tables:
            header = table.split("\n", 1)[0]
            start = text.index(f"{header}\n")
            text = text[:start] + table + text[text.index("\n\n", start) :]
        yield ROOT / name, text


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text)
