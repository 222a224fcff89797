"""Requests generated from AWS' own model of Kinesis: the local Kinesis refuses exactly those that break a constraint of it."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kinesis_efo_local import LocalAws, Settings
from kinesis_efo_local.server import KNOWN
from kinesis_efo_local.validation import Shape, model
from tests.support.raw_kinesis import RawKinesis

BROKEN = "failed to satisfy constraint"
SHAPES = model()["shapes"]
OPERATIONS = sorted(set(KNOWN) & model()["operations"].keys())
MOST = 2 << 20
"""Longest value that is sent."""
SIMPLE = (
    "0",
    "00000000000000000000-000",
    "arn:aws:kinesis::000000000000:stream/0",
    "arn:aws:kinesis::000000000000:stream/0/consumer/0:0",
)
"""For each pattern of the model, one of these is the simplest text that it allows."""


def valid(shape: Shape) -> Any:
    """A value of a shape, with its required members only."""
    match shape["type"]:
        case "structure":
            return {name: valid(SHAPES[shape["members"][name]["shape"]]) for name in shape.get("required", ())}
        case "list":
            return [valid(SHAPES[shape["member"]["shape"]])] * max(1, shape.get("min", 0))
        case "map":
            return {valid(SHAPES[shape["key"]["shape"]]): valid(SHAPES[shape["value"]["shape"]])}
        case "string" if "enum" in shape:
            return shape["enum"][0]
        case "string" if "pattern" in shape:
            return next(text for text in SIMPLE if re.fullmatch(shape["pattern"], text, re.ASCII))
        case "string":
            return "a" * max(1, shape.get("min", 0))
        case "blob":
            return "YQ=="
        case "boolean":
            return False
        case "timestamp":
            return time.time() - 60
    return shape.get("min", 1)


def edges(shape: Shape) -> Iterator[tuple[str, Any, bool]]:
    """Values at the limits of a shape: the constraint's name, the value, and whether AWS accepts it."""
    kind = shape["type"]
    if kind in ("integer", "long"):
        yield from ((name, shape[name], True) for name in ("min", "max") if name in shape)
        yield from ((name, shape[name] + by, False) for name, by in (("min", -1), ("max", 1)) if name in shape)
        yield "type", "5", False
    elif kind == "string":
        if "enum" in shape:
            yield from (("enum", each, True) for each in shape["enum"])
            yield from (("enum", each, False) for each in ("", "NONSENSE", shape["enum"][0].lower()))
        base, pattern = valid(shape), shape.get("pattern")
        for text in ("", " ", "*", "é", "\u0663", "00", "01", "-1", f"{base}\n", f"{base} ") if pattern else ():
            if shape.get("min", 0) <= len(text) <= shape.get("max", MOST) and not re.fullmatch(pattern, text, re.ASCII):
                yield "pattern", text, False
        for name, size in (("min", shape.get("min")), ("max", shape.get("max"))):
            if size is None or "enum" in shape or size > MOST:
                continue
            padded = (base + filler * (size - len(base)) for filler in "a1")
            fitting = [
                text for text in padded if len(text) == size and (not pattern or re.fullmatch(pattern, text, re.ASCII))
            ]
            yield from ((name, text, True) for text in fitting[:1])
            other = base[: size - 1] if name == "min" else "a" * (size + 1)
            if name == "max" or size > 0:
                yield name, other, False
        yield "type", 5, False
    elif kind == "list":
        item = valid(SHAPES[shape["member"]["shape"]])
        yield from (("min", [item] * size, False) for size in range(shape.get("min", 0)))
        if (most := shape.get("max", MOST)) <= 1_000:
            yield "max", [item] * most, True
            yield "max", [item] * (most + 1), False
        yield "type", "text", False
    elif kind == "map":
        if "max" in shape:
            value = valid(SHAPES[shape["value"]["shape"]])
            yield from (
                ("max", {f"k{n}": value for n in range(size)}, size <= shape["max"])
                for size in (shape["max"], shape["max"] + 1)
            )
        if shape.get("min", 0):
            yield "min", {}, False
    elif kind == "blob" and "max" in shape and shape["max"] > MOST:
        yield "max", "AAAA" * (shape["max"] // 3 + 1), False
    elif kind == "boolean":
        yield "type", "yes", False


def requests(shape: Shape) -> Iterator[tuple[str, Any, bool]]:
    """Values of a shape that differ from a valid one in one place: the place and constraint, the value, whether AWS accepts it."""
    base = valid(shape)
    if shape["type"] == "structure":
        yield "", base, True
        for name in shape.get("required", ()):
            yield f".{name}.required", {key: value for key, value in base.items() if key != name}, False
        for name, member in shape["members"].items():
            for place, value, accepted in requests(SHAPES[member["shape"]]):
                yield f".{name}{place}", {**base, name: value}, accepted
        return
    if shape["type"] == "list":
        for place, value, accepted in requests(SHAPES[shape["member"]["shape"]]):
            yield place, [value, *base[1:]], accepted
    if shape["type"] == "map":
        ((key, value),) = base.items()
        for place, other, accepted in requests(SHAPES[shape["key"]["shape"]]):
            if isinstance(other, str):
                yield f".key{place}", {other: value}, accepted
        for place, other, accepted in requests(SHAPES[shape["value"]["shape"]]):
            yield f".value{place}", {key: other}, accepted
    for place, value, accepted in edges(shape):
        yield f".{place}", value, accepted


@pytest.fixture(scope="module")
def kinesis() -> Iterator[RawKinesis]:
    with LocalAws(settings=Settings(stream_creating_seconds=0)) as aws:
        yield RawKinesis(aws)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_model_constraints_are_enforced(kinesis: RawKinesis, operation: str) -> None:
    given, wrong = model()["operations"][operation].get("input"), []
    seen = 0
    for place, request, accepted in requests(SHAPES[given["shape"]]) if given else ():
        seen += 1
        refused = ""
        try:
            kinesis.call(operation, request)
        except ClientError as error:
            code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
            if code == "SerializationException" or (code == "ValidationException" and BROKEN in message):
                refused = f"{code}: {message[:200]}"
        if bool(refused) == accepted:
            wrong.append(f"{operation}{place}: {str(request)[:120]} {refused or 'accepted'}")
    assert not wrong, "\n".join(wrong)
    assert seen or not given or not SHAPES[given["shape"]]["members"]
