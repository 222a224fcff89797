"""Checks requests against the constraints in botocore's service model: required members, types, lengths, ranges, patterns, enumerations.

PutRecord and PutRecords, the hot path, are checked in writing.py instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.loaders

from .errors import AwsError

Shape = dict[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "structure": (dict,),
    "map": (dict,),
    "list": (list,),
    "string": (str,),
    "integer": (int,),
    "long": (int,),
    "boolean": (bool,),
    "timestamp": (int, float),
    "blob": (str,),
}


def check(operation: str, params: dict[str, Any]) -> None:
    """Check the parameters of an operation.

    Raises AwsError: `SerializationException` for a wrong type; otherwise `ValidationException`, whose message lists all other
    violations in the wording of the real service.
    """
    operations, shapes = model()["operations"], model()["shapes"]
    if operation not in operations or "input" not in operations[operation]:
        return
    faults = list(_faults(shapes, operations[operation]["input"]["shape"], params, ""))
    if faults:
        count = f"{len(faults)} validation error{'s' if len(faults) > 1 else ''} detected: "
        raise AwsError("ValidationException", count + "; ".join(faults))


@cache
def model() -> Shape:
    """botocore's service model of Kinesis."""
    found: Shape = botocore.loaders.create_loader().load_service_model("kinesis", "service-2")
    return found


def _faults(shapes: Shape, name: str, value: Any, path: str) -> Iterator[str]:
    shape = shapes[name]
    kind = shape["type"]
    fits = isinstance(value, _TYPES.get(kind, (object,))) and (kind == "boolean" or not isinstance(value, bool))
    if not fits:
        raise AwsError("SerializationException", f"Value {value!r} at '{path or 'request'}' is not a {kind}")
    if kind == "structure":
        for member in shape.get("required", ()):
            if value.get(member) is None:
                yield f"Value null at '{_join(path, member)}' failed to satisfy constraint: Member must not be null"
        for member, reference in shape["members"].items():
            if value.get(member) is not None:
                yield from _faults(shapes, reference["shape"], value[member], _join(path, member))
        return
    if kind == "list":
        for index, item in enumerate(value, 1):
            yield from _faults(shapes, shape["member"]["shape"], item, f"{path}.{index}.member")
    if kind == "map":
        for key, item in value.items():
            yield from _faults(shapes, shape["key"]["shape"], key, f"{path}.key")
            yield from _faults(shapes, shape["value"]["shape"], item, f"{path}.{key}.value")
    for constraint in _broken(shape, value):
        yield f"Value '{value}' at '{path}' failed to satisfy constraint: Member must {constraint}"


def _broken(shape: Shape, value: Any) -> Iterator[str]:
    size, what = (value, "value") if isinstance(value, int | float) else (len(value), "length")
    if "min" in shape and size < shape["min"]:
        yield f"have {what} greater than or equal to {shape['min']}"
    if "max" in shape and size > shape["max"]:
        yield f"have {what} less than or equal to {shape['max']}"
    if "pattern" in shape and isinstance(value, str) and not re.fullmatch(shape["pattern"], value, re.ASCII):
        yield f"satisfy regular expression pattern: {shape['pattern']}"
    if "enum" in shape and value not in shape["enum"]:
        yield f"satisfy enum value set: [{', '.join(shape['enum'])}]"


def _join(path: str, name: str) -> str:
    name = name[0].lower() + name[1:]
    return f"{path}.{name}" if path else name
