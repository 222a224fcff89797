"""`python -m benchmarks [names]`: runs all benchmarks, or those named, and prints one table; `--json` for scripts, `--against` a revision
to compare two versions of the library.

Ratios compare values of the same run, measured in turns; absolute figures depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks import against, stages
from benchmarks.figures import STEADY, Figure
from benchmarks.machine import CREDENTIALS
from benchmarks.peers.table import table
from scripts import diagrams

BENCHMARKS: Final = {
    "decoding": ("benchmarks.decoded", "Frames to Arrow batches"),
    "fetching": ("benchmarks.fetching", "Loopback HTTP to the fetcher's buffer"),
    "consumers": ("benchmarks.consumers", "Events to records, beside AWS' SDKs"),
    "peers": ("benchmarks.peers.measured", "Beside AWS' and Flink's readers"),
    "memory": ("benchmarks.memory", "The memory of a fetcher whose reader stands still"),
    "http2": ("benchmarks.http2", "HTTP/2 against HTTP/1.1"),
    "connecting": ("benchmarks.connecting", "300 subscriptions, 50 ms away"),
    "idle": ("benchmarks.idle", "A trigger with no data"),
    "cluster": ("benchmarks.cluster", "Planning for thousands of shards, 32 fetchers"),
    "processes": ("benchmarks.processes", "What a query's processes take, Kinesis simulated"),
    "takeover": ("benchmarks.takeover", "A run's process is killed: until its queries read again"),
    "subscriptions": ("benchmarks.subscriptions", "1,000 real subscriptions to the local AWS"),
    "leases": ("benchmarks.leases", "What a run asks of DynamoDB"),
    "reading": ("benchmarks.reading", "Kinesis to Spark's noop sink, local[2]"),
    "batch": ("benchmarks.batch", "A batch read and a loop over GetRecords"),
    "latency": ("benchmarks.latency", "PutRecords to foreachBatch, 1,000 records/s"),
    "stages": ("benchmarks.stages", "PutRecords to foreachBatch, stage by stage"),
    "micro_batch": ("benchmarks.micro_batch", "The CPU of a micro-batch, the memory of its processes"),
    "triggers": ("benchmarks.triggers", "What a query takes by its trigger"),
    "available_now": ("benchmarks.available_now", "What a query takes that reads what is there, and ends"),
    "start": ("benchmarks.start", "spark-submit to the first archived micro-batch"),
    "profile": ("benchmarks.profile", "A micro-batch's time, CPU and memory, beside Spark's own source"),
    "metrics": ("benchmarks.metrics", "What watching a fetcher costs"),
    "producer": ("benchmarks.producer", "Records into Kinesis"),
    "neighbours": ("benchmarks.neighbours", "Shards beside one whose reader is stuck"),
}
"""The benchmarks by name: the module whose `run` measures it, and its title."""


def main(arguments: list[str]) -> None:
    """Run the benchmarks that the command line names, and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="The benchmarks, as one table.")
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(BENCHMARKS)}; all by default")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of the table")
    form.add_argument("--page", action="store_true", help="renew what a page has of them; peers or stages only")
    form.add_argument("--against", metavar="REV", help="compare with the library of a commit or tag, by turns")
    parser.add_argument("--pairs", type=int, default=against.PAIRS, help="with --against: how many; 5 or more")
    wanted = parser.parse_args(arguments)
    if unknown := [name for name in wanted.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if wanted.page and wanted.names not in (["peers"], ["stages"]):
        parser.error("only peers and stages are on a page")
    if wanted.pairs < against.FEWEST_PAIRS:
        parser.error(f"--pairs {wanted.pairs} tell nothing: {against.FEWEST_PAIRS} or more")
    if wanted.against and (unknown := [name for name in wanted.names if name not in against.ONCE]):
        parser.error(f"{', '.join(unknown)} cannot be compared; {', '.join(against.ONCE)} can")
    os.environ.update(CREDENTIALS)
    if wanted.against:
        sys.exit(not against.compare(wanted.against, wanted.names, wanted.pairs))
    progress = Console(stderr=True)
    found: dict[str, list[Figure]] = {}
    for name in wanted.names or BENCHMARKS:
        module, title = BENCHMARKS[name]
        begin = time.monotonic()
        run: Callable[[], list[Figure]] = import_module(module).run
        found[name] = run()
        progress.print(f"{name}: {title.lower()}, measured in {time.monotonic() - begin:.0f} s", highlight=False)
    if wanted.page and "stages" in found:
        stages.PICTURE.write_text(diagrams.latency(stages.percentiles(found["stages"])))
    elif wanted.page:
        print(table(found["peers"]))
    elif wanted.json:
        print(json.dumps({name: [figure.as_dict() for figure in figures] for name, figures in found.items()}, indent=1))
    else:
        console = Console()
        console.width = max(console.width, 140)
        console.print(_table(found))


def _table(found: dict[str, list[Figure]]) -> Table:
    table = Table(
        title="kinesis-efo benchmarks",
        caption="unsteady: how far a run is from the median, where that is more than "
        f"{STEADY:.0%}; ratio: median of a figure's ratios, run by run, to the first one of its case",
    )
    table.add_column("benchmark", style="bold", max_width=22)
    for column in ("case", "what"):
        table.add_column(column)
    for column in ("min", "median", "max"):
        table.add_column(column, justify="right")
    table.add_column("unit")
    table.add_column("unsteady", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("goal", justify="right")
    for name, figures in found.items():
        table.add_section()
        for row, figure in enumerate(figures):
            values = (min(figure.runs), median(figure.runs), max(figure.runs))
            mark = "" if figure.met is None else "[green] met" if figure.met else "[red] missed"
            new_case = row == 0 or figure.case != figures[row - 1].case
            table.add_row(
                "" if row else name,
                figure.case if new_case else "",
                figure.what,
                *map(_number, values),
                figure.unit,
                "" if figure.steady else f"{figure.spread:.0%}",
                f"{median(figure.ratios):.2f}" if figure.ratios else "",
                f"{figure.goal or ''}{mark}",
            )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main(sys.argv[1:])
