"""checkov over complete environments, as stacks and as plans."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.gate.named import named_by
from infra.gate.scan import EXCUSED, Result, scan_plans, scan_stacks
from infra.settings import ledger
from infra.settings.load import load_environment, load_environments
from infra.stacks.app import synthesize, synthesize_bootstrap
from kinesis_efo_infra.gate import allowed, granted, locked_checkov, scan
from kinesis_efo_infra.pipeline import comparison
from tests.integration.infra.conftest import write_environment
from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.terraform.harness import Terraform
from tests.unit.infra.conftest import rows

pytestmark = pytest.mark.slow
Deploy = Callable[..., Terraform]
IN_PLANS = {("CKV_AWS_289", "roles_boundary"), ("CKV_AWS_290", "roles_boundary")}
# Without a pipeline, which brings a boundary for roles.
BY_HAND: dict[str, Any] = {
    "environment": "byhand",
    "applications": {"lake": {"streams": ["orders"], "access": {"kind": "emr-serverless"}}},
    "emr": {},
}


@pytest.mark.long
def test_complete_environments_pass_and_planted_faults_fail(tmp_path: Path) -> None:
    environments = [load_environment(path) for path in (*sorted(DIRECTORY.glob("*.yaml")), EXAMPLE)]
    environments.append(write_environment(tmp_path, **BY_HAND))
    for environment in environments:
        if environment.protected:
            ledger.accept(tmp_path, environment)
    out = synthesize(environments, tmp_path, outdir=tmp_path / "out")
    names = {f"kinesis-efo-{environment.environment}" for environment in environments}
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    text = (out / manifest["stacks"]["kinesis-efo-dev"]["synthesizedStackPath"]).read_text(encoding="utf-8")
    planted = json.loads(text)
    planted["resource"]["aws_kinesis_stream"]["flights"]["encryption_type"] = "NONE"
    for kind, name, values in dangers_and_harmless():
        planted["resource"].setdefault(kind, {})[name] = values
    (out / "planted.tf.json").write_text(json.dumps(planted), encoding="utf-8")
    manifest["stacks"]["planted"] = {"synthesizedStackPath": "planted.tf.json"}
    (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    # The bootstrap stacks are made of the same environments.
    bootstrap = synthesize_bootstrap(load_environments(DIRECTORY), tmp_path / "bootstrap")
    bootstraps = set(json.loads((bootstrap / "manifest.json").read_text(encoding="utf-8"))["stacks"])
    result = scan_stacks(out, bootstrap=[bootstrap], environments=environments)
    assert set(result.passed) == {*names, "planted", *bootstraps}
    assert {each.origin for each in result.failed} == {"planted"}
    # The stack that was planted is that of no environment.
    found = {each.check: str(each) for each in result.failed if each.check in ("EFO_ALLOWED", "CKV_AWS_43")}
    assert found["EFO_ALLOWED"].endswith("planted in planted")
    assert found["CKV_AWS_43"].endswith("resource.flights in planted")
    assert excused(result) == {tuple(each[1:]) for each in EXCUSED} - IN_PLANS, "a needless excuse"
    assert ours(result) == DANGERS


def excused(result: Result) -> set[tuple[str, ...]]:
    return {(each.check, each.resource.rpartition(".")[2]) for each in result.excused}


# By the check that finds it, if one does: what would let a job register consumers, or everybody in. In IAM's patterns, a bracket stands
# for itself. Names of the role that applies could begin like those of an environment `dev` of project `lake`.
PLANTED = r"""
CKV_EFO_2 aws_kinesis_resource_policy.shared => policy: {Effect: Allow, Principal: {AWS: 'arn:aws:iam::777788889999:root'}, NotAction: 's3:*', Resource: '*'}
CKV_EFO_2 aws_kinesis_resource_policy.bracket => policy: {Effect: Allow, Principal: {AWS: 'arn:aws:iam::777788889999:root'}, NotAction: 'kinesis:[rd]*', Resource: '*'}
CKV_EFO_6 aws_kms_key.open => policy: {Effect: Allow, Principal: '*', Action: 'kms:Decrypt', Resource: '*'}
CKV_EFO_7 aws_iam_role.unbounded => name: unbounded, path: /, assume_role_policy: '{}'
CKV_EFO_7 aws_iam_role.elsewhere => name: n, path: /lake-dev-x-pipeline/, assume_role_policy: '{}'
CKV_EFO_8 aws_iam_role_policy_attachment.full => role: r, policy_arn: 'arn:aws:iam::aws:policy/AmazonKinesisFullAccess'
CKV_EFO_8 aws_iam_role.inline => name: i, assume_role_policy: '{}', permissions_boundary: 'arn:aws:iam::111122223333:policy/b', managed_policy_arns: ['arn:aws:iam::aws:policy/PowerUserAccess']
none aws_iam_role.plan => name: lake-pipeline-dev-plan, path: /lake-pipeline/, assume_role_policy: '{}'
none aws_iam_role_policy_attachment.known => role: r, policy_arn: 'arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess'
none aws_iam_role_policy_attachment.own => role: r, policy_arn: 'arn:aws:iam::111122223333:policy/lake-buckets'
none aws_kinesis_resource_policy.denied => policy: {Effect: Deny, Principal: '*', Action: 'kms:Decrypt', Resource: '*'}
"""
DANGERS = {found for found, _ in rows(PLANTED) if not found.startswith("none")}


def dangers_and_harmless() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Type, name and values of each."""
    for found, written in rows(PLANTED):
        kind, _, name = found.partition(" ")[2].partition(".")
        values = yaml.safe_load("{" + written + "}")
        if "policy" in values:
            values["policy"] = json.dumps({"Statement": [values["policy"]]})
        yield kind, name, values


def ours(result: Result) -> set[str]:
    """What this project's own checks found; in stacks, checkov does not say a resource's type."""
    addresses = {address.partition(".")[2]: address for _, address in map(str.split, DANGERS)}
    named = [(each.check, each.resource.rpartition(".")[2]) for each in result.failed if "CKV_EFO" in each.check]
    return {f"{check} {addresses.get(name, name)}" for check, name in named}


def with_dangers(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan that also creates what is dangerous, and what is harmless."""
    planted, create = deepcopy(plan), {"actions": ["create"], "before": None}
    for kind, name, values in dangers_and_harmless():
        resource = {"address": f"{kind}.{name}", "mode": "managed", "type": kind, "name": name}
        resource["provider_name"] = "registry.terraform.io/hashicorp/aws"
        planned = {**resource, "schema_version": 0, "values": values}
        planted["planned_values"]["root_module"]["resources"].append(planned)
        planted["resource_changes"].append({**resource, "change": {**create, "after": values}})
    return planted


@pytest.mark.long
def test_plans_pass_and_planted_faults_in_plans_fail(deploy: Deploy, tmp_path: Path) -> None:
    environments = [load_environment(DIRECTORY / f"{name}.yaml") for name in ("dev", "prod")]
    plans = []
    for environment in [*environments, write_environment(tmp_path, **BY_HAND)]:
        terraform = deploy(environment)
        plan = terraform.plan()
        assert allowed.in_plan(plan) == []
        assert granted.in_plan(plan, named_by(environment)) == []
        plans.append((plan, json.loads((terraform.stack / "cdk.tf.json").read_text(encoding="utf-8"))))
    plans.append((with_dangers(plans[0][0]), plans[0][1]))
    shown = [comparison.shown(*each, "key") for each in plans]
    assert all("hmac-sha256:" in json.dumps(each) for each in shown)
    forms = [scan.scannable(each, stack) for each, (_, stack) in zip(shown, plans, strict=True)]
    paths = [tmp_path / f"plan-{number}.json" for number in range(8)]
    for path, form in zip(paths, [*(plan for plan, _ in plans), *forms], strict=True):
        path.write_text(json.dumps(form), encoding="utf-8")
    result = scan_plans(paths)
    assert set(result.passed) == {f"plan-{number}" for number in range(8)}
    # What is shown of a plan, without secrets, passes and fails the same checks.
    for number in range(4):
        # Only CKV_AWS_41 is left out, which looks for keys in the provider: the positive list allows none there.
        assert result.passed[f"plan-{number}"] - result.passed[f"plan-{number + 4}"] == 1
        found = [
            sorted((each.check, each.resource) for each in [*result.failed, *result.excused] if each.origin == origin)
            for origin in (f"plan-{number}", f"plan-{number + 4}")
        ]
        assert found[0] == found[1]
    assert {each.origin for each in result.failed} == {"plan-3", "plan-7"}
    assert ours(result) == DANGERS
    assert excused(result) >= IN_PLANS, "a needless excuse"


OWN_CHECK = """
from checkov.common.models.enums import CheckCategories, CheckResult
from checkov.terraform.checks.resource.base_resource_check import BaseResourceCheck


class Named(BaseResourceCheck):
    def __init__(self):
        super().__init__(
            name="Ensure that queues are called after their environment",
            id="CKV_ACME_1",
            categories=[CheckCategories.CONVENTION],
            supported_resources=["aws_sqs_queue"],
        )

    def scan_resource_conf(self, conf):
        return CheckResult.PASSED if conf["name"][0].startswith("test-") else CheckResult.FAILED


check = Named()
"""
EXTRA = """
TYPES = ["aws_sqs_queue"]


def extra(stack, environment, parts):
    from cdktf_cdktf_provider_aws.sqs_queue import SqsQueue

    assert parts.streams["orders"].arn and parts.policies.keys() == {"lake"}
    SqsQueue(stack, "dead", name="dead")
    SqsQueue(stack, "alive", name="test-alive", kms_master_key_id=parts.key_arn)
"""
EXCUSES = """
- check: CKV_AWS_27
  resource: aws_sqs_queue.dead
  environment: test
  reason: it holds nothing but numbers of records
  until: {until}
"""


@pytest.fixture
def scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """checkov is asked once, and its answer stands: what it scans and with which checks stays the same in the test."""
    run, ran = locked_checkov.run, list[Any]()

    def once(*arguments: Any) -> Any:
        if not ran:
            ran.append(run(*arguments))
        return ran[0]

    monkeypatch.setattr(locked_checkov, "run", once)


@pytest.mark.long
@pytest.mark.usefixtures("scanned_once")
def test_team_has_its_own_resources_checks_and_excuses(tmp_path: Path) -> None:
    environment = write_environment(tmp_path)
    (tmp_path / "extra.py").write_text(EXTRA, encoding="utf-8")
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "names.py").write_text(OWN_CHECK, encoding="utf-8")
    (tmp_path / "checks" / "__init__.py").write_text(
        "import glob\nfrom os.path import basename, dirname, join\n"
        "__all__ = [basename(each)[:-3] for each in glob.glob(join(dirname(__file__), '*.py'))]\n"
    )
    out = synthesize([environment], tmp_path, outdir=tmp_path / "out")
    today = datetime.now(UTC).date()
    (tmp_path / "excuses.yaml").write_text(EXCUSES.format(until=today + timedelta(days=30)), encoding="utf-8")
    result = scan_stacks(out, environments=[environment], beside=tmp_path)
    assert [(each.check, each.resource.rpartition(".")[2]) for each in result.failed] == [("CKV_ACME_1", "dead")]
    assert "it holds nothing but numbers of records" in next(iter(result.reasons.values()))
    # The excuse ends, and without the file its type is not allowed.
    (tmp_path / "excuses.yaml").write_text(EXCUSES.format(until=today - timedelta(days=1)), encoding="utf-8")
    (tmp_path / "extra.py").unlink()
    result = scan_stacks(out, environments=[environment], beside=tmp_path)
    assert {each.check for each in result.failed} == {"EFO_ALLOWED", "CKV_ACME_1", "CKV_AWS_27"}
    (ended,) = [each for each in result.failed if each.check == "CKV_AWS_27"]
    assert f"its excuse ended on {today - timedelta(days=1)}" in str(ended)
