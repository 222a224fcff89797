"""The AWS regions in the installed version of botocore."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.regions import partition

_DIRECTIONS = {"north", "south", "east", "west", "central"}
_DIRECTIONS |= {f"{one}{two}" for one in ("north", "south") for two in ("east", "west")}


@cache
def known_regions() -> frozenset[str]:
    """Return the regions of all partitions in which, according to botocore, Kinesis is available."""
    from botocore.session import Session

    session = Session()
    partitions = session.get_available_partitions()
    return frozenset(region for each in partitions for region in session.get_available_regions("kinesis", each))


def region_fault(name: str) -> str | None:
    """Return what is wrong with a region's name; None if the region exists, or may be newer than botocore.

    >>> region_fault("eu-west-1"), region_fault("eu-west-9")
    (None, None)
    >>> region_fault("eu-wst-1")
    'must be a region of AWS; is eu-west-1 meant?'
    """
    try:
        partition(name)
    except ArgumentError:
        pass
    else:
        if name in known_regions() or name.split("-")[-2] in _DIRECTIONS:
            return None
    close = get_close_matches(name, sorted(known_regions()), 1)
    return f"must be a region of AWS; is {close[0]} meant?" if close else "must be a region of AWS, as eu-west-1"


def _region(name: str) -> str:
    if rule := region_fault(name):
        raise ValueError(rule)
    return name


Region = Annotated[str, StringConstraints(pattern=r"^[a-z]{2,4}(-[a-z]+)+-\d$"), AfterValidator(_region)]
"""The name of an AWS region, as a setting in environment files."""
