"""How the process that Spark keeps for a reader learns why it is stopped, and what becomes of its output."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kinesis_efo.positions import Position
from kinesis_efo.spark.lifecycle import spark_waits


def told(error: BaseException | None, *, ours: bool) -> bool:
    """What `stop` finds, as Spark calls it: in the `finally` of what may have failed."""
    found = False
    try:
        try:
            if ours:
                Position.parse("nonsense")
            if error is not None:
                raise error
        finally:
            found = spark_waits()
    except (ValueError, OSError, EOFError):
        pass
    return found


def test_spark_waits_for_an_error_of_this_library() -> None:
    assert told(None, ours=True)


@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError(), BrokenPipeError(), None])
def test_nobody_waits_where_spark_has_closed_the_connection(error: Exception | None) -> None:
    assert not told(error, ours=False)


def test_what_is_written_is_handed_over_by_lines() -> None:
    program = (
        "import os, sys, threading\n"
        "from kinesis_efo.spark.lifecycle import hand_over_output\n"
        "kept = os.dup(1)\n"
        "lines, enough = [], threading.Event()\n"
        "def say(line):\n"
        "    lines.append(line)\n"
        "    if len(lines) == 3:\n"
        "        enough.set()\n"
        "hand_over_output(say)\n"
        "print('one', flush=True)\n"
        "sys.stderr.write('two\\n')\n"
        "os.write(2, b'thr\\xffee\\n')\n"
        "assert enough.wait(30)\n"
        "os.write(kept, repr(lines).encode())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout == repr(["one\n", "two\n", "thr\ufffdee\n"])
