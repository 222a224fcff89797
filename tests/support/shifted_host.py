"""A query in a process of its own, as on a host whose clock is off: `python -m tests.support.shifted_host OPTIONS`, under libfaketime.

It does what its input says, and answers each line with one: `until N` reads until it has N rows and tells their data, `poll S` reads for
so many seconds and tells this host's time. An empty line ends it.
"""

import json
import logging
import sys
import time
from types import SimpleNamespace
from typing import Any

from tests.support.fetching import reading


def main(options: dict[str, str]) -> None:
    """Read as the input says.

    Args:
        options: Source options.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    world: Any = SimpleNamespace(options=options)
    with reading(world, **options) as query:
        _tell({"start": [at.value / 1000 for at in query.offset.values()], "now": time.time()})
        for line in sys.stdin:
            match line.split():
                case ["until", rows]:
                    _tell(sorted(int(row.data) for row in query.until(int(rows), 120)))
                case ["poll", seconds]:
                    end = time.monotonic() + float(seconds)
                    while time.monotonic() < end:
                        query.batch()
                    _tell({"now": time.time()})
                case _:
                    return


def _tell(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
