"""How a query ends that reads what is there: with `Trigger.AvailableNow`, `Trigger.Once`, or Spark 4.0's `catchUp`. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from typing import Final

import msgspec

from kinesis_efo.options import Bounds
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey

logger = logging.getLogger(__name__)

_HEARD_AGAIN_SECONDS: Final = 12.0
"""Two events of SubscribeToShard come in this time. So what is quiet still was so after the ends were found, too."""


class EndingState(msgspec.Struct, frozen=True):
    """What the next run has to know of an `Ending`, whose attributes these are."""

    wanted: bool
    in_one_batch: bool
    over: bool
    complete: bool
    targets: list[tuple[ShardKey, Position | None]] | None
    lasts: list[tuple[ShardKey, int]]


class Ending:
    """Follows one query to its end.

    Args:
        catch_up: Whether the first micro-batch reads everything: Spark before 4.2 has no limits and ends by itself.
        ends: The option `endingPosition`.
        patience: Seconds for which the end of a closed shard is waited for.

    Attributes:
        wanted: Whether the positions at which the query ends have to be found out next.
        in_one_batch: Whether its first micro-batch goes there.
        over: Whether nothing more is read.
        targets: The positions at which it ends, by shard, each None if reading has not come to it yet; None if the query goes on.
        complete: Whether they are all known.
        changed: Whether its state is another one than that which was read or given last.
    """

    def __init__(self, *, catch_up: bool, ends: Bounds, patience: float = inf) -> None:
        self.wanted = self.in_one_batch = catch_up
        self.over = False
        self.targets: Mapping[ShardKey, Position | None] | None = None
        self.complete = self.changed = False
        self._settled: set[ShardKey] = set()
        self._lasts: dict[ShardKey, int] = {}
        self._found_at: dict[ShardKey, float] = {}
        self._ends = ends
        self._patience = patience
        self._available_now = False

    def available_now(self) -> None:
        """Take note of `Trigger.AvailableNow`, once."""
        if not self._available_now:
            self.wanted = self._available_now = self.changed = True
            self.in_one_batch = False

    def once(self) -> None:
        """Take note of `Trigger.Once`."""
        self.wanted = self.in_one_batch = True

    def state(self) -> EndingState:
        """What the next run has to know."""
        self.changed = False
        targets = None if self.targets is None else list(self.targets.items())
        return EndingState(self.wanted, self.in_one_batch, self.over, self.complete, targets, list(self._lasts.items()))

    def go_on(self, state: EndingState, now: float) -> None:
        """Go on as an earlier run has left it, at a time in monotonic seconds."""
        self.wanted, self.in_one_batch, self.over = state.wanted, state.in_one_batch, state.over
        self._available_now = True
        if state.targets is not None:
            self.found(dict(state.targets), now, complete=state.complete, lasts=dict(state.lasts))
            # The tips of shards whose ends are not known yet are looked for anew.
            self.wanted = not state.complete
        self.changed = False

    def found(
        self,
        targets: Mapping[ShardKey, Position | None],
        now: float,
        *,
        complete: bool,
        lasts: Mapping[ShardKey, int] | None = None,
    ) -> None:
        """Take note of the positions at which the query ends, as far as they are known now, in monotonic seconds.

        Args:
            targets: The positions.
            now: The time.
            complete: Whether they are all known.
            lasts: The number of the last record up to a target, if that is known.
        """
        self.wanted, self.complete, self.changed = False, complete, True
        self._lasts = dict(lasts or {})
        self.targets = {key: target for key, target in targets.items() if key not in self._settled}
        for key, target in targets.items():
            if target is not None:
                self._found_at.setdefault(key, now)

    def settle(self, position: Mapping[ShardKey, Position], quiet: Mapping[ShardKey, float], now: float) -> None:
        """End shards in front of their targets if nothing more is there: the positions that servers give need not grow up to there.

        An end that is too early loses nothing: the next run goes on there. A closed shard is over where Kinesis says so; that is waited
        for, but not for ever.

        Args:
            position: How far the query has come.
            quiet: Since when it is believed that nothing more is there, by shard, monotonic seconds.
            now: The time.
        """
        targets = dict(self.targets or {})
        for key, since in quiet.items():
            target = targets.get(key)
            if target is None or key not in position or position[key].reaches(target):
                continue
            found_at = self._found_at[key]
            if target.is_end:
                if now - max(since, found_at) < self._patience:
                    continue
                logger.warning(
                    "shard %s: the query ends at %s, and the next run goes on there: for %.0f s, Kinesis has not said that the shard is over",
                    key,
                    position[key],
                    now - since,
                )
            elif since < found_at and now - found_at < _HEARD_AGAIN_SECONDS:
                continue
            self._settled.add(key)
            del targets[key]
            self.targets, self.changed = targets, True

    def begins(self, shard: ShardKey) -> bool:
        """Whether a shard is read at all. One that began after the query is read by the next run, and so is the rest of its parents."""
        return self.targets is None or shard in self.targets

    def capped(self, shard: ShardKey, at: Position, through: Position) -> Position:
        """How far a shard is read.

        Args:
            shard: The shard.
            at: How far it has been read.
            through: How far it could be.
        """
        if self.targets is None:
            return through
        target = self.targets.get(shard, at)
        if target is None:
            return through
        if at.reaches(target):
            return at
        return target if through.reaches(target) else through

    def last(self, shard: ShardKey, through: Position) -> int | None:
        """The number of the last record up to the end of a shard, where a micro-batch goes there and the number is known."""
        return self._lasts.get(shard) if (self.targets or {}).get(shard) == through else None

    def reached(self, position: Mapping[ShardKey, Position]) -> bool:
        """Whether everything is read; never where the query goes on."""
        if self.targets is None:
            return False
        return all(
            position[key].is_end or (target is not None and position[key].reaches(target))
            for key, target in self.targets.items()
            if key in position
        )

    def whole(self, position: Offset) -> dict[ShardKey, Position]:
        """The end of the one micro-batch with everything: parent shards and their children. Without `endingPosition`, the query goes on."""
        assert self.targets is not None
        targets, self.targets = self.targets, None
        self.in_one_batch, self.changed = False, True
        self.over = self._ends != Bounds()
        moved = dict(position)
        for key, target in targets.items():
            assert target is not None, "a micro-batch has an end"
            at = position.get(key, TRIM_HORIZON)
            moved[key] = at if at.reaches(target) else target
        return moved
