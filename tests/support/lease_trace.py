"""Traces every write to a lease table on the local AWS, with its outcome and time, and checks them.

The local AWS carries out requests to DynamoDB one at a time, in the order in which it passes them to fault injection. So
replaying their conditions gives their outcomes.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kinesis_efo.leases.row import Lease
from kinesis_efo_local import NoFaults, Request


@dataclass(frozen=True)
class Write:
    """One write that was carried out.

    Attributes:
        at: Its time, seconds on the monotonic clock, which all processes of a machine share.
        key: Lease key.
        before: The row before; None if there was none.
        after: The row after; None if it was deleted.
    """

    at: float
    key: str
    before: Lease | None
    after: Lease | None

    @property
    def writer(self) -> str | None:
        """The worker that wrote: the new owner, or the old one if it gave the lease up."""
        owner = self.after.owner if self.after is not None else None
        return owner or (self.before.owner if self.before is not None else None)


class LeaseTrace(NoFaults):
    """Watches the requests to a local AWS through its fault injection. Injects no faults.

    Attributes:
        writes: The writes to any table, in order.
        refused: The refused writes: time, and owner.
    """

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Any]] = {}
        self.writes: list[Write] = []
        self.refused: list[tuple[float, str]] = []

    async def before(self, request: Request) -> None:
        """Replay a request to DynamoDB."""
        if request.service != "dynamodb" or request.operation not in ("PutItem", "UpdateItem", "DeleteItem"):
            return
        params = request.params
        rows = self._tables.setdefault(params["TableName"], {})
        key = (params.get("Key") or params["Item"])["leaseKey"]["S"]
        before = rows.get(key)
        values = params.get("ExpressionAttributeValues", {})
        if not _holds(params.get("ConditionExpression", ""), before, values):
            asked = values.get(":owner") or params.get("Item", {}).get("leaseOwner") or {"S": "?"}
            self.refused.append((time.monotonic(), asked["S"]))
            return
        match request.operation:
            case "PutItem":
                rows[key] = params["Item"]
            case "UpdateItem":
                rows[key] = _updated(before or params["Key"], params, values)
            case "DeleteItem":
                rows.pop(key, None)
        self.writes.append(Write(time.monotonic(), key, _lease(before), _lease(rows.get(key))))

    def rows(self, table: str) -> dict[str, Any]:
        """The rows according to the replay. If they differ from the table's, the trace is wrong."""
        return self._tables.get(table, {})

    def check(self, lease_timeout: float) -> None:
        """Check that a lease has one owner at a time, and that checkpoints only go forward.

        Args:
            lease_timeout: Seconds after which a silent owner's lease may be taken.
        """
        by_key: dict[str, list[Write]] = {}
        for write in self.writes:
            by_key.setdefault(write.key, []).append(write)
        for key, writes in by_key.items():
            for earlier, later in pairwise(writes):
                assert later.before == earlier.after, f"{key}: a write between {earlier} and {later} is missing"
                if later.before is None or later.after is None:
                    continue
                old, new = later.before, later.after
                if old.owner is not None and new.owner not in (None, old.owner):
                    quiet = later.at - earlier.at
                    assert quiet >= lease_timeout * 0.99, (
                        f"{key}: {new.owner} took it {quiet:.2f} s after {old.owner} wrote"
                    )
                assert new.counter >= old.counter, later
                if old.reached is not None and new.reached is not None:
                    assert new.reached.reaches(old.reached), f"{key} went back: {later}"


def _holds(condition: str, item: Mapping[str, Any] | None, values: Mapping[str, Any]) -> bool:
    for term in filter(None, condition.split(" AND ")):
        if term.startswith("attribute_not_exists("):
            name = term.removeprefix("attribute_not_exists(").removesuffix(")")
            if item is not None and name in item:
                return False
        else:
            name, placeholder = term.split(" = ")
            if item is None or item.get(name) != values[placeholder]:
                return False
    return True


def _updated(item: Mapping[str, Any], params: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = params["ExpressionAttributeNames"]
    assignments, _, removals = params["UpdateExpression"].removeprefix("SET ").partition(" REMOVE ")
    changed = dict(item)
    for assignment in assignments.split(", "):
        name, value = assignment.split(" = ")
        changed[names[name]] = values[value]
    for name in filter(None, removals.split(", ")):
        changed.pop(names[name], None)
    return changed


def _lease(item: Mapping[str, Any] | None) -> Lease | None:
    return Lease.from_item(item) if item is not None else None
