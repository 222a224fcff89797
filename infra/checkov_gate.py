"""The checkov gate: scans synthesized stacks and plans, and makes sure that the scan really took place.

checkov exits with 0 for empty directories, files it cannot parse and unknown frameworks. Therefore every scan includes
planted faults that must be found, and a least number of checks must pass.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infra import allowed, extra, granted, locked_checkov, names
from infra.errors import GateError, InfraError
from infra.excuses import excused, load_excuses
from infra.granted import Named
from infra.load import DIRECTORY, load_environment
from infra.sarif import Failure, as_sarif
from infra.settings import Environment

logger = logging.getLogger(__name__)

CHECKS = Path(__file__).parent / "checks"
ENVIRONMENTS, BOOTSTRAP = "environment", "bootstrap"
"""Kinds of stacks: those of environments, which pipelines apply, and those that only an administrator applies."""
EXCUSED: Mapping[tuple[str, str, str], str] = {
    (
        ENVIRONMENTS,
        "CKV_AWS_18",
        "artifacts",
    ): "access logs need a bucket of the account's own; CloudTrail data events tell the same",
    (
        BOOTSTRAP,
        "CKV_AWS_18",
        "state",
    ): "access logs need a bucket of the account's own; CloudTrail data events tell the same",
    (
        ENVIRONMENTS,
        "CKV_AWS_144",
        "artifacts",
    ): "archives and programs are built again from their commit, in whatever region",
    (
        BOOTSTRAP,
        "CKV_AWS_144",
        "state",
    ): "a second state in another region could be applied by mistake; old versions are kept",
    (ENVIRONMENTS, "CKV2_AWS_62", "artifacts"): "nothing has to be told of new files",
    (BOOTSTRAP, "CKV2_AWS_62", "state"): "nothing has to be told of a new state",
    (ENVIRONMENTS, "CKV2_AWS_5", "workers"): "the application of EMR Serverless has it, which checkov does not look at",
    **{
        # In stacks, and the same two in plans.
        (ENVIRONMENTS, check, "roles_boundary"): "a boundary grants nothing: it bounds what a role's policies grant"
        for check in ("CKV_AWS_109", "CKV_AWS_111", "CKV_AWS_289", "CKV_AWS_290")
    },
    (
        BOOTSTRAP,
        "CKV_EFO_1",
        "pipeline_change_data",
    ): "the role that applies registers declared consumers; the jobs' roles are denied it",
}
"""Accepted failures by kind of stack, check and name, each with the reason. A check looks at one type, so that these are addresses."""
FLOOR = 25
"""The least number of checks that must pass for each stack or plan."""
CANARY = "canary"


@dataclass(frozen=True, slots=True)
class Result:
    """What a scan found.

    Attributes:
        failed: Checks that failed, planted faults aside.
        excused: Checks that failed and are accepted.
        reasons: Why, for those that a team excuses.
        passed: Number of checks passed, by stack or plan.
    """

    failed: Sequence[Failure]
    passed: Mapping[str, int]
    excused: Sequence[Failure] = ()
    reasons: Mapping[Failure, str] = field(default_factory=dict)


def canary() -> dict[str, Any]:
    """Terraform JSON with one planted fault of each kind that the gate must find."""
    return {
        "resource": {
            "aws_kinesis_stream": {"unencrypted": {"name": "unencrypted", "shard_count": 1}},
            "aws_kinesis_stream_consumer": {"stray": {"name": "stray", "stream_arn": "${var.somewhere}"}},
            "aws_dynamodb_table": {
                "other_key": {"name": "x", "hash_key": "id", "attribute": [{"name": "id", "type": "S"}]},
            },
            "aws_s3_bucket": {"open": {"bucket": "open"}},
            "aws_iam_policy": {
                "registers": {
                    "name": "registers",
                    "policy": _policy(Action="kinesis:*"),
                }
            },
            "aws_iam_role": {
                "unbounded": {"name": "unbounded", "assume_role_policy": _policy(Action="sts:AssumeRole")}
            },
            "aws_iam_role_policy_attachment": {
                "unseen": {"role": "unbounded", "policy_arn": "arn:aws:iam::aws:policy/AmazonKinesisFullAccess"}
            },
            "aws_kinesis_resource_policy": {
                "registers_shared": {
                    "resource_arn": "arn:aws:kinesis:eu-west-1:111122223333:stream/shared",
                    "policy": _policy(Action="kinesis:RegisterStreamConsumer", Principal={"AWS": "777788889999"}),
                }
            },
            "aws_kms_key": {"everybodys": {"policy": _policy(Action="kms:*", Principal={"AWS": "*"})}},
        },
        "data": {
            "aws_iam_policy_document": {
                "registers": {"statement": [{"actions": ["kinesis:RegisterStream*"], "resources": ["*"]}]},
                "everybody": {
                    "statement": [
                        {
                            "actions": ["kinesis:ListShards"],
                            "resources": ["*"],
                            "principals": [{"type": "AWS", "identifiers": ["*"]}],
                        }
                    ]
                },
            }
        },
    }


def _policy(**statement: Any) -> str:
    return json.dumps({"Statement": [{"Effect": "Allow", "Resource": "*", **statement}]})


PLANTED = {
    "CKV_AWS_43 aws_kinesis_stream.unencrypted",
    "CKV2_AWS_6 aws_s3_bucket.open",
    "CKV_EFO_4 aws_kinesis_stream_consumer.stray",
    "CKV_EFO_3 aws_dynamodb_table.other_key",
    "CKV_EFO_2 aws_iam_policy.registers",
    "CKV_EFO_2 aws_kinesis_resource_policy.registers_shared",
    "CKV_EFO_6 aws_kms_key.everybodys",
    "CKV_EFO_7 aws_iam_role.unbounded",
    "CKV_EFO_8 aws_iam_role_policy_attachment.unseen",
    "CKV_EFO_1 aws_iam_policy_document.registers",
    "CKV_EFO_5 aws_iam_policy_document.everybody",
}
_DOCUMENTS = ("CKV_EFO_1 ", "CKV_EFO_5 ")
"""Checks of Terraform's data sources, which a plan holds as the policies that they evaluate to."""


def scan_stacks(
    *synthesized: Path,
    bootstrap: Sequence[Path] = (),
    environments: Iterable[Environment] | None = None,
    beside: Path | None = None,
) -> Result:
    """Scan every stack that CDKTF's manifests list, all in one run of checkov.

    Args:
        synthesized: The output directories of syntheses of environments.
        bootstrap: Those of bootstrap stacks.
        environments: The environments, of which every stack must be one, and declare what they name; None not to look.
        beside: Directory of the environment files, beside which a team has types, checks and excuses of its own.

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
    ours = [] if environments is None else list(_ours(documents, kinds, list(environments), added))
    with TemporaryDirectory(prefix="kinesis-efo-gate-") as scratch:
        for name, document in {**documents, CANARY: canary()}.items():
            (Path(scratch) / name).mkdir()
            (Path(scratch) / name / "cdk.tf.json").write_text(json.dumps(document), encoding="utf-8")
        report = _checkov("terraform_json", scratch, ["--directory", scratch], beside)
        result = _judge(report, list(documents), PLANTED, kinds)
    result = excuse(result, beside, names.environment_of)
    return replace(result, failed=[*ours, *result.failed])


def excuse(result: Result, beside: Path | None, environment_of: Callable[[str], str | None]) -> Result:
    """A result without what a team excuses.

    Args:
        result: What a scan found.
        beside: Directory of the environment files; None for no excuses.
        environment_of: Gives the environment of a stack or plan.

    Raises:
        SettingsError: The excuses have faults.
    """
    if beside is None:
        return result
    today = datetime.now(UTC).date()
    failed, theirs = excused(result.failed, load_excuses(beside, today), today, environment_of)
    return replace(
        result, failed=failed, excused=[*result.excused, *(each for each, _ in theirs)], reasons=dict(theirs)
    )


def _ours(
    documents: Mapping[str, Mapping[str, Any]],
    kinds: Mapping[str, str],
    environments: Sequence[Environment],
    added: Collection[str] = (),
) -> Iterator[Failure]:
    """What stacks hold or grant that they may not; see `allowed` and `granted`."""
    by = {
        ENVIRONMENTS: {names.stack_name(each): Named.by(each) for each in environments},
        BOOTSTRAP: {
            names.bootstrap_stack_name(each): Named.by_bootstrap_of(each) for each in environments if each.pipeline
        },
    }
    for name, document in documents.items():
        named = by[kinds[name]].get(name)
        if named is None:
            yield Failure("EFO_ALLOWED", "Ensure that a stack is one of an environment file", name, name)
            continue
        found = allowed.in_stack(document, bootstrap=kinds[name] == BOOTSTRAP, extra=added)
        for each in found or granted.in_stack(document, named):
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


def scan_plans(plans: Sequence[Path], beside: Path | None = None, environment: str | None = None) -> Result:
    """Scan plans, as `terraform show -json` writes them: they have the values that Terraform evaluated, unlike stacks.

    Args:
        plans: The plans.
        beside: Directory of the environment files, beside which a team has checks and excuses of its own.
        environment: The environment of the plans, for excuses.

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
        arguments += ["--file", _write(Path(scratch) / CANARY / "plan.json", json.dumps(_canary_plan()))]
        report = _checkov("terraform_plan", scratch, arguments, beside)
        result = _judge(report, scanned, {each for each in PLANTED if not each.startswith(_DOCUMENTS)})
        return excuse(result, beside, lambda _: environment)


def _write(path: Path, text: str) -> str:
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return str(path)


def _scannable(stack: Path) -> dict[str, Any]:
    """A stack without `moved`, `import`, `removed` and `required_version`, which checkov cannot parse."""
    document: dict[str, Any] = json.loads(stack.read_text(encoding="utf-8"))
    if not document.get("resource"):
        raise GateError(f"{stack} declares nothing")
    document["terraform"] = {key: value for key, value in document["terraform"].items() if key != "required_version"}
    return {key: value for key, value in document.items() if key not in ("moved", "import", "removed")}


def _canary_plan() -> dict[str, Any]:
    resources = [
        {
            "address": f"{kind}.{name}",
            "mode": "managed",
            "type": kind,
            "name": name,
            "provider_name": "registry.terraform.io/hashicorp/aws",
            "schema_version": 0,
            "values": values,
        }
        for kind, named in canary()["resource"].items()
        for name, values in named.items()
    ]
    changes = [
        {**each, "change": {"actions": ["create"], "before": None, "after": each["values"]}} for each in resources
    ]
    return {
        "format_version": "1.2",
        "terraform_version": "1.11.4",
        "planned_values": {"root_module": {"resources": resources}},
        "resource_changes": changes,
        "configuration": {"root_module": {}},
    }


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


def _judge(
    reports: Sequence[Mapping[str, Any]],
    scanned: Sequence[str],
    planted: set[str],
    kinds: Mapping[str, str] | None = None,
) -> Result:
    """Separate planted faults from real ones, and refuse a scan that cannot be trusted."""
    kinds = kinds or {}
    if errors := sum(report["summary"]["parsing_errors"] for report in reports):
        raise GateError(f"checkov could not parse {errors} of the files")
    failed: list[Failure] = []
    accepted: list[Failure] = []
    found, passed = set(), Counter[str]()
    for report in reports:
        for check in report["results"]["failed_checks"]:
            origin, resource = _origin(check), check["resource"]
            named = (check["check_id"], resource.rpartition(".")[2])
            if origin == CANARY:
                found.add(named)
            else:
                failure = Failure(check["check_id"], check["check_name"], resource, origin, check.get("guideline"))
                (accepted if (kinds.get(origin, ENVIRONMENTS), *named) in EXCUSED else failed).append(failure)
        passed.update(_origin(check) for check in report["results"]["passed_checks"])
    # Some checks report a resource without its type.
    missed = {each for each in planted if (each.split(" ")[0], each.rpartition(".")[2]) not in found}
    if missed:
        raise GateError(f"the gate is blind: planted faults were not found: {', '.join(sorted(missed))}")
    if thin := {name: passed[name] for name in scanned if passed[name] < FLOOR}:
        raise GateError(f"fewer than {FLOOR} checks passed, so that something was not scanned: {thin}")
    return Result(failed, {name: passed[name] for name in scanned}, accepted)


def _origin(check: Mapping[str, Any]) -> str:
    return Path(check["file_abs_path"]).parent.name


def _reason(failure: Failure) -> str:
    named = (failure.check, failure.resource.rpartition(".")[2])
    return next(reason for (_, *excused), reason in EXCUSED.items() if tuple(excused) == named)


def _scan(options: argparse.Namespace) -> Result:
    # Not `load_environments`, which would say each warning once more.
    environments = [load_environment(path) for path in sorted(options.directory.glob("*.yaml"))]
    return scan_stacks(
        *options.synthesized, bootstrap=options.bootstrap, environments=environments, beside=options.directory
    )


def main(arguments: list[str] | None = None) -> int:
    """Scan, and log what was found; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.checkov_gate", description="Scan synthesized stacks, or plans."
    )
    parser.add_argument("synthesized", nargs="*", type=Path, default=[Path("cdktf.out")])
    parser.add_argument("--bootstrap", nargs="+", type=Path, default=[], help="synthesized bootstrap stacks")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="environment files (default: %(default)s)")
    parser.add_argument("--plan", nargs="+", type=Path, help="plans as JSON, instead of stacks")
    parser.add_argument("--sarif", type=Path, help="also write what was found as SARIF, for code scanning")
    parser.add_argument("--excused", action="store_true", help="also list what is excused, with the reasons")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        result = scan_plans(options.plan, options.directory) if options.plan else _scan(options)
    except InfraError as error:
        logger.error("error: %s", error)
        return 1
    if options.sarif:
        options.sarif.write_text(as_sarif(result.failed, options.directory), encoding="utf-8")
    for failure in result.failed:
        logger.error("failed: %s", failure)
    if options.excused:
        for failure in result.excused:
            logger.info("excused: %s: %s", failure, result.reasons.get(failure) or _reason(failure))
    told = f"{len(result.excused)} excused (--excused lists them)" if result.excused else "none excused"
    logger.info("checkov: %d failed, %s, %d passed", len(result.failed), told, sum(result.passed.values()))
    return 1 if result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
