"""``kinesis-efo put``: writes lines or files into a stream with the library's producer, at least once."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from botocore.exceptions import ClientError

from kinesis_efo.aws import COMMAND_SECONDS, INTERACTIVE_CONFIG, SyncClients
from kinesis_efo.aws_errors import CALL_ERRORS, describe, is_foreign
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import (
    ConfigurationError,
    KinesisEfoError,
    RecordRefusedError,
    StreamError,
    UsageError,
    naming,
)
from kinesis_efo.options import AwsSettings
from kinesis_efo.producer import Producer, ProducerSettings
from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.commands.put import Put
from kinesis_efo_tools.cli.ending import forced_end
from kinesis_efo_tools.cli.failing import CommandExit
from kinesis_efo_tools.cli.status_line import StatusLine
from kinesis_efo_tools.cli.stream_choice import Choice, choose
from kinesis_efo_tools.operate.findings import failed_call


class _Piece(NamedTuple):
    """The data of one record, and its place in the input, for error messages."""

    data: bytes
    place: str


def put(given: Put) -> None:
    if given.key is not None and given.key_field is not None:
        raise UsageError("--key and --key-field exclude each other: give one of them")
    if given.whole and not given.files:
        raise UsageError("--whole needs files: name at least one")
    patience = arguments.seconds("--retry-timeout", given.retry_timeout)
    chosen = choose(given.aws, given.stream, given.manifest)
    settings = ProducerSettings(
        ordered=given.ordered, aggregate=given.aggregate, fail_on_error=not given.skip_refused, retry_timeout=patience
    )
    pieces = _whole_files(given.files or []) if given.whole else _lines(given.files or [])
    in_region = replace(given.aws, region=given.aws.region or chosen.region)
    _require_answer(in_region, chosen)
    producer = Producer(chosen.ref.stream_arn, settings=settings, aws=in_region)
    began = SystemClock().monotonic()
    try:
        complete = _put_all(producer, pieces, _partition_key(given.key, given.key_field))
    except KinesisEfoError:
        _remark_written(producer, "the error")
        raise
    except KeyboardInterrupt:  # a second Ctrl-C, while the producer was flushing
        _remark_written(producer, "the interruption")
        raise output.stop(output.ExitCode.INTERRUPTED) from None
    metrics = producer.metrics
    seconds = SystemClock().monotonic() - began
    output.answer(
        given.as_json,
        {
            "stream": chosen.ref.stream_name,
            "records": metrics.records_written,
            "bytes": metrics.bytes_written,
            "refused": metrics.records_refused,
            "retries": dict(metrics.retries),
            "seconds": round(seconds, 3),
            "complete": complete,
        },
        lambda: (
            f"{output.count(metrics.records_written, 'record')}, {metrics.bytes_written:,} bytes (keys included) "
            f"written to {chosen.ref.stream_name} in {seconds:.1f} s"
        ),
    )
    if not complete:
        raise CommandExit(
            output.ExitCode.INTERRUPTED,
            "interrupted before the input's end; the last record that was read may not be written",
        )
    if metrics.records_refused:
        refused = output.count(metrics.records_refused, "record")
        raise CommandExit(output.ExitCode.FAILED, f"{refused} refused and left out")


def _require_answer(aws: AwsSettings, chosen: Choice) -> None:
    """Check that Kinesis itself responds; otherwise, the producer would retry for a long time. Raises StreamError if it does not."""
    try:
        with closing(SyncClients(aws, config=INTERACTIVE_CONFIG, seconds=COMMAND_SECONDS).client("kinesis")) as client:
            client.describe_stream_summary(StreamARN=chosen.ref.stream_arn)
    except CALL_ERRORS as error:
        # Ignore error responses from Kinesis: the producer does not need the permission for this call, and reports its errors itself.
        if isinstance(error, ClientError) and not is_foreign(error):
            return
        fix = failed_call("", error, "kinesis:PutRecords").fix
        raise StreamError(
            f"nothing was written to {chosen.ref.stream_arn}: {describe(error)}. To go on, {fix}"
        ) from error


def _put_all(producer: Producer, pieces: Iterator[_Piece], key_of: Callable[[_Piece], str]) -> bool:
    """Put all pieces, and wait until Kinesis has acknowledged them. Returns False if interrupted before the end of the input."""
    status, clock = StatusLine(), SystemClock()
    shown = clock.monotonic()
    forced_end.handled = 1  # the first Ctrl-C stops reading; the records that were read are still written
    with producer:
        try:
            for piece in pieces:
                try:
                    producer.put(piece.data, key_of(piece))
                except RecordRefusedError as error:
                    raise RecordRefusedError(f"{piece.place}: {error}") from error
                if (now := clock.monotonic()) - shown >= 1:
                    metrics, shown = producer.metrics, now
                    status.show(
                        f"{metrics.records_written:,} records written, {metrics.outstanding_records:,} under way"
                    )
        except KeyboardInterrupt:
            return False
        finally:
            status.clear()
    return True


def _lines(files: list[Path]) -> Iterator[_Piece]:
    """Read the lines of all files, or of standard input, without line endings."""
    if not files:
        with naming("standard input"):
            for number, line in enumerate(sys.stdin.buffer, 1):
                yield _Piece(_without_end(line), f"standard input, line {number}")
    for file in files:
        try:
            with file.open("rb") as opened:
                for number, line in enumerate(opened, 1):
                    yield _Piece(_without_end(line), f"{file}, line {number}")
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None


def _whole_files(files: list[Path]) -> Iterator[_Piece]:
    for file in files:
        try:
            yield _Piece(file.read_bytes(), str(file))
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None


def _without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line


def _partition_key(key: str | None, field: str | None) -> Callable[[_Piece], str]:
    """Return a function that returns a record's partition key: fixed, random, or taken from a field of the record."""
    if key is not None:
        return lambda _piece: key
    if field is None:
        return lambda _piece: uuid.uuid4().hex

    def of_field(piece: _Piece) -> str:
        try:
            document: Any = msgspec.json.decode(piece.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigurationError(f"{piece.place}: not JSON, which --key-field needs: {error}") from None
        if not isinstance(document, dict) or document.get(field) in (None, ""):
            raise ConfigurationError(f"{piece.place}: no field {field!r}, which --key-field names")
        value = document[field]
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    return of_field


def _remark_written(producer: Producer, event: str) -> None:
    metrics = producer.metrics
    if metrics.requests:
        written = output.count(metrics.records_written, "record")
        output.remark(f"kinesis-efo: {written} acknowledged before {event}; some of the later ones may be written, too")
