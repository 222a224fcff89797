"""``kinesis-efo tail``: prints a stream's records. Does not register consumers, store positions or use an application's consumer."""

from __future__ import annotations

import asyncio
import re
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import BinaryIO

from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import UsageError, visible
from kinesis_efo.kinesis.topology import explained
from kinesis_efo.options import AwsSettings
from kinesis_efo.options.readers import refusal
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.units import format_size, parse_time
from kinesis_efo_tools.cli import arguments, output, times
from kinesis_efo_tools.cli.commands.tail import Tail as Given
from kinesis_efo_tools.cli.ending import forced_end
from kinesis_efo_tools.cli.failing import CommandExit
from kinesis_efo_tools.cli.status_line import StatusLine
from kinesis_efo_tools.cli.stream_choice import Choice, choose
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.lag import reported
from kinesis_efo_tools.operate.record_format import Format, RecordFilter, TailRecord
from kinesis_efo_tools.operate.tailing import Tail, Until, before_last, stream_access

_IN_USE = timedelta(minutes=3)
_CONCURRENT_SHARDS = 32


def tail(given: Given) -> None:
    if given.last is not None and given.start is not None:
        raise UsageError("--last and --from exclude each other: give one of them")
    for check, text in ((_start, given.start), (_until, given.until)):
        if text is not None:
            check(text, SystemClock().time())
    seconds = None if given.stop_after is None else arguments.seconds("--for", given.stop_after)
    wanted = RecordFilter(given.key, _pattern(given.grep))
    forced_end.code = output.ExitCode.OK
    printer = _Printer(Format.JSON if given.as_json else given.how, wanted, given.limit)
    try:
        chosen = choose(given.aws, given.stream, given.manifest, given.consumer_arn)
        earliest, latest = asyncio.run(_kinesis_time(given.aws, chosen))
        position = _start(given.start or "LATEST", earliest)
        end = None if given.until is None else _until(given.until, latest)
        covered = _Range(position, given.last, end, given.shard or ())
        asyncio.run(_run(given.aws, chosen, covered, printer, seconds, given.take_over))
    except KeyboardInterrupt:
        pass  # users normally end the command with Ctrl-C
    finally:
        printer.status.clear()
    output.remark(f"{output.count(printer.printed, 'record')} printed, {printer.read:,} read")


@dataclass(frozen=True, slots=True)
class _Range:
    """The part of the stream to read.

    Attributes:
        start: Where to start reading, unless `last` is set.
        last: Start with this many of the newest records of each open shard; None to start at `start`.
        until: Where to stop reading, in epoch seconds; None to read until interrupted.
        shards: The ids of the shards to read; empty for all shards.
    """

    start: Position
    last: int | None
    until: float | None
    shards: Sequence[str]


class _Printer:
    """Filters, prints and counts records.

    The event `enough` is set to stop printing. `closed` is whether the program that reads the output has closed its pipe.
    """

    def __init__(self, how: Format, wanted: RecordFilter, limit: int | None) -> None:
        self.enough = asyncio.Event()
        self.status = StatusLine()
        self._write = _on_terminal if how is Format.RAW and sys.stdout.isatty() else how.write
        self._wanted = wanted
        self._limit = limit
        self._out = sys.stdout.buffer
        self._pipe = _descriptor(self._out)
        self.closed = False
        self.printed = self.read = self.bytes = 0

    def take(self, records: list[TailRecord]) -> None:
        self.read += len(records)
        self.bytes += sum(len(record.data) for record in records)
        found = [record for record in records if self._wanted.has(record)]
        if self._limit is not None:
            found = found[: self._limit - self.printed]
        if found:
            self.status.clear()
            try:
                self._out.write(b"".join(map(self._write, found)))
                self._out.flush()
            except BrokenPipeError:
                self._close()
                return
        self.printed += len(found)
        if self._limit is not None and self.printed >= self._limit:
            self.enough.set()

    def check_reader(self) -> None:
        """Detect that the program that reads the output has closed its pipe, even if there are no records to write."""
        if hasattr(select, "poll") and self._pipe is not None:
            poll = select.poll()
            poll.register(self._pipe, 0)
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                self._close()

    def _close(self) -> None:
        self.closed = True
        self.enough.set()


def _on_terminal(record: TailRecord) -> bytes:
    text = record.data.decode(errors="backslashreplace")
    return visible(text, keep="\t\n", most=len(text)).encode() + b"\n"


def _descriptor(out: BinaryIO) -> int | None:
    try:
        return out.fileno()
    except OSError:
        return None


async def _kinesis_time(aws: AwsSettings, chosen: Choice) -> tuple[float, float]:
    """Return a lower and an upper bound of the current time by Kinesis' clock. Records written so far arrived before the upper bound."""
    async with Access(aws, chosen.region) as access:
        return await access.kinesis_time(chosen.ref.stream_arn), access.clock.latest


async def _run(
    aws: AwsSettings,
    chosen: Choice,
    covered: _Range,
    printer: _Printer,
    seconds: float | None,
    take_over: bool,
) -> None:
    loop = asyncio.get_running_loop()
    # Handle SIGTERM like SIGINT. loop.add_signal_handler would replace the pipe that `ended_by_interrupt` needs to detect Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(printer.enough.set))
    if not take_over:
        await _refuse_used_consumer(aws, chosen)
    async with (
        Access(aws, chosen.region) as clients,
        stream_access(aws, chosen.region, chosen.ref, chosen.source, SystemClock()) as access,
    ):
        await clients.kinesis_time(chosen.ref.stream_arn)
        until = None if covered.until is None else Until(covered.until, clients.clock, printer.enough.set)
        tailing = Tail(access, chosen.ref.name, printer.take, covered.shards, until)
        begin = None if covered.last is None else _before_last(clients, chosen, covered.last)
        reading = asyncio.create_task(tailing.run(covered.start, begin))
        showing = asyncio.create_task(_show_status(tailing, printer))
        enough = asyncio.create_task(printer.enough.wait())
        try:
            await asyncio.wait({reading, enough}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
                output.remark("every shard has ended")
        finally:
            for task in (reading, showing, enough):
                task.cancel()
            await asyncio.gather(reading, showing, enough, return_exceptions=True)


def _before_last(clients: Access, chosen: Choice, count: int) -> Callable[[str], Awaitable[Position]]:
    slots = asyncio.Semaphore(_CONCURRENT_SHARDS)

    async def begin(shard: str) -> Position:
        async with slots:
            kinesis = await clients.client("kinesis")
            found = before_last(kinesis, clients.clock, chosen.ref.stream_arn, shard, count)
            return await explained(found, chosen.ref, chosen.source)

    return begin


async def _show_status(tailing: Tail, printer: _Printer) -> None:
    read, size = 0, 0
    while True:
        await asyncio.sleep(1)
        printer.check_reader()
        rate, volume = printer.read - read, printer.bytes - size
        read, size = printer.read, printer.bytes
        behind = tailing.seconds_behind
        lag = "no event yet" if behind is None else f"{behind:.1f} s behind"
        printer.status.show(
            f"{printer.printed:,} of {read:,} records | {rate:,}/s | {format_size(round(volume))}/s | "
            f"{output.count(tailing.open_shards, 'shard')} | {lag}"
        )


async def _refuse_used_consumer(aws: AwsSettings, chosen: Choice) -> None:
    """Raise CommandExit with `ExitCode.REFUSED` if the consumer belongs to the manifest's application, or was used recently."""
    if chosen.ref.polled:
        return
    if chosen.application is not None:
        raise _refused(
            f"{chosen.ref.consumer_arn} is the consumer of application {chosen.application}: reading with it would disconnect the "
            "application"
        )
    async with Access(aws, chosen.region) as access:
        found, reasons = await reported(access, {"it": chosen.ref}, SystemClock().time(), _IN_USE)
    for reason in reasons:
        output.remark(f"it is unknown whether the consumer is in use: {reason}")
    if found:
        raise _refused(f"{chosen.ref.consumer_arn} was in use in the last {_IN_USE.total_seconds() / 60:.0f} minutes")


def _refused(why: str) -> CommandExit:
    return CommandExit(
        output.ExitCode.REFUSED, f"{why}. Declare a consumer for this, read without one, or use --take-over"
    )


def _start(text: str, now: float) -> Position:
    name, _, rest = text.strip().partition(":")
    times.check_unit("--from", text)
    try:
        match name.upper():
            case "LATEST" if not rest:
                return Position.at_timestamp(round(now * 1000))
            case "TRIM_HORIZON" if not rest:
                return TRIM_HORIZON
            case "AT_TIMESTAMP":
                return Position.at_timestamp(parse_time(rest))
        return Position.at_timestamp(times.at_or_ago(text, now))
    except ValueError as error:
        rule = "LATEST, TRIM_HORIZON, a time (ISO 8601 or epoch ms, also after AT_TIMESTAMP:) or a duration such as 10m"
        raise UsageError(f"--from {refusal(error, rule, text)}") from None


def _until(text: str, now: float) -> float:
    times.check_unit("--until", text)
    try:
        return times.at_or_ago(text, now) / 1000
    except ValueError as error:
        rule = "a time (ISO 8601 or epoch ms), a duration ago such as 10m, or now"
        raise UsageError(f"--until {refusal(error, rule, text)}") from None


def _pattern(text: str | None) -> re.Pattern[bytes] | None:
    try:
        return None if text is None else re.compile(text.encode())
    except re.error as error:
        raise UsageError(f"--grep must be a regular expression; got {text!r}: {error}") from None
