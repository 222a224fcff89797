"""What goes wrong when, for which consumer and shard: a plain list, made from a seed. Pure; nothing in here does anything.

`faults.ScriptedFaults` carries it out on the local Kinesis, over HTTP or in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

REFUSALS: Final = (
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "InternalFailure",
    "ServiceUnavailable",
    "KMSThrottlingException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSAccessDeniedException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "ResourceInUseException: too soon",
    "ResourceInUseException: not active",
    "ExpiredTokenException",
)
"""Why Kinesis may refuse SubscribeToShard for now."""

FATAL_REFUSALS: Final = ("ResourceNotFoundException", "InvalidArgumentException", "AccessDeniedException")
"""Why it may refuse for good."""

EXCEPTIONS: Final = (
    "ResourceInUseException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSAccessDeniedException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "KMSThrottlingException",
    "InternalFailureException",
)
"""Every exception that SubscribeToShard models inside the stream, but ResourceNotFoundException, which is fatal."""

BROKEN: Final = (
    "reset",
    "close",
    "finish",
    "half and reset",
    "half and close",
    "half and finish",
    "wrong checksum",
    "wrong prelude",
    "no JSON",
    "continuation and children",
    "neither continuation nor children",
)
"""What ends a subscription before its time."""

ODD: Final = ("bytewise", "joined", "duplicate", "empty with lag", "empty at the tip")
"""What looks strange and is none the less right."""

SLOW: Final = ("slow opening", "slow first byte", "stall")
"""What takes a while."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        kind: `refuse`, `exception`, or one of `BROKEN`, `ODD` and `SLOW`.
        at: Seconds after the beginning; it strikes at the first occasion from then on.
        shard: Index of the shard; None for whichever comes first.
        times: How often it strikes.
        seconds: How long it takes, where it is one of `SLOW`.
        code: Which error, for `refuse` and `exception`.
        consumer: Name of the consumer; None for any.
    """

    kind: str
    at: float
    shard: int | None = None
    times: int = 1
    seconds: float = 0.0
    code: str = ""
    consumer: str | None = None


def generate(random: Random, seconds: float, shards: int, *, fatal: bool = False) -> list[Fault]:
    """A mixture of faults.

    Args:
        random: Decides about everything.
        seconds: The last one begins before.
        shards: How many there are; some faults hit all.
        fatal: Let there be one that no retry helps, too.
    """
    kinds: Sequence[str] = random.sample(("refuse", "exception", *BROKEN, *ODD, *SLOW), random.randint(2, 8))
    script = [_fault(random, random.choice(kinds), seconds, shards) for _ in range(random.randint(3, 25))]
    if fatal:
        kind = random.choice(("refuse", "exception"))
        code = random.choice(FATAL_REFUSALS) if kind == "refuse" else "ResourceNotFoundException"
        script.append(Fault(kind, random.uniform(0, seconds), code=code))
    return sorted(script, key=lambda fault: fault.at)


def _fault(random: Random, kind: str, seconds: float, shards: int) -> Fault:
    # Mostly a few times, so that it passes; now and then so often that it does not.
    times = random.choice((1, 1, 1, 2, 3, 5, 12))
    return Fault(
        kind,
        at=round(random.uniform(0, seconds), 3),
        shard=random.choice((None, *range(shards))),
        times=1 if kind in SLOW else times,
        seconds=round(random.choice((0.5, 6.0, 30.0, 70.0)) * random.random(), 3) if kind in SLOW else 0.0,
        code=random.choice({"refuse": REFUSALS, "exception": EXCEPTIONS}.get(kind, ("",))),
    )
