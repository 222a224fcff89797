"""Compares plans by what they do: two plans that do the same have one digest, whoever made them, and whenever."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

_OF_A_CHANGE = ("actions", "before", "after", "after_unknown", "importing", "replace_paths")


def normalised(plan: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a plan does, by address: actions, values before and after, what unknown ones refer to, and the same of outputs.

    The state's serial, times, and what is not changed are left out.

    Args:
        plan: As `terraform show -json` writes it.
    """
    expressions = {
        each["address"]: each.get("expressions", {})
        for each in plan.get("configuration", {}).get("root_module", {}).get("resources", [])
    }
    done = {}
    for each in plan.get("resource_changes", []):
        kept = {name: value for name in _OF_A_CHANGE if (value := each["change"].get(name)) is not None}
        if "previous_address" in each:
            kept["previous_address"] = each["previous_address"]
        # Of what only AWS knows yet, the values say nothing.
        declared = expressions.get(each["address"].partition("[")[0], {})
        unknown = {name for name, value in (each["change"].get("after_unknown") or {}).items() if _any(value)}
        if refers := {name: declared[name] for name in sorted(unknown & declared.keys())}:
            kept["refers"] = refers
        # Moves and imports change the state, even if they change nothing in AWS.
        if kept["actions"] != ["no-op"] or kept.keys() & {"importing", "previous_address"}:
            # A replacement that failed more than once leaves more than one.
            deposed = f" (deposed {each['deposed']})" if "deposed" in each else ""
            done[f"{each['address']}{deposed}"] = kept
    for name, change in plan.get("output_changes", {}).items():
        if change["actions"] != ["no-op"]:
            done[f"output.{name}"] = {each: change[each] for each in _OF_A_CHANGE if change.get(each) is not None}
    return done


def _any(value: Any) -> bool:
    """Whether anything in it is unknown."""
    if isinstance(value, Mapping):
        return any(map(_any, value.values()))
    return any(map(_any, value)) if isinstance(value, list) else bool(value)


def digest(plan: Mapping[str, Any]) -> str:
    """SHA-256 of what a plan does."""
    text = json.dumps(normalised(plan), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def told(plan: Mapping[str, Any]) -> list[str]:
    """What a plan does, by address: actions, and the names of attributes that it changes in place; never their values.

    >>> told({"resource_changes": [{"address": "aws_x.y", "change": {"actions": ["update"], "before": {"a": 1}, "after": {"a": 2}}}]})
    ['aws_x.y: update of a']
    """
    lines = []
    for address, change in sorted(normalised(plan).items()):
        line = f"{address}: {_told(change)}"
        if change["actions"] == ["update"]:
            before, after = change.get("before") or {}, change.get("after") or {}
            unknown = {name for name, value in change.get("after_unknown", {}).items() if _any(value)}
            names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} | unknown
            line += f" of {', '.join(sorted(names))}"
        lines.append(line)
    return lines


def differences(shown: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Where a plan does something else than the one that was shown; names of attributes, never their values.

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
    """Names of the attributes that differ, or of what else of a change does."""
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
