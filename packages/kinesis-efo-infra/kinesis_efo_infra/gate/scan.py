"""Scans synthesized stacks and plans with checkov, and verifies that the scan really took place.

checkov exits with 0 for empty directories, files it cannot parse and unknown frameworks. Therefore every scan includes
planted faults that must be found, and a minimum number of checks must pass.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kinesis_efo_infra.errors import GateError
from kinesis_efo_infra.gate import allowed, excuses, extra, granted, locked_checkov
from kinesis_efo_infra.gate.failures import Failure, Result
from kinesis_efo_infra.gate.granted import Named
from kinesis_efo_infra.gate.planted import CANARY, DOCUMENTS, PLANTED, canary, canary_changes

CHECKS = Path(__file__).parent / "checks"
ENVIRONMENTS, BOOTSTRAP = "environment", "bootstrap"
"""Kinds of stacks: environments' stacks, which pipelines apply, and bootstrap stacks, which only an administrator applies."""

_REFERENCE = re.compile(r"((?:\bdata\.)?\baws_\w+\.[\w-]+)(?:\.\w+)?")
"""Pattern for a reference to an attribute of a resource or data source."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The failures that the author of an app accepts in its stacks.

    Attributes:
        excused: Why a failure is accepted, by kind of stack, id of the check, and name of the resource. The resource's type is not
            needed, because a check covers only one type.
        floor: The minimum number of checks that must pass for each stack or plan.
    """

    excused: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    floor: int = 1


NOTHING = Accepted()


def scan_stacks(
    *synthesized: Path,
    bootstrap: Sequence[Path] = (),
    named: Mapping[tuple[str, str], Named] | None = None,
    beside: Path | None = None,
    environment_of: Callable[[str], str | None] = lambda _: None,
    accepted: Accepted = NOTHING,
) -> Result:
    """Scan every stack that CDKTF's manifests list, all in one run of checkov.

    Args:
        synthesized: Output directories of CDKTF with environments' stacks.
        bootstrap: Output directories of CDKTF with bootstrap stacks.
        named: What each stack may grant, by kind and name of the stack; other stacks are rejected. None skips this check.
        beside: Directory of the environment files, which also has the team's own resource types, checks and excuses.
        environment_of: Returns the environment of a stack.
        accepted: Failures that are accepted, in addition to the team's excuses.

    Raises:
        GateError: There is nothing to scan, or the scan cannot be trusted.
    """
    documents: dict[str, dict[str, Any]] = {}
    kinds: dict[str, str] = {}
    for kind, directory in [
        *((ENVIRONMENTS, each) for each in synthesized),
        *((BOOTSTRAP, each) for each in bootstrap),
    ]:
        for name, document in _stacks(directory).items():
            if name in documents:
                raise GateError(f"{directory} has a second stack {name}: synthesize each environment once")
            documents[name], kinds[name] = document, kind
    added = extra.types(beside) if beside else frozenset()
    ours = [] if named is None else list(refused(documents, kinds, named, added))
    with TemporaryDirectory(prefix="kinesis-efo-gate-") as scratch:
        for name, document in {**documents, CANARY: canary()}.items():
            (Path(scratch) / name).mkdir()
            (Path(scratch) / name / "cdk.tf.json").write_text(json.dumps(document), encoding="utf-8")
        report = _checkov("terraform_json", scratch, ["--directory", scratch], beside)
        result = judge(report, list(documents), PLANTED, kinds, accepted)
    result = excuse(result, beside, environment_of)
    return replace(result, failed=[*ours, *result.failed])


def excuse(result: Result, beside: Path | None, environment_of: Callable[[str], str | None]) -> Result:
    """Return a result without the failures that a team excuses.

    Args:
        result: The result of a scan.
        beside: Directory of the environment files; None for no excuses.
        environment_of: Returns the environment of a stack or plan.

    Raises:
        SettingsError: The file with the excuses has faults.
    """
    if beside is None:
        return result
    today = datetime.now(UTC).date()
    failed, theirs = excuses.excused(result.failed, excuses.load_excuses(beside, today), today, environment_of)
    return replace(
        result,
        failed=failed,
        excused=[*result.excused, *(each for each, _ in theirs)],
        reasons={**result.reasons, **dict(theirs)},
    )


def refused(
    documents: Mapping[str, Mapping[str, Any]],
    kinds: Mapping[str, str],
    named: Mapping[tuple[str, str], Named],
    added: Collection[str] = (),
) -> Iterator[Failure]:
    """Yield a failure for everything that a stack contains or grants without being allowed to; see `allowed` and `granted`."""
    for name, document in documents.items():
        may = named.get((kinds[name], name))
        if may is None:
            yield Failure("EFO_ALLOWED", "Ensure that a stack is one of an environment file", name, name)
            continue
        found = allowed.in_stack(document, bootstrap=kinds[name] == BOOTSTRAP, extra=added)
        for each in found or granted.in_stack(document, may):
            address, _, why = each.partition(": ")
            yield Failure("EFO_ALLOWED" if found else "EFO_GRANTED", why, address, name)


def _stacks(synthesized: Path) -> dict[str, dict[str, Any]]:
    try:
        stacks = json.loads((synthesized / "manifest.json").read_text(encoding="utf-8"))["stacks"]
        return {name: _scannable(synthesized / stack["synthesizedStackPath"]) for name, stack in stacks.items()}
    except (OSError, ValueError, KeyError) as error:
        raise GateError(
            f"{synthesized} holds no synthesized stacks: {type(error).__name__}: {error}; run `make synth`"
        ) from None


def scan_plans(
    plans: Sequence[Path],
    beside: Path | None = None,
    environment: str | None = None,
    accepted: Accepted = NOTHING,
) -> Result:
    """Scan plans. Unlike stacks, they contain the values that Terraform evaluated.

    Args:
        plans: Files with plans, as `terraform show -json` writes them.
        beside: Directory of the environment files, which also has the team's own checks and excuses.
        environment: The environment of the plans, for excuses.
        accepted: Failures that are accepted, in addition to the team's excuses.

    Raises:
        GateError: There is nothing to scan, or the scan cannot be trusted.
    """
    with TemporaryDirectory(prefix="kinesis-efo-gate-") as scratch:
        scanned = []
        arguments = []
        for number, plan in enumerate(plans):
            try:
                text = plan.read_text(encoding="utf-8")
                if not json.loads(text)["planned_values"]["root_module"]["resources"]:
                    raise ValueError("it has no resources")
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise GateError(f"{plan} is not the JSON of a plan: {type(error).__name__}: {error}") from None
            scanned.append(f"plan-{number}")
            arguments += ["--file", _write(Path(scratch) / f"plan-{number}" / "plan.json", text)]
        planted = json.dumps(scannable({"resource_changes": canary_changes()}, {}))
        arguments += ["--file", _write(Path(scratch) / CANARY / "plan.json", planted)]
        report = _checkov("terraform_plan", scratch, arguments, beside)
        result = judge(report, scanned, {each for each in PLANTED if not each.startswith(DOCUMENTS)}, {}, accepted)
        return excuse(result, beside, lambda _: environment)


def scannable(plan: Mapping[str, Any], stack: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a plan from `comparison.shown` back to the format of `terraform show -json`, which checkov reads.

    Args:
        plan: The plan, as `comparison.shown` returns it.
        stack: The stack's Terraform JSON, which contains the references between resources.
    """
    planned = [
        {**{name: each[name] for name in ("address", "mode", "type", "name")}, "values": each["change"]["after"]}
        for each in plan["resource_changes"]
        if each["change"].get("after") is not None
    ]
    declared = [
        {"type": kind, "name": name, "expressions": _references(body)}
        for section in ("resource", "data")
        for kind, entries in stack.get(section, {}).items()
        for name, body in entries.items()
    ]
    return {
        "format_version": "1.2",
        "terraform_version": "1.11.4",
        "planned_values": {"root_module": {"resources": planned}},
        "resource_changes": plan["resource_changes"],
        "configuration": {"root_module": {"resources": declared}},
    }


def _references(value: Any) -> Any:
    """Return the references in a block as a Terraform plan lists them: `aws_x.y.arn` results in `["aws_x.y.arn", "aws_x.y"]`."""
    if isinstance(value, Mapping):
        return {name: _references(each) for name, each in value.items()}
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        return [_references(each) for each in value]
    found = _REFERENCE.finditer(json.dumps(value)) if "${" in json.dumps(value) else ()
    return {"references": [part for each in found for part in dict.fromkeys((each[0], each[1]))]}


def _write(path: Path, text: str) -> str:
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return str(path)


def _scannable(stack: Path) -> dict[str, Any]:
    """Return a stack without `moved`, `import`, `removed` and `required_version`, which checkov cannot parse."""
    document: dict[str, Any] = json.loads(stack.read_text(encoding="utf-8"))
    if not document.get("resource"):
        raise GateError(f"{stack} declares nothing")
    document["terraform"] = {key: value for key, value in document["terraform"].items() if key != "required_version"}
    return {key: value for key, value in document.items() if key not in ("moved", "import", "removed")}


def _checkov(
    framework: str, scratch: str, arguments: Sequence[str], beside: Path | None = None
) -> list[dict[str, Any]]:
    settings = ("--framework", framework, "--compact", "--output", "json")
    checks = ["--external-checks-dir", str(CHECKS)]
    if beside is not None and (beside / extra.CHECKS).is_dir():
        checks += ["--external-checks-dir", str((beside / extra.CHECKS).absolute())]
    ran = locked_checkov.run([*settings, *checks, *arguments], scratch)
    decoder, reports, text = json.JSONDecoder(), [], ran.stdout.strip()
    try:
        while text:
            report, end = decoder.raw_decode(text)
            reports += report if isinstance(report, list) else [report]
            text = text[end:].strip()
    except ValueError:
        raise GateError(f"checkov did not report: {ran.stdout[-500:]}{ran.stderr[-2000:]}") from None
    if not reports or not all("results" in report for report in reports):
        raise GateError(f"checkov scanned nothing: {ran.stdout[-500:]}{ran.stderr[-2000:]}")
    return reports


def judge(
    reports: Sequence[Mapping[str, Any]],
    scanned: Sequence[str],
    planted: set[str],
    kinds: Mapping[str, str],
    accepted: Accepted = NOTHING,
) -> Result:
    """Return a scan's result without the planted faults. Raises `GateError` if one of these is missing, or if too few checks passed."""
    if errors := sum(report["summary"]["parsing_errors"] for report in reports):
        raise GateError(f"checkov could not parse {errors} of the files")
    failed: list[Failure] = []
    excused: dict[Failure, str] = {}
    found, passed = set(), Counter[str]()
    for report in reports:
        for check in report["results"]["failed_checks"]:
            origin, resource = _origin(check), check["resource"]
            named = (check["check_id"], resource.rpartition(".")[2])
            if origin == CANARY:
                found.add(named)
            else:
                failure = Failure(check["check_id"], check["check_name"], resource, origin, check.get("guideline"))
                if reason := accepted.excused.get((kinds.get(origin, ENVIRONMENTS), *named)):
                    excused[failure] = reason
                else:
                    failed.append(failure)
        passed.update(_origin(check) for check in report["results"]["passed_checks"])
    # Compare names only, because some checks report a resource without its type.
    missed = {each for each in planted if (each.split(" ")[0], each.rpartition(".")[2]) not in found}
    if missed:
        raise GateError(f"the gate is blind: planted faults were not found: {', '.join(sorted(missed))}")
    if thin := {name: passed[name] for name in scanned if passed[name] < accepted.floor}:
        raise GateError(f"fewer than {accepted.floor} checks passed, so that something was not scanned: {thin}")
    return Result(failed, {name: passed[name] for name in scanned}, list(excused), excused)


def _origin(check: Mapping[str, Any]) -> str:
    return Path(check["file_abs_path"]).parent.name
