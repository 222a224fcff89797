"""Readers of options: text to value, ValueError where it is none. Rows of the tables pair them with the rule in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from kinesis_efo.units import parse_duration

Number = TypeVar("Number", int, float)


def text(text: str) -> str:
    """Anything but blanks, without those around it."""
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ValueError(text)
    return names


def one_of(*words: str) -> Callable[[str], str]:
    """One of some words, in any case."""

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    return read


def flag(text: str) -> bool:
    """`true` or `false`, in any case."""
    return one_of("true", "false")(text) == "true"


def integer(text: str) -> int:
    """A whole number without a sign."""
    if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII):
        raise ValueError(text)
    return int(text)


def seconds(text: str) -> float:
    """A duration such as `200ms`, in seconds."""
    return parse_duration(text) / 1000


def bounded(parse: Callable[[str], Number], least: float, most: float = float("inf")) -> Callable[[str], Number]:
    """A value with bounds, both included."""

    def read(text: str) -> Number:
        value = parse(text)
        # In this order, so that NaN is refused.
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return read


def url(text: str) -> str:
    """A URL of HTTP."""
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text.strip()):
        raise ValueError(text)
    return text.strip()


def arn(service: str, resource: str) -> Callable[[str], str]:
    """An ARN.

    Args:
        service: As it stands in the ARN.
        resource: Pattern of what follows the account.
    """
    pattern = re.compile(rf"arn:[\w-]+:{service}:[\w-]*:\d{{12}}:{resource}")

    def read(text: str) -> str:
        if not pattern.fullmatch(text.strip()):
            raise ValueError(text)
        return text.strip()

    return read
