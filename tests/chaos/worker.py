"""A fetcher in a process of its own, read as Spark would read it. Takes one argument, JSON; says what happens, a line each.

READY, then for every micro-batch `READ <begun> <rows>`, where `begun` is on the monotonic clock that all processes share, then
`FAILED <error>` where it comes to that. Ends when a line comes on stdin, `STOPPED` last.
"""

import json
import logging
import select
import sys
import time
from typing import Any

from kinesis_efo.aws import SyncClients
from kinesis_efo.calls.address import Listening
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.manifest import resolve_manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.positions import Offset
from kinesis_efo.tasks.client import FetcherClient
from tests.support.fetching import QUICK, LocalRun, Reading, first_offset


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


def read(reader: Reading) -> None:
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        begun = time.monotonic()
        rows = reader.batch()
        if rows:
            say("READ", begun, len(rows))


def main(config: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    options = SourceOptions.parse(config["options"])
    runtime = LocalRun(
        resolve_manifest(options, SyncClients(options.aws).client), options, Listening(), "the secret", limits=QUICK
    )
    runtime.start()
    try:
        with FetcherClient(runtime.address, runtime.secret) as client:
            offset = Offset.from_dict(config["offset"]) if "offset" in config else first_offset(runtime)
            reader = Reading(runtime, client, offset)
            say("READY", runtime.address)
            read(reader)
    except KinesisEfoError as error:
        say("FAILED", type(error).__name__, str(error))
        sys.stdin.readline()
    finally:
        runtime.stop()
        say("STOPPED")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
