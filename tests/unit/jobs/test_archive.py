"""The parts of the archive job that need no Spark session."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from pyspark.sql.streaming.listener import StreamingQueryProgress

from jobs.archive import generation_ended, pairs, reason


def test_options_may_hold_equals_signs() -> None:
    assert pairs(["externalId=a=b", "pollTimeout=1s"]) == {"externalId": "a=b", "pollTimeout": "1s"}


@pytest.mark.parametrize("text", ["bufferBytes", "=64m", ""])
def test_an_option_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="NAME=VALUE") as refused:
        pairs([text])
    assert repr(text) in str(refused.value)


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="given twice: '64m' and '1g'"):
        pairs(["bufferBytes=64m", "BufferBytes=1g"])


def _progress(start: dict[str, Any] | None, end: dict[str, Any]) -> StreamingQueryProgress:
    def offset(streams: dict[str, Any]) -> dict[str, Any]:
        return {"version": 1, "streams": streams}

    source = {"startOffset": None if start is None else offset(start), "endOffset": offset(end)}
    return cast(StreamingQueryProgress, SimpleNamespace(json=json.dumps({"sources": [source]})))


@pytest.mark.parametrize(
    ("start", "end", "ended"),
    [
        ({"a": {"0": "AFTER:1"}}, {"a": {"0": "AFTER:9"}}, False),
        ({"a": {"0": "AFTER:1"}}, {"a": {"0": "SHARD_END"}}, True),
        ({"a": {"0": "SHARD_END"}}, {"a": {"1": "TRIM_HORIZON", "2": "TRIM_HORIZON"}}, True),
        ({"a": {"0": "AFTER:1"}, "b": {"0": "AFTER:1"}}, {"a": {"0": "AFTER:1"}, "b": {"0": "SHARD_END"}}, True),
        (None, {"a": {"0": "AFTER:9"}}, False),
        (None, {"a": {"0": "SHARD_END"}}, True),
    ],
)
def test_another_run_is_due_where_shards_ended(start: dict[str, Any] | None, end: dict[str, Any], ended: bool) -> None:
    assert generation_ended(_progress(start, end)) is ended


def test_no_progress_means_nothing_was_there() -> None:
    assert not generation_ended(None)


def test_the_reason_is_ours_where_spark_wraps_it() -> None:
    wrapped = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in latestOffset\n'
        "kinesis_efo.errors.ConsumerNotFoundError: consumer arn:aws:... does not exist (any more)\n"
        "\n\tat org.apache.spark.sql.Something\n"
    )
    assert reason(RuntimeError(wrapped)) == "ConsumerNotFoundError: consumer arn:aws:... does not exist (any more)"


def test_other_reasons_are_spark_s_own_first_words() -> None:
    assert (
        reason(RuntimeError("[PATH_NOT_FOUND] no path\n\nDriver stacktrace:\n..."))
        == "RuntimeError: [PATH_NOT_FOUND] no path"
    )
