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
from kinesis_efo.options.source import STREAMING
from kinesis_efo.options.table import Option
from kinesis_efo.spark.sink import SINK_OPTIONS
from kinesis_efo_tools.manifest_schema import SCHEMA
from scripts import diagrams, status
from scripts.alerts import rules
from scripts.grafana import dashboard
from scripts.picture import picture, recorded
from scripts.scenarios import page as scenarios

ROOT: Final = Path(__file__).resolve().parents[1]


def summary(title: str, options: Iterable[Option]) -> str:
    """A Markdown table of options, with their meaning."""
    rows = [f"| `{option.name}` | {option.default} | {option.meaning} |" for option in options]
    return "\n".join([f"| {title} | default | |", "|---|---|---|", *rows])


def reference(title: str, names: Container[str]) -> str:
    """A Markdown table of options for reading and writing: the rule for their values, and their meaning, with who uses them unless streaming queries alone do."""
    uses: dict[Option, list[str]] = {}
    for option in SOURCE_OPTIONS:
        uses[option] = ["streaming"] if option.name in STREAMING else ["streaming", "batch"]
    for option in SINK_OPTIONS:
        uses.setdefault(option, []).append("writing")
    rows = []
    for option, use in uses.items():
        if option.name in names:
            of = "" if use == ["streaming"] else "*all*: " if len(use) == 3 else f"*{', '.join(use)}*: "
            # Outside of code, what is in angle brackets is a tag.
            rule = option.rule.replace("<", "&lt;")
            rows.append(f"| `{option.name}` | {rule} | {option.default} | {of}{option.meaning} |")
    return "\n".join([f"| {title} | value | default | |", "|---|---|---|---|", *rows])


def metrics() -> str:
    """The metrics as a Markdown table."""
    rows = [
        f"| `{metric.name}`<br>`{metric.cloudwatch}` | {metric.kind.value}, {metric.unit} | "
        f"{', '.join(f'`{name}`' for name in metric.attributes) or '-'} | {metric.meaning} |"
        for metric in METRICS
    ]
    return "\n".join(["| OpenTelemetry, CloudWatch | kind, unit | attributes | |", "|---|---|---|---|", *rows])


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
        "BatchKeywords(TypedDict": ("The type of a dict of options for `read`.", read.keys() - STREAMING, read),
        "StreamKeywords(BatchKeywords": (
            "The type of a dict of options for `read_stream`.",
            read.keys() & STREAMING,
            read,
        ),
        "SinkKeywords(TypedDict": (
            'The type of a dict of options for the sink, for `writeStream.format("kinesis-efo").options(**options)`.',
            written.keys(),
            written,
        ),
    }
    lines = [
        '"""The options as keyword arguments, for type checkers and editors. Generated from the tables of options."""',
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


COMMON: Final = ("manifest", "streams", "readMode", "startingPosition", "maxBytesPerTrigger", "fetchers")
"""The options that README shows: those that most jobs need."""

EVERYONE: Final = {
    "manifest", "streamArn", "consumerArn", "leaseTable", "streams", "stream", "readMode", "startingPosition", "endingPosition",
    "maxBytesPerTrigger", "maxRecordsPerTrigger", "failOnDataLoss", "deaggregate", "fetchers", "catchUp", "ordered",
    "aggregate", "failOnError", "region", "roleArn",
}  # fmt: skip
OPERATORS: Final = {
    "newStreamPosition", "removedStreams", "acceptDataLoss", "maxShardSkew", "bufferBytes", "slowQueries", "maxShardRate",
    "fetcherHost", "fetcherPort", "leaseTimeout", "retryTimeout", "endpointUrl", "externalId", "awsProfile",
    "credentialProvider", "metricsExport",
}  # fmt: skip
EXPERTS: Final = {option.name for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)} - EVERYONE - OPERATORS

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
    "docs/metrics.md": (metrics(),),
    "docs/manifest.md": (manifest(),),
}
"""The tables of each page."""


WHOLE: Final[Mapping[str, Callable[[], str]]] = {
    "docs/dashboards/kinesis-efo.json": dashboard,
    "docs/dashboards/kinesis-efo.rules.yaml": rules,
    "docs/top.svg": picture,
    "docs/quickstart.svg": recorded,
    "docs/images/top-queries.svg": partial(picture, queries=3),
    "docs/images/parts.svg": diagrams.parts,
    "docs/images/cluster.svg": diagrams.cluster,
    "docs/images/micro-batch.svg": diagrams.micro_batch,
    "docs/images/reshard.svg": diagrams.reshard,
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
