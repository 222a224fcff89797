"""From what the planner tells to the offset of the next micro-batch: which shards it reads, and which only ride along."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kinesis_efo.fetcher.progress import PollReply
from kinesis_efo.marks import Mark
from kinesis_efo.planner.ending import Ending
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, ShardRange


class Advance:
    """Plans the micro-batches of one query, one after the other.

    Args:
        ending: Where the query ends, if it does.
        idle_interval: Seconds after which the positions of idle shards are stored.
        last_records: Tells the last record of each of some ranges that end within an event.
        now: The time, monotonic seconds.

    Attributes:
        sizes: Bytes that the micro-batch has of each shard.
        data: About how many bytes of data are in them.
        quiet: Since when it is believed that nothing more is there, by shard, monotonic seconds.
    """

    def __init__(
        self,
        ending: Ending,
        idle_interval: float,
        last_records: Callable[[Sequence[ShardRange]], Mapping[ShardKey, int]],
        now: Callable[[], float],
    ) -> None:
        self.sizes: Mapping[ShardKey, int] = {}
        self.data = 0
        self.quiet: Final[dict[ShardKey, float]] = {}
        self._ending = ending
        self._idle_interval = idle_interval
        self._last_records = last_records
        self._now = now
        self._stored_idle_at = now()
        self._idle: dict[ShardKey, Position] = {}
        self._empty: dict[ShardKey, ShardRange] = {}

    def to(self, position: Offset, reply: PollReply, mark: Mark | None) -> Offset | None:
        """The offset after a reply, or None if the reply does not justify a micro-batch.

        Args:
            position: How far the query has come.
            reply: What the planner tells.
            mark: For an offset that has none, if there is one.
        """
        starting = [key for key in reply.starting if self._ending.begins(key)]
        justified = bool(starting)
        moved: dict[ShardKey, Position] = {}
        empty: dict[ShardKey, Position] = {}
        lasts: dict[ShardKey, int] = {}
        cut: list[ShardRange] = []
        sizes = {}
        data = 0
        for progress in reply.shards:
            key, whole = progress.key, progress.through
            if progress.quiet:
                self.quiet[key] = self._now() - progress.quiet
            else:
                self.quiet.pop(key, None)
            through = self._ending.capped(key, position[key], whole)
            if through == position[key]:
                continue
            if progress.records or through.is_end:
                moved[key], sizes[key] = through, progress.bytes
                data += progress.data
                if not progress.records:
                    empty[key] = through
                elif (last := progress.last if through == whole else self._ending.last(key, through)) is not None:
                    lasts[key] = last
                elif through != whole:
                    cut.append(ShardRange(key, position[key], through))
                self._idle.pop(key, None)
                justified = True
            else:
                self._idle[key] = through
        if not justified and not self._idle_offsets_due(position):
            return None
        # Idle shards ride along: the fetcher tells only once how far one has come.
        idle = {
            key: at
            for key, at in self._idle.items()
            if key in position and at != position[key] and at.reaches(position[key])
        }
        self._idle.clear()
        self._stored_idle_at = self._now()
        self.sizes, self.data = sizes, data
        self._empty = {key: ShardRange(key, position[key], at) for key, at in (idle | empty).items()}
        after = {**position, **idle, **moved, **dict.fromkeys(starting, TRIM_HORIZON)}
        for finished in reply.finished:
            del after[finished]
        if cut:
            lasts |= self._last_records(cut)
        return position.moved_to(after, lasts, mark)

    def _idle_offsets_due(self, position: Offset) -> bool:
        # Without this, the stored position of an idle shard would in time fall out of the stream's retention.
        due = self._now() - self._stored_idle_at >= self._idle_interval
        return bool(self._idle) and (due or self._ending.reached({**position, **self._idle}))

    def ranges(self, position: Offset, end: Offset) -> list[ShardRange]:
        """The ranges of the micro-batch that need a task, in any order, and without their last records."""
        return [ShardRange(key, position[key], end[key]) for key in self.sizes if key not in self._empty]

    def has_records(self, wanted: ShardRange) -> bool:
        """Whether a range of the micro-batch needs a task: not if it was found empty. After a restart, nothing was."""
        return self._empty.get(wanted.key) != wanted
