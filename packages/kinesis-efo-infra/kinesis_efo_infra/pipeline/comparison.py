"""Compares plans by what they do: two plans that do the same have the same digest."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NoReturn

from kinesis_efo_infra.errors import PipelineError

_OF_A_CHANGE = ("actions", "before", "after", "after_unknown", "importing", "replace_paths", "declared")
_KNOWN = {
    *_OF_A_CHANGE, "after_identity", "after_sensitive", "before_identity", "before_sensitive", "generated_config",
}  # fmt: skip
_KNOWN_OF_A_RESOURCE = {
    "action_reason", "address", "change", "deposed", "index", "mode", "module_address", "name", "previous_address",
    "provider_name", "type",
}  # fmt: skip
_SHORTEST, _LONG_LINE = 8, 16
_META = ("count", "for_each")
"""Meta-arguments that create several instances of a resource. Its other arguments may refer to them, as in `count.index`."""


def shown(plan: Mapping[str, Any], stack: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the part of a plan that is shown and compared: the changes, without secrets.

    Sensitive values are replaced with HMACs: without the key, nobody can derive a value, or verify a guess. For values that are
    unknown until the plan is applied, the stack's expressions are added (`declared`).

    Args:
        plan: The plan, as `terraform show -json` writes it.
        stack: Terraform JSON of the stack that was planned.
        key: The HMAC key.

    Raises:
        PipelineError: The plan contains something that this version does not support, and therefore would not compare.
    """
    changes = []
    for each in plan.get("resource_changes", []):
        if new := (each.keys() - _KNOWN_OF_A_RESOURCE) | (each["change"].keys() - _KNOWN):
            _unknown(each["address"], ", ".join(sorted(new)))
        section = {"managed": "resource", "data": "data"}.get(each.get("mode", ""), "")
        body = stack.get(section, {}).get(each["type"], {}).get(each.get("name"))
        change = each["change"]
        names = unknown_names(change)
        changes.append(
            {**each, "change": _shown(each["address"], change, names, change.get("after_sensitive"), body, key)}
        )
    outputs = {}
    for name, change in plan.get("output_changes", {}).items():
        # An output has one value, handled here as an attribute without a name. It may be unknown in part.
        names, sensitive = ({""} if _any(change.get("after_unknown")) else set()), {"": change.get("after_sensitive")}
        outputs[name] = _shown(f"output.{name}", change, names, sensitive, {"": stack.get("output", {}).get(name)}, key)
    said: dict[str, Any] = _without({"resource_changes": changes, "output_changes": outputs}, secrets(plan), key)
    return said


def secrets(plan: Mapping[str, Any]) -> list[str]:
    """Return all strings that a plan marks as sensitive, and the longer lines of multi-line strings, sorted by length, longest first.

    They must be removed from the whole plan, because an expression may have copied them to an unmarked value. Strings of less than 8
    characters are omitted, because they would also occur in values that are not secret.
    """
    found: set[str] = set()
    for each in (*plan.get("resource_changes", []), *plan.get("output_changes", {}).values()):
        change = each.get("change", each)
        for name in ("before", "after"):
            found |= set(_marked(change.get(name), change.get(f"{name}_sensitive")))
    for state in (plan.get("planned_values"), (plan.get("prior_state") or {}).get("values")):
        for each in ((state or {}).get("root_module") or {}).get("resources", []):
            found |= set(_marked(each.get("values"), each.get("sensitive_values")))
    found |= {line.strip() for each in found for line in each.splitlines() if len(line.strip()) >= _LONG_LINE}
    return sorted((each for each in found if len(each) >= _SHORTEST), key=lambda each: (-len(each), each))


def _marked(value: Any, mark: Any) -> Iterator[str]:
    """Yield the strings in values that are marked as sensitive."""
    if isinstance(value, Mapping) and value.get("type") in ("String", "StringList"):
        return  # skip SSM parameters that are not a SecureString: the provider marks the values of all parameters as sensitive
    if isinstance(value, Mapping) and (mark is True or isinstance(mark, Mapping)):
        for name, each in value.items():
            yield from _marked(each, mark is True or mark.get(name))
    elif isinstance(value, list) and (mark is True or isinstance(mark, list)):
        for number, each in enumerate(value):
            yield from _marked(each, mark is True or (number < len(mark) and mark[number]))
    elif isinstance(value, str) and mark is True:
        yield value


def _without(value: Any, hidden: Sequence[str], key: str) -> Any:
    """Return a value in which each string that contains a secret is replaced with an HMAC."""
    if isinstance(value, Mapping):
        return {_without(name, hidden, key): _without(each, hidden, key) for name, each in value.items()}
    if isinstance(value, list):
        return [_without(each, hidden, key) for each in value]
    if isinstance(value, str) and any(each in value for each in hidden):
        return f"hmac-sha256:{hmac.digest(key.encode(), value.encode(), 'sha256').hex()}"
    return value


def redacted(text: str, hidden: Sequence[str]) -> str:
    """Replace all secrets in the text of a plan, including JSON-escaped ones, with `(sensitive value)`."""
    for each in hidden:
        for form in (each, json.dumps(each)[1:-1]):
            text = text.replace(form, "(sensitive value)")
    return text


def _shown(
    address: str, change: Mapping[str, Any], names: Set[str], sensitive: Any, body: Mapping[str, Any] | None, key: str
) -> dict[str, Any]:
    hidden = {
        name: _hidden(change[name], change.get(f"{name}_sensitive"), (address,), key)
        for name in ("before", "after")
        if name in change
    }
    kept = {name: value for name, value in change.items() if not name.endswith("_sensitive")} | hidden
    if names:
        if body is None:
            _unknown(address, "values that are not in the stack")
        declared = {name: body[name] for name in (*sorted(names), *_META) if name in body}
        marks = {name: _any(value) for name, value in sensitive.items()} if isinstance(sensitive, Mapping) else {}
        # Hide `count` and `for_each` as well: they may contain values from which a secret was built.
        marks |= dict.fromkeys(_META, _any(sensitive))
        kept["declared"] = _hidden(declared, marks, (address, "declared"), key)
    return kept


def _unknown(address: str, what: str) -> NoReturn:
    raise PipelineError(
        f"{address}: its plan has {what}, which this version of kinesis-efo-infra does not know and would not compare; use the version "
        "of Terraform that the workflows name, or a newer kinesis-efo-infra"
    )


def _hidden(value: Any, sensitive: Any, at: tuple[str, ...], key: str) -> Any:
    """Return a value with HMACs in place of what Terraform marks as sensitive. Equal secrets in different places get different HMACs."""
    if sensitive is True:
        said = json.dumps([at, value], sort_keys=True).encode()
        return f"hmac-sha256:{hmac.digest(key.encode(), said, 'sha256').hex()}"
    if isinstance(value, Mapping) and isinstance(sensitive, Mapping):
        return {name: _hidden(each, sensitive.get(name), (*at, name), key) for name, each in value.items()}
    if isinstance(value, list) and isinstance(sensitive, list):
        marks = [*sensitive, *[False] * len(value)]
        return [_hidden(each, marks[n], (*at, str(n)), key) for n, each in enumerate(value)]
    return value


def normalised(plan: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a plan does to each resource and output, by address: actions, values before and after, expressions of unknown values.

    Omits the state's serial number, times, and unchanged resources and outputs.

    Args:
        plan: The plan, as `shown` returns it.
    """
    done = {}
    for each in plan.get("resource_changes", []):
        kept = {name: value for name in _OF_A_CHANGE if (value := each["change"].get(name)) is not None}
        if "previous_address" in each:
            kept["previous_address"] = each["previous_address"]
        # Moves and imports change the state, even if they change nothing in AWS.
        if kept["actions"] != ["no-op"] or kept.keys() & {"importing", "previous_address"}:
            # One address may have several deposed objects, if replacements failed more than once.
            deposed = f" (deposed {each['deposed']})" if "deposed" in each else ""
            done[f"{each['address']}{deposed}"] = kept
    for name, change in plan.get("output_changes", {}).items():
        if change["actions"] != ["no-op"]:
            done[f"output.{name}"] = {each: change[each] for each in _OF_A_CHANGE if change.get(each) is not None}
    return done


def unknown_names(change: Mapping[str, Any]) -> set[str]:
    """Return the names of a resource's attributes that are unknown until the plan is applied, completely or in part."""
    unknown = change.get("after_unknown")
    return {name for name, value in unknown.items() if _any(value)} if isinstance(unknown, Mapping) else set()


def _any(value: Any) -> bool:
    """Whether Terraform marks any part of a value as unknown or sensitive."""
    if isinstance(value, Mapping):
        return any(map(_any, value.values()))
    return any(map(_any, value)) if isinstance(value, list) else bool(value)


def digest(plan: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a plan does."""
    text = json.dumps(normalised(plan), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def told(plan: Mapping[str, Any]) -> list[str]:
    """Return a line for each address that a plan changes: actions and, for updates in place, the attributes' names but not their values.

    >>> told({"resource_changes": [{"address": "aws_x.y", "change": {"actions": ["update"], "before": {"a": 1}, "after": {"a": 2}}}]})
    ['aws_x.y: update of a']
    """
    lines = []
    for address, change in sorted(normalised(plan).items()):
        line = f"{address}: {_told(change)}"
        # An output has one value, and no attributes.
        if change["actions"] == ["update"] and not address.startswith("output."):
            before, after = change.get("before") or {}, change.get("after") or {}
            changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
            names = changed | unknown_names(change)
            line += f" of {', '.join(sorted(names))}"
        lines.append(line)
    return lines


def differences(shown: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each address at which a plan differs from the one that was shown. Lines name attributes, but never their values.

    Args:
        shown: The plan that was shown.
        now: The plan that would be applied.
    """
    return list(_differences(normalised(shown), normalised(now)))


def _differences(shown: Mapping[str, dict[str, Any]], now: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    for address in sorted(shown.keys() | now.keys()):
        before, after = shown.get(address), now.get(address)
        if before == after:
            continue
        if before is None:
            assert after is not None
            yield f"{address}: {_told(after)}, which was not shown"
        elif after is None:
            yield f"{address}: {_told(before)} was shown, and would not be done"
        elif before["actions"] != after["actions"]:
            yield f"{address}: {_told(before)} was shown, and it would be {_told(after)}"
        else:
            yield f"{address}: {_told(after)} with other values of {', '.join(sorted(_changed(before, after)))}"


def _told(change: Mapping[str, Any]) -> str:
    return " and ".join(change["actions"])


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Return the names of the attributes, and of other keys such as `actions`, in which two changes differ."""
    named = set()
    for part in sorted(before.keys() | after.keys()):
        one, other = before.get(part), after.get(part)
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            named |= {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
        else:
            named.add(part)
    return named
