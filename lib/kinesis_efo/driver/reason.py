"""Finds this library's error message in a Spark error, among Python and Java tracebacks."""

from __future__ import annotations

import json
import re
import traceback
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JNetworkError

from kinesis_efo import errors
from kinesis_efo.driver.java import find_java
from kinesis_efo.errors import NOTE, KinesisEfoError, OptionsError

_OURS: Final = re.compile(
    # The message may have several lines, such as one for each invalid option. A line with `NOTE` and the error's data may follow.
    rf"^[ \t]*(?:[\w.]*\.)?kinesis_efo\.[\w.]*\.(?P<message>\w+: .*(?:\n(?!\s|={{3}} |{NOTE}).+)*)(?:\n{NOTE}(?P<data>.*}}))?",
    re.MULTILINE,
)
_RAISED: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?P<message>\S.*(?:\n(?!\s|={3} ).+)*)",
)
_SQL_STATES: Final = re.compile(r"(?:\s*SQLSTATE: \w+)+\s*$")
# Pattern for Spark's errors after a Python process has died. Spark shows the missing message of an EOFException as `null` or as nothing.
_GONE: Final = re.compile(
    r"java\.io\.EOFException(?!: )|Python worker exited unexpectedly|terminated with exception:\s*(?:null\b\s*)?(?:SQLSTATE|=== |\Z)"
    r"|\Anull\s*(?:=== |\Z)"
)
_END: Final = re.compile(r"\n\s*\n|\n\tat ")
_NO_LIBRARY: Final = re.compile(r"\[DATA_SOURCE_NOT_FOUND\] [^\n]*\bkinesis-efo\b|No module named 'kinesis_efo'")

_DAMAGED: Final = re.compile(r"Failed to read log file \S+?\. [^\n]*?(?= SQLSTATE|$)", re.MULTILINE)

# Parts of the messages of errors that Spark raises before it calls this library, and the messages to print instead.
_REFUSED: Final = (
    (
        "kinesis-efo does not support Update mode",
        (
            "the sink kinesis-efo can only append: use outputMode('append'), with a watermark if the query aggregates; or write the changed rows of "
            "outputMode('update') in foreachBatch, with rows.write.format('kinesis-efo').mode('append')"
        ),
    ),
    ('"kinesis-efo" cannot be written in the', "the sink kinesis-efo can only append: write with .mode('append')"),
    (
        "maximum arrow batch size should be greater than 0",
        (
            "with spark.sql.execution.arrow.maxRecordsPerBatch at 0 or below (no limit), Spark cannot read sources in Python such as kinesis-efo: "
            "set it to 10000, Spark's default"
        ),
    ),
)


def own_message(error: BaseException | str) -> str | None:
    """Extract this library's complete message, with the exception's name, from an error or its text. Returns None if there is none.

    >>> own_message(ValueError("Traceback ...\\nkinesis_efo.errors.OptionsError: 'a' is wrong\\n'b' is, too\\n SQLSTATE: 38000"))
    "OptionsError: 'a' is wrong\\n'b' is, too"
    """
    found = _found(error)
    return _SQL_STATES.sub("", found["message"]) if found else None


def _found(error: BaseException | str) -> re.Match[str] | None:
    # If Spark has not wrapped the error, its text does not contain the class name, so add this name.
    text = error if isinstance(error, str) else f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    found = list(_OURS.finditer(text))
    return found[-1] if found else None


def cause(error: BaseException | str | None) -> KinesisEfoError | None:
    """Return this library's error that Spark has wrapped in another error.

    Spark passes errors of Python sources on as text: in the `AnalysisException` of `load()` and `start()`, in a query's
    `StreamingQueryException`, and in a `QueryTerminatedEvent`.

    Args:
        error: The caught error, or the text in `event.exception` of a listener's `onQueryTerminated`.

    Returns:
        An error with the original class, message and data; None if the error is not from this library.

    >>> cause("Traceback ...\\nkinesis_efo.errors.DataLossError: shard orders:shardId-0: gone\\n SQLSTATE: 38000")
    DataLossError('shard orders:shardId-0: gone')
    >>> cause(ValueError("no")) is None
    True
    """
    seen: BaseException | None = error if isinstance(error, BaseException) else None
    while seen is not None:
        if isinstance(seen, KinesisEfoError):
            return seen
        seen = seen.__cause__ or seen.__context__
    if error is None or (found := _found(error)) is None:
        return None
    name, _, message = _SQL_STATES.sub("", found["message"]).partition(": ")
    kind = getattr(errors, name, KinesisEfoError)
    restored: KinesisEfoError = OptionsError(message.splitlines()) if kind is OptionsError else kind(message)
    return restored.restore(json.loads(found["data"])) if found["data"] else restored


def explanation(error: BaseException) -> str | None:
    """Return this library's message in an error, or an explanation of a Spark error with an unclear message; None for other errors."""
    text = str(error).strip()
    if own := own_message(error):
        return own
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, Py4JNetworkError | ConnectionError) and any(
        "py4j" in Path(each.filename).parts for each in frames
    ):
        return (
            "Spark's JVM has ended, and with it all queries. If nobody ended it, the system killed it because it needs more memory than its "
            "container or host has (`dmesg`, the container's OOMKilled, YARN's log say so), or it crashed (hs_err_pid*.log): give the "
            "driver more memory, or set spark.driver.memory lower than its container has. Nothing was lost: start the program again"
        )
    if "Python worker failed to connect back" in text:
        return (
            "a Python process that Spark started was not ready within ten seconds. The host is too busy if, for example, several queries "
            "start at once, each with its own processes: start each when the one before has its first micro-batch, or give the driver more "
            "cores. If an idle host shows this, too, `kinesis-efo doctor` checks the Python that Spark starts. Nothing was lost: start the query "
            "again"
        )
    if "[JAVA_GATEWAY_EXITED]" in text:
        java = find_java()
        return None if java.runs_spark else java.remedy
    if _NO_LIBRARY.search(text):
        return (
            "the Python that Spark starts has no kinesis_efo: activate the environment that has it, or set PYSPARK_PYTHON to its "
            "Python, and unset PYSPARK_DRIVER_PYTHON; `kinesis-efo doctor` says which Python Spark would start"
        )
    if damaged := _DAMAGED.search(text):
        return f"the checkpoint is damaged: {damaged[0]}; `kinesis-efo doctor --checkpoint` with its location says how to recover"
    if refused := next((remedy for part, remedy in _REFUSED if part in text), None):
        return refused
    if _GONE.search(text):
        return (
            "most likely, the system killed a Python process of Spark, which only saw the connection end (EOFException): the process needed more "
            "memory than its container or host has (`dmesg`, the container's OOMKilled, YARN's log say so). The process that "
            "plans this library's micro-batches needs about 150 MB and `bufferBytes`, and a worker about 150 MB and what your code needs: "
            "give the driver and the executors more spark.driver.memoryOverhead and spark.executor.memoryOverhead, or make bufferBytes "
            "smaller. Nothing was lost: start the query again"
        )
    return None


def reason(error: BaseException) -> str:
    """Return the text of an error for users: the result of `explanation`, or else the message of the last Python exception in the error's
    text, or else this text's first paragraph.

    >>> reason(RuntimeError("[PATH_NOT_FOUND] no path\\n\\nDriver stacktrace:\\n..."))
    'RuntimeError: [PATH_NOT_FOUND] no path'
    """
    text = str(error).strip()
    if explained := explanation(error):
        return explained
    if raised := _RAISED.findall(text):
        return _SQL_STATES.sub("", raised[-1])
    return f"{type(error).__name__}: {_END.split(text)[0]}".rstrip(": ")
