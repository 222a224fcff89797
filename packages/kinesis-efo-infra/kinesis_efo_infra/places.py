"""Terraform names that do not depend on the construct tree."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A fixed Terraform name for a resource, and its former name if the resource was renamed.

    Without a place, CDKTF derives a resource's name from its path in the construct tree, so that moving a construct replaces the
    resource. With a place, the name is `now`; if `before` differs, a `moved` block makes Terraform rename the resource.

    Args:
        now: The current name.
        before: The former name; default: the same as `now`.

    >>> Place("lake").join("orders")
    Place(now='lake_orders', before='lake_orders')
    >>> Place("archive", before="lake").join("orders")
    Place(now='archive_orders', before='lake_orders')
    """

    now: str
    before: str = ""

    def __post_init__(self) -> None:
        if not self.before:
            object.__setattr__(self, "before", self.now)

    def join(self, other: Place | str) -> Place:
        """Return a place whose names, current and former, are those of this place and `other`, joined with `_`."""
        if isinstance(other, str):
            other = Place(other)
        return Place(f"{self.now}_{other.now}", f"{self.before}_{other.before}")
