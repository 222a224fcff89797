"""Decides where a query ends, with the triggers AvailableNow and Once and the options `catchUp` and `endingPosition`."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

import msgspec

from kinesis_efo.errors import RetriesExhaustedError
from kinesis_efo.options import Bounds
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey

_CONFIRM_SECONDS: Final = 12.0
"""A shard that was already quiet when its target was found counts as finished if it stays quiet for this many more seconds. In this time,
Kinesis sends at least two SubscribeToShard events."""


class EndingState(msgspec.Struct, frozen=True):
    """The state of `Ending`, from which the next run process continues if the current one dies."""

    wanted: bool
    in_one_batch: bool
    over: bool
    targets: list[tuple[ShardKey, Position]] | None
    lasts: list[tuple[ShardKey, int]]


class Ending:
    """Decides when one query ends: once it has reached its end position (target) in each shard.

    Args:
        catch_up: The option `catchUp`: one micro-batch reads up to all targets. Spark before 4.2 ends the query after that micro-batch.
        ends: The option `endingPosition`, from which the targets are computed; without it, they are the tips.
        patience: Seconds without progress after which the query fails, if records before a target are known to be unread.
    """

    def __init__(self, *, catch_up: bool, ends: Bounds, patience: float = inf) -> None:
        self.wanted = catch_up  # Whether the query's end positions (targets) have yet to be found
        self.in_one_batch = catch_up  # Whether a single micro-batch reads up to all targets
        self.over = False  # Whether the query has finished reading
        # The targets; None for a query without an end, or before the targets are found
        self.targets: Mapping[ShardKey, Position] | None = None
        self.changed = False  # Whether the state has changed since the last call of `state` or `restore`
        self._settled: set[ShardKey] = set()
        self._lasts: dict[ShardKey, int] = {}
        self._found_at = 0.0
        self._ends = ends
        self._patience = patience

    def available_now(self) -> None:
        """Switch to `Trigger.AvailableNow`. Later calls do nothing."""
        if self.targets is None and (self.in_one_batch or not self.wanted):
            self.wanted = self.changed = True
            self.in_one_batch = False

    def once(self) -> None:
        self.wanted = self.in_one_batch = True

    def state(self) -> EndingState:
        """Return the state to pass to the next run, and reset `changed`."""
        self.changed = False
        targets = None if self.targets is None else list(self.targets.items())
        return EndingState(self.wanted, self.in_one_batch, self.over, targets, list(self._lasts.items()))

    def restore(self, state: EndingState, now: float) -> None:
        """Continue from the state of an earlier run."""
        self.wanted, self.in_one_batch, self.over = state.wanted, state.in_one_batch, state.over
        if state.targets is not None:
            self.set_targets(dict(state.targets), now, lasts=dict(state.lasts))
        self.changed = False

    def set_targets(
        self, targets: Mapping[ShardKey, Position], now: float, *, lasts: Mapping[ShardKey, int] | None = None
    ) -> None:
        """Set each shard's end position. `now`: monotonic seconds. `lasts`: sequence number of the last record up to that end, if known."""
        self.wanted, self.changed = False, True
        self._lasts, self._found_at = dict(lasts or {}), now
        self.targets = {key: target for key, target in targets.items() if key not in self._settled}

    def end_quiet(self, position: Mapping[ShardKey, Position], quiet: Mapping[ShardKey, float], now: float) -> bool:
        """Finish shards that seem to have no more records before their targets. Return whether any shard was finished.

        Without new records, the position of such a shard may never reach its target.

        Args:
            position: The query's positions.
            quiet: The time since which the query has apparently been at each shard's tip, monotonic seconds.

        Raises RetriesExhaustedError if a shard sends nothing for `patience` seconds although a known record or the shard's end is unread.
        """
        targets, settled = dict(self.targets or {}), len(self._settled)
        for key, since in quiet.items():
            target = targets.get(key)
            if target is None or key not in position or position[key].reaches(target):
                continue
            waited = now - max(since, self._found_at)
            last = self._lasts.get(key)
            if target.is_end or (last is not None and position[key].precedes(last)):
                if waited < self._patience:
                    continue
                raise RetriesExhaustedError(
                    f"shard {key}: for {waited:.0f} s, Kinesis has sent neither records nor the end of the shard, although the query "
                    f"is at {position[key]} and ends at {target if last is None else f'the record {last}'}. No record is known to be "
                    "missing; start the query again, and check whether Kinesis has a problem"
                ).about(*key)
            if since < self._found_at and waited < _CONFIRM_SECONDS:
                continue
            self._settled.add(key)
            del targets[key]
            self.targets, self.changed = targets, True
        return len(self._settled) > settled

    def includes(self, shard: ShardKey) -> bool:
        """Whether the query starts reading a shard. Once the targets are set, the query ignores shards without a target."""
        return self.targets is None or shard in self.targets

    def limit_to_target(self, shard: ShardKey, at: Position, through: Position) -> Position:
        """Return `through`, or the query's end position in the shard if that is lower. `at`: how far the shard has been read."""
        if self.targets is None:
            return through
        target = self.targets.get(shard, at)
        if at.reaches(target):
            return at
        return target if through.reaches(target) else through

    def ends_at(self, shard: ShardKey, through: Position) -> bool:
        """Whether reading the shard ends at `through`; False for a query without an end."""
        target = (self.targets or {}).get(shard)
        return target is not None and through.reaches(target)

    def finished_shards(self, position: Mapping[ShardKey, Position]) -> frozenset[ShardKey]:
        """Return the shards that a query at `position` has finished."""
        if self.targets is None:
            return frozenset()
        return frozenset(key for key, at in position.items() if at.reaches(self.targets.get(key, at)))

    def last(self, shard: ShardKey, through: Position) -> int | None:
        """Return the sequence number of the last record up to `through`; None if unknown, or if `through` is not the shard's target."""
        return self._lasts.get(shard) if (self.targets or {}).get(shard) == through else None

    def reached(self, position: Mapping[ShardKey, Position]) -> bool:
        """Whether a query at `position` has reached all targets; False for a query without an end."""
        if self.targets is None:
            return False
        return all(
            position[key].is_end or position[key].reaches(target)
            for key, target in self.targets.items()
            if key in position
        )

    def single_batch_end(self, position: Offset) -> dict[ShardKey, Position]:
        """Return the end of the single micro-batch that reads up to all targets. With `endingPosition`, it is the query's last one."""
        assert self.targets is not None
        targets, self.targets = self.targets, None
        self.in_one_batch, self.changed = False, True
        self.over = self._ends != Bounds()
        moved = dict(position)
        for key, target in targets.items():
            at = position.get(key, TRIM_HORIZON)
            moved[key] = at if at.reaches(target) else target
        return moved
