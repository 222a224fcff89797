"""Decides how a query reads a shard that other queries of its run read, too."""

from __future__ import annotations

from enum import Enum

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.positions import Position


class Choice(Enum):
    """How a query reads a shard from a position on: from the buffer that queries share, or from a buffer of its own (`APART`)."""

    SHARED = "as the buffer is"
    BEGIN = "the buffer begins anew at the position: no other query uses it"
    FORWARD = "the subscription moves forward to the position; the other queries catch up"
    BACK = "the subscription moves back to the position: Kinesis lets no query catch up"
    APART = "catching up"


def choose(
    position: Position,
    buffer: EventIndex | None,
    *,
    others: bool,
    apart: bool,
    may_read_apart: bool,
    has_waited: bool,
    quiet: bool,
) -> Choice:
    """Decide how a query at `position` reads a shard, when a micro-batch is planned and when a task reads it.

    While other queries (`others`) use the subscription, it moves back only if queries may not catch up, and moves forward only for a query
    that has waited long enough for the buffer to reach its position. So two queries do not take the subscription from each other. `buffer`
    is None while the shard is not read. `apart`: the query catches up in the shard with GetRecords, which `may_read_apart` allows. `quiet`:
    the shard seems to have no more events, so that none will show whether the buffer begins after `position`.
    """
    covered = buffer.covers(position) if buffer is not None else False
    covers = covered if covered is not None else not (quiet and may_read_apart)
    if buffer is None or not (others or covers):
        return Choice.BEGIN
    if covers and has_waited:
        return Choice.FORWARD
    # While a query catches up, it shares no buffer that ends before its position, because the subscription would move to and fro.
    if covers and not (apart and buffer.ends_before(position)):
        return Choice.SHARED
    return Choice.APART if may_read_apart else Choice.BACK
