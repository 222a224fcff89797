"""Holds Terraform JSON against the typed bindings of the AWS provider: what they know, with its type, and what they require.

The bindings are those that are installed, and so those of the pinned version of the provider. They check what is passed to their
classes; what is put into the JSON beside them, nothing else would check before Terraform does.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import infra.stacks.cdk
import kinesis_efo_infra.cdk

_PARAMETER = re.compile(r"^:param (\w+): (.*)$", re.MULTILINE)
_LINK = re.compile(r"\{@link https://registry\.terraform\.io/providers/hashicorp/aws/([\d.]+)/\S+#(\w+) ")


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute or block that the bindings know.

    Attributes:
        hint: The type of its parameter.
        required: Whether the parameter has no default.
        version: Version of the provider that it is documented for; empty for an argument of Terraform itself.
    """

    hint: Any
    required: bool
    version: str


def faults(stack: Mapping[str, Any]) -> list[str]:
    """What the bindings do not know, or what they know as another type, or require and miss, in a stack's Terraform JSON."""
    found = []
    for section in ("resource", "data"):
        for kind, entries in stack.get(section, {}).items():
            for name, entry in entries.items():
                found += _struct(entry, _config(section, kind), f"{section}.{kind}.{name}")
    for entry in stack["provider"]["aws"]:
        found += _struct(entry, _config("provider", "aws"), "provider.aws")
    return found


def versions(stack: Mapping[str, Any]) -> set[str]:
    """The versions of the provider that the bindings of a stack's resources are made of."""
    kinds = [(section, kind) for section in ("resource", "data") for kind in stack.get(section, {})]
    return {
        each.version for section, kind in kinds for each in attributes(_config(section, kind)).values() if each.version
    }


@cache
def _config(section: str, kind: str) -> type:
    """The class of a type's arguments."""
    base = {"resource": "TerraformResource", "data": "TerraformDataSource", "provider": "TerraformProvider"}[section]
    for module in (kinesis_efo_infra.cdk, infra.stacks.cdk):
        for name in vars(module):
            each = getattr(module, name)
            bases = [parent.__name__ for parent in getattr(each, "__mro__", ())]
            if base in bases and getattr(each, "TF_RESOURCE_TYPE", None) == kind:
                config: type = getattr(sys.modules[each.__module__], f"{name}Config")
                return config
    raise AssertionError(f"neither the constructs nor infra.stacks.cdk have a class for {section} {kind}")


@cache
def attributes(struct: type) -> Mapping[str, Attribute]:
    """The attributes of a struct, by their names in Terraform."""
    initializer = struct.__init__  # type: ignore[misc]
    hints, found = typing.get_type_hints(initializer), {}
    documented = dict(_PARAMETER.findall(inspect.getdoc(initializer) or ""))
    for name, parameter in inspect.signature(initializer).parameters.items():
        if name != "self":
            link = _LINK.search(documented.get(name, ""))
            version, terraform = (link[1], link[2]) if link else ("", name)
            found[terraform] = Attribute(hints[name], parameter.default is inspect.Parameter.empty, version)
    return found


def _struct(value: Any, struct: type, where: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{where}: must be an object; got {value!r}"
        return
    known = attributes(struct)
    for name, each in value.items():
        if name == "//":
            continue
        if name not in known:
            yield f"{where}.{name}: {struct.__name__} does not know it"
        elif known[name].version:
            yield from _value(each, known[name].hint, f"{where}.{name}")
    for name, attribute in known.items():
        if attribute.required and name not in value:
            yield f"{where}.{name}: is missing"


def _value(value: Any, hint: Any, where: str) -> list[str]:
    if value is None or (isinstance(value, str) and value.startswith("${")):
        return []
    options = typing.get_args(hint) if typing.get_origin(hint) is typing.Union else (hint,)
    structs = [
        each for each in options if hasattr(each, "__jsii_type__") and inspect.isclass(each) and _is_struct(each)
    ]
    if structs:
        return list(_struct(value, structs[0], where))
    tried = [_plain(value, each, where) for each in options]
    return (
        [] if [] in tried else next((each for each in tried if each is not None), [f"{where}: {value!r} is no {hint}"])
    )


def _plain(value: Any, hint: Any, where: str) -> list[str] | None:
    """Faults of a value as one of the types of an attribute; None where it is of another."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return [fault for key, each in value.items() for fault in _value(each, arguments[1], f"{where}.{key}")]
    if origin is not None and issubclass(origin, Sequence) and isinstance(value, list):
        return [fault for n, each in enumerate(value) for fault in _value(each, arguments[0], f"{where}.{n}")]
    # In Python, True is a number.
    fits = origin is None and hint in (str, int, float, bool) and type(value) is hint
    return [] if fits else None


def _is_struct(hint: type) -> bool:
    return hint.__module__.startswith("cdktf_cdktf_provider_aws")
