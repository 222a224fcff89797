"""Assigns a run's shards to its fetchers (option `fetchers`) and handles the fetchers' calls, in the run's event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from msgspec.structs import replace

from kinesis_efo import __version__
from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.wire import unpack_error
from kinesis_efo.clock import Clock, within
from kinesis_efo.cluster.members import Member, Members
from kinesis_efo.cluster.shares import Rates
from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.fetcher import Coordinator
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import Order, Report, ReportReply, RowKey, ShardNews, Work, WorkRequest
from kinesis_efo.positions import ShardKey
from kinesis_efo.run.table import Table

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
_WITHDRAW_SECONDS: Final = 10.0
_REPORTS: Final = 200
"""Maximum number of reports per second, for all fetchers together. Without a limit, each event of a busy shard would cause a report."""


class Assignments:
    """Assigns the shards of `table` to the current fetchers, and handles the fetchers' calls.

    Args:
        table: The run's buffers.
        streams: The run's streams.
        seconds: Returns the seconds until the run's lease on a stream expires. Fetchers must then stop reading the stream.
        timeout: Seconds without a request after which a fetcher counts as dead. By then, it has stopped reading.
    """

    def __init__(
        self,
        table: Table,
        streams: Streams,
        coordinator: Coordinator,
        seconds: Callable[[str], float],
        timeout: float,
        clock: Clock,
    ) -> None:
        self.members: Final = Members(timeout)
        self.changed = Signal()  # Notified when a shard moves to another fetcher, or a fetcher has closed a shard
        self.stopping = False
        self.empty_since = clock.monotonic()  # When the run was created or lost its last fetcher, monotonic seconds
        self._table = table
        self._coordinator = coordinator
        self._streams = streams
        self._seconds = seconds
        self._clock = clock
        self._rates = Rates(clock.monotonic())
        self._shared: frozenset[ShardKey] = frozenset()

    def forward_orders(self, shards: Collection[ShardKey]) -> None:
        """Send each shard's fetcher its current instruction (`Order`), which specifies the events to buffer."""
        if any((key in self._table.shared) != (key in self._shared) for key in shards):
            self.distribute()
        for member in {self.members.owner(key) for key in shards}:
            if member is not None:
                member.changed.notify()

    async def wait_closed(self, shards: Collection[ShardKey]) -> None:
        """Wait up to 10 seconds for the fetchers to close their subscriptions to these shards."""
        give_up_at = self._clock.monotonic() + _WITHDRAW_SECONDS
        while self.members.closing & set(shards) and self._clock.monotonic() < give_up_at:
            await within(self._clock, TICK_SECONDS, self.changed.wait())

    async def work(self, request: WorkRequest) -> Work:
        """Reply to a request for work once the fetcher's shards or instructions (`Order`) have changed, or after `request.wait` seconds."""
        name = request.name
        if request.version != __version__:
            raise FetcherError(
                f"the fetcher on host {request.host} has kinesis-efo {request.version or 'of an earlier version'}, its run has {__version__}: "
                "install the same version on the driver and all executors"
            )
        if self.stopping:
            if not request.revision:
                self.remove(name)
            return Work("over")
        is_new = self.members.get(name) is None
        member = self.members.register_request(request, self._clock.monotonic())
        if isinstance(member, Work):
            return member
        if is_new:
            logger.info("fetcher %s has joined", member)
            self.distribute()
        elif not request.revision:
            # The fetcher lost the connection and has stopped reading its shards. Restart the buffers where their retained events begin.
            self._table.reopen(member.shards)
        self.changed.notify()
        if member.revision == request.revision and not member.unsent(self._orders(member)):
            await within(self._clock, request.wait, member.changed.wait())
        if self.stopping:
            return Work("over")
        return self._work(member, request.revision) if self.members.get(name) is member else Work("unknown")

    def _orders(self, member: Member) -> dict[ShardKey, Order]:
        found = {}
        for key in member.shards:
            if (row := self._table.shared.get(key)) is not None:
                if row.facts is None:
                    row.facts = self._coordinator.facts(row.key, row.start)
                found[key] = replace(row.order(), known=row.facts)
        return found

    def _work(self, member: Member, revision: int) -> Work:
        shards = None if member.revision == revision else sorted(member.shards)
        orders = member.send(self._orders(member))
        return Work(
            "working",
            member.revision,
            shards,
            {stream: max(0.0, self._seconds(stream)) for stream in self._streams.streams},
            member.number,
            orders,
            {name: self._streams.stream(name).ref for name in {key.stream for key in shards or ()}},
        )

    async def report(self, report: Report) -> ReportReply:
        """Process a fetcher's report about the events that it has received."""
        member = self.members.get(report.name)
        if member is None:
            return ReportReply(known=False)
        if not member.accept_report(report.number):
            return ReportReply(known=True, again=True, revision=member.revision)
        # Ignore reports about shards that are no longer assigned to this fetcher.
        mine = [news for news in report.shards if self.members.owner(news.key) is member]
        known = [self._apply_report(member, news) for news in mine]
        member.replied_at = self._clock.monotonic()
        wakes = any(not self._table.shared[news.key].index.idle for news in mine if news.key in self._table.shared)
        self._table.on_reports({news.key for news in mine}, wakes=wakes)
        if report.failure:
            error = unpack_error(report.failure)
            # Add the fetcher's host to the message, because the error may occur only on that host.
            said = type(error)(f"{error} (reported by the fetcher on host {member.request.host})")
            self._coordinator.failed(RowKey(None, ShardKey("", "")), said)
        for query, packed in report.failures.items():
            self._coordinator.failed(RowKey(query, ShardKey("", "")), unpack_error(packed))
        pause = len(self.members) / _REPORTS
        return ReportReply(known=True, again=not all(known), revision=member.revision, pause=pause)

    def _apply_report(self, member: Member, news: ShardNews) -> bool:
        """Process a report's entry for one shard. Return False if the previous report about the shard was lost."""
        size = self._table.apply_report(news, member.request.name, member.request.budget, member.replied_at)
        if size is None:
            return False
        self._rates.add(news.key, size)
        if news.children:
            self._streams.add_children(news.key, news.children)
        return True

    def address(self, key: ShardKey) -> FetcherAddress | None:
        """Return the address of a shard's fetcher; None if the shard is not assigned."""
        member = self.members.owner(key)
        return member.request.address if member is not None else None

    def distribute(self) -> None:
        """Distribute the shards over the fetchers, so that all receive about the same number of bytes per second."""
        before = {key: self.members.owner(key) for key in self._table.shared}
        self._shared = frozenset(before)
        self.members.distribute(self._rates.weights(before))
        moved = [key for key, owner in before.items() if owner is not None and self.members.owner(key) is not owner]
        self._table.reopen(moved)
        self.changed.notify()

    def measure(self) -> bool:
        """Update the measured bytes per second of each shard, if an update is due. Return whether the rates were updated."""
        return self._rates.tick(self._clock.monotonic())

    def remove(self, name: str) -> None:
        """Remove a fetcher that is dead or has ended. Call `distribute` afterwards to reassign its shards."""
        member = self.members.remove(name)
        if member is None:
            return
        self._table.reopen(member.shards)
        if not len(self.members):
            self.empty_since = self._clock.monotonic()
        self.changed.notify()
        if not self.stopping:
            logger.warning("fetcher %s is gone; it read %d shards", member, len(member.shards))

    async def dropped(self, name: str) -> None:
        """Remove a fetcher whose connection broke while it waited for work: its process has ended or is unreachable."""
        if not self.stopping and self.members.get(name) is not None:
            self.remove(name)
            self.distribute()

    async def stop(self) -> None:
        """Make all fetchers stop, and wait until each has reported that it has stopped, or was removed."""
        self.stopping = True
        for member in self.members:
            member.changed.notify()
        while len(self.members):
            await self.changed.wait()
