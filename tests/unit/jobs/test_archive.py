"""The parts of the archive job that need no Spark session."""

from __future__ import annotations

import pytest
import typer

from jobs.archive import pairs, reason


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
