"""Terraform names that stay where they are, whatever the construct tree looks like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A Terraform name: the present one, and the one before a resource was moved.

    Without a place, CDKTF derives a resource's name from its path in the construct tree, so that moving code replaces the
    resource. With one, the name is this, and where it was another one, a `moved` block says so to Terraform.

    Args:
        now: The name.
        before: The former name; default: the same.

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
        """The place of a resource that belongs to both."""
        if isinstance(other, str):
            other = Place(other)
        return Place(f"{self.now}_{other.now}", f"{self.before}_{other.before}")
