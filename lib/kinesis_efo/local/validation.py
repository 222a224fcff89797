"""Checks a request against the constraints of AWS's own service model, as shipped with botocore: required members, types, lengths,
ranges, patterns and enumerations. PutRecord(s), the hot path, check themselves (see writing.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.loaders
import botocore.model

from .errors import AwsError

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

    Raises:
        AwsError: ``SerializationException`` for a wrong type; ``ValidationException`` that lists everything else that is wrong,
            as the real service words it.
    """
    shape = _input_shape(operation)
    if shape is None:
        return
    faults = list(_faults(shape, params, ""))
    if faults:
        count = f"{len(faults)} validation error{'s' if len(faults) > 1 else ''} detected: "
        raise AwsError("ValidationException", count + "; ".join(faults))


@cache
def _model() -> botocore.model.ServiceModel:
    description = botocore.loaders.create_loader().load_service_model("kinesis", "service-2")
    return botocore.model.ServiceModel(description, "kinesis")


@cache
def _input_shape(operation: str) -> Any:
    model = _model()
    return model.operation_model(operation).input_shape if operation in model.operation_names else None


def _faults(shape: Any, value: Any, path: str) -> Iterator[str]:
    kind = shape.type_name
    expected = _TYPES.get(kind, (object,))
    fits = isinstance(value, expected) and (kind == "boolean" or not isinstance(value, bool))
    if not fits:
        raise AwsError("SerializationException", f"Value {value!r} at '{path or 'request'}' is not a {kind}")
    if kind == "structure":
        for name in shape.required_members:
            if value.get(name) is None:
                yield f"Value null at '{_join(path, name)}' failed to satisfy constraint: Member must not be null"
        for name, member in shape.members.items():
            if value.get(name) is not None:
                yield from _faults(member, value[name], _join(path, name))
        return
    if kind == "list":
        for index, item in enumerate(value, 1):
            yield from _faults(shape.member, item, f"{path}.{index}.member")
    if kind == "map":
        for name, item in value.items():
            yield from _faults(shape.key, name, f"{path}.key")
            yield from _faults(shape.value, item, f"{path}.{name}.value")
    for constraint in _broken(shape, value):
        yield f"Value '{value}' at '{path}' failed to satisfy constraint: Member must {constraint}"


def _broken(shape: Any, value: Any) -> Iterator[str]:
    constraints = shape.metadata
    least, most = constraints.get("min"), constraints.get("max")
    numeric = isinstance(value, int | float)
    size, what = (value, "value") if numeric else (len(value), "length")
    if least is not None and size < least:
        yield f"have {what} greater than or equal to {least}"
    if most is not None and size > most:
        yield f"have {what} less than or equal to {most}"
    pattern = constraints.get("pattern")
    if pattern is not None and isinstance(value, str) and not re.search(pattern, value):
        yield f"satisfy regular expression pattern: {pattern}"
    allowed = constraints.get("enum")
    if allowed and value not in allowed:
        yield f"satisfy enum value set: [{', '.join(allowed)}]"


def _join(path: str, name: str) -> str:
    name = name[0].lower() + name[1:]
    return f"{path}.{name}" if path else name
