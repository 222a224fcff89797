"""Scripts of faults: plain lists of what goes wrong when, for which consumer and shard, generated from a seed. Pure.

`faults.ScriptedFaults` injects them into the local Kinesis, over HTTP or in memory.
"""

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
"""Errors of SubscribeToShard that a retry helps."""

FATAL_REFUSALS: Final = ("ResourceNotFoundException", "InvalidArgumentException", "AccessDeniedException")
"""Errors of SubscribeToShard that no retry helps."""

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
"""Faults that end a subscription early."""

ODD: Final = ("bytewise", "joined", "duplicate", "empty with lag", "empty at the tip")
"""Events that look strange but are valid."""

HTTP2: Final = ("stream reset", "stream refused", "goodbye", "goodbye at once", "freeze")
"""Faults of a connection of HTTP/2 and of its streams; they strike other subscriptions, too, or strike only one."""

SLOW: Final = ("slow opening", "slow first byte", "stall")
"""Faults that delay a subscription."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault.

    Attributes:
        kind: `refuse`, `exception`, or one of `BROKEN`, `ODD`, `HTTP2` and `SLOW`.
        at: Seconds after the start from which on it strikes, at the first occasion.
        shard: Index of the shard; None for any.
        times: How often it strikes.
        seconds: Delay of a fault of `SLOW`, and of `freeze`.
        code: Code of the error, for `refuse` and `exception`.
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
    """Generate a mixture of faults.

    Args:
        random: Source of randomness.
        seconds: Time within which the faults begin.
        shards: Number of shards. Some faults strike any shard.
        fatal: Whether to add a fault that no retry helps.
    """
    kinds: Sequence[str] = random.sample(("refuse", "exception", *BROKEN, *ODD, *SLOW), random.randint(2, 8))
    script = [_fault(random, random.choice(kinds), seconds, shards) for _ in range(random.randint(3, 25))]
    if fatal:
        kind = random.choice(("refuse", "exception"))
        code = random.choice(FATAL_REFUSALS) if kind == "refuse" else "ResourceNotFoundException"
        script.append(Fault(kind, random.uniform(0, seconds), code=code))
    return sorted(script, key=lambda fault: fault.at)


def _fault(random: Random, kind: str, seconds: float, shards: int) -> Fault:
    # Mostly so few times that retries succeed; sometimes so many that they do not.
    times = random.choice((1, 1, 1, 2, 3, 5, 12))
    return Fault(
        kind,
        at=round(random.uniform(0, seconds), 3),
        shard=random.choice((None, *range(shards))),
        times=1 if kind in SLOW else times,
        seconds=round(random.choice((0.5, 6.0, 30.0, 70.0)) * random.random(), 3) if kind in SLOW else 0.0,
        code=random.choice({"refuse": REFUSALS, "exception": EXCEPTIONS}.get(kind, ("",))),
    )
