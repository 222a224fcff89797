"""Writes what comes from the code: the tables in README.md and docs/, the dashboard, the alerts, the pictures and the scenarios. `make docs` runs it.

A table starts at its header line and ends at the next blank line; everything around it is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from kinesis_efo.metrics import METRICS
from kinesis_efo.options import SOURCE_OPTIONS
from kinesis_efo.options.readers import hint_of
from kinesis_efo.options.source import BATCHES, STREAMING
from kinesis_efo.options.table import Option, foreign
from kinesis_efo.spark.sink import SINK_OPTIONS
from kinesis_efo_tools.manifest_schema import SCHEMA
from scripts import status
from scripts.alerts import rules
from scripts.grafana import dashboard
from scripts.picture import picture
from scripts.scenarios import page as scenarios

ROOT: Final = Path(__file__).resolve().parents[1]


def summary(title: str, options: Iterable[Option]) -> str:
    """A Markdown table of options, with their meaning."""
    rows = [f"| `{option.name}` | {option.default} | {option.meaning} |" for option in options]
    return "\n".join([f"| {title} | default | |", "|---|---|---|", *rows])


def reference(title: str, names: Container[str]) -> str:
    """A Markdown table of options for reading and writing: who uses them, their meaning and the rule for their values."""
    uses: dict[Option, list[str]] = {}
    for option in SOURCE_OPTIONS:
        uses[option] = ["streaming"] * (option.name not in BATCHES) + ["batch"] * (option.name not in STREAMING)
    for option in SINK_OPTIONS:
        uses.setdefault(option, []).append("writing")
    # Outside of code, what is in angle brackets is a tag.
    rows = [
        f"| `{option.name}` | {', '.join(use) if len(use) < 3 else 'all'} | {option.rule.replace('<', '&lt;')} | {option.default} | {option.meaning} |"
        for option, use in uses.items()
        if option.name in names
    ]
    return "\n".join([f"| {title} | for | value | default | |", "|---|---|---|---|---|", *rows])


def metrics() -> str:
    """The metrics as a Markdown table."""
    rows = [
        f"| `{metric.name}`<br>`{metric.cloudwatch}` | {metric.kind.value} | {metric.unit} | "
        f"{', '.join(f'`{name}`' for name in metric.attributes) or '-'} | {metric.meaning} |"
        for metric in METRICS
    ]
    return "\n".join(["| OpenTelemetry, CloudWatch | kind | unit | attributes | |", "|---|---|---|---|---|", *rows])


def manifest() -> str:
    """The keys of a manifest as a Markdown table, from its schema."""
    streams = SCHEMA["properties"]["streams"]["additionalProperties"]["properties"]
    table = SCHEMA["properties"]["leaseTable"]["anyOf"][0]["properties"]
    nested = {"leaseTable": ("leaseTable", table), "streams": ("streams.<name>", streams)}
    keys: dict[str, str] = {}
    for key, rule in SCHEMA["properties"].items():
        keys[key] = rule["description"]
        prefix, below = nested.get(key, ("", {}))
        keys.update({f"{prefix}.{name}": each["description"] for name, each in below.items()})
    return "\n".join(["| key | |", "|---|---|", *(f"| `{key}` | {meaning} |" for key, meaning in keys.items())])


def of_system(system: str) -> str:
    """The options of another system as a Markdown table, with what takes their place."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in row.names)} | {'-' if row.here == '-' else f'`{row.here}`'} | {row.note} |"
        for row in foreign()
        if row.system == system
    ]
    return "\n".join([f"| {system} | here | |", "|---|---|---|", *rows])


def keywords() -> str:
    """The module whose `TypedDict`s are the options of `read_stream`, of `read`, and of writers, for type checkers and editors."""
    # Both functions have arguments of their own for these.
    source = [each for each in SOURCE_OPTIONS if each.name not in ("manifest", "streams")]
    read = {name: hint_of(each.read) for each in source for name in (each.name, *each.also)}
    # Writers get their options through Spark, which makes a text of each value; that of a `timedelta` is no duration.
    written = {
        name: hint_of(each.read).replace(" | timedelta", "")
        for each in SINK_OPTIONS
        for name in (each.name, *each.also)
    }
    classes = {
        "_Reading(TypedDict": ("What both have.", read.keys() - STREAMING - BATCHES, read),
        "StreamKeywords(_Reading": ("The options of `read_stream`, for a dict of them.", read.keys() & STREAMING, read),
        "BatchKeywords(_Reading": ("The options of `read`, for a dict of them.", read.keys() & BATCHES, read),
        "SinkKeywords(TypedDict": (
            'The options of the sink: a dict of them for `writeStream.format("kinesis-efo").options(**options)`.',
            written.keys(),
            written,
        ),
    }
    lines = [
        '"""The options as keywords, for type checkers and editors. Made from the tables of options."""',
        "",
        "from __future__ import annotations",
        "",
        "from datetime import datetime, timedelta",
        "from typing import Literal, TypedDict",
        "",
    ]
    for head, (meaning, names, hints) in classes.items():
        fields = [f"    {name}: {hint}" for name, hint in hints.items() if name in names]
        lines += ["", f"class {head}, total=False):", f'    """{meaning}"""', "", *fields, ""]
    return "\n".join(lines)


COMMON: Final = (
    "manifest",
    "streams",
    "startingPosition",
    "maxBytesPerTrigger",
    "maxShardSkew",
    "bufferBytes",
    "fetchers",
    "readMode",
)
"""The options that README shows: those that most jobs need."""

EVERYONE: Final = {
    "manifest", "streamArn", "consumerArn", "leaseTable", "streams", "stream", "readMode", "startingPosition", "endingPosition",
    "maxBytesPerTrigger", "maxRecordsPerTrigger", "failOnDataLoss", "deaggregate", "fetchers", "catchUp", "shardsPerTask", "ordered",
    "aggregate", "failOnError", "region", "roleArn",
}  # fmt: skip
OPERATORS: Final = {
    "newStreamPosition", "removedStreams", "acceptDataLoss", "maxShardSkew", "bufferBytes", "slowQueries", "maxShardRate",
    "fetcherHost", "fetcherBindHost", "fetcherPort", "fetcherTls", "leaseTimeout", "retryTimeout", "stallWarning", "endpointUrl",
    "externalId", "roleSessionName", "metricsExport", "metricsEmfTo", "metricsEmfInterval",
}  # fmt: skip
EXPERTS: Final = {option.name for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)} - EVERYONE - OPERATORS

SYSTEMS: Final = [system for system in dict.fromkeys(row.system for row in foreign()) if system != "Spark source"]
"""The systems with a table on the page for those who come from them."""

TABLES: Final = {
    "README.md": (
        summary("option", (each for each in SOURCE_OPTIONS if each.name in COMMON)),
        status.table(),
    ),
    "docs/options.md": (
        reference("option", EVERYONE),
        reference("option of operators", OPERATORS),
        reference("option of experts", EXPERTS),
    ),
    "docs/coming-from.md": tuple(map(of_system, SYSTEMS)),
    "docs/metrics.md": (metrics(),),
    "docs/manifest.md": (manifest(),),
}
"""The tables of each page."""


WHOLE: Final[Mapping[str, Callable[[], str]]] = {
    "docs/dashboards/kinesis-efo.json": dashboard,
    "docs/dashboards/kinesis-efo.rules.yaml": rules,
    "docs/top.svg": picture,
    "docs/images/top-queries.svg": partial(picture, queries=3),
    "lib/kinesis_efo/options/keywords.py": keywords,
    "tests/SCENARIOS.md": scenarios,
}
"""What makes each file that nobody writes by hand."""


def pages() -> Iterator[tuple[Path, str]]:
    """Every page that has tables, with the current tables, and every file that comes from the code as a whole."""
    for name, tables in TABLES.items():
        text = (ROOT / name).read_text()
        for table in tables:
            header = table.split("\n", 1)[0]
            start = text.index(f"{header}\n")
            text = text[:start] + table + text[text.index("\n\n", start) :]
        yield ROOT / name, text
    for name, made in WHOLE.items():
        yield ROOT / name, made()


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text)
