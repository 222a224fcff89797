"""What a version before has deployed meets the present one, and the other way round: nothing is replaced.

The stacks in `deployed` are those of commit 3306112, synthesized from the environment file that is written here.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.pipeline.apply_bootstrap import apply_bootstrap
from infra.settings.names import Names
from infra.stacks.app import synthesize_bootstrap
from kinesis_efo_infra.pipeline.bundle import PLAN_JSON
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import BACKEND, Checkout
from tests.integration.pipeline.test_apply_bootstrap import reach, state_of

DEPLOYED = Path(__file__).parent / "deployed"
FILE = {
    "environment": "before",
    "region": "eu-west-1",
    "account_id": "111122223333",
    "state_bucket": "terraform-state-before",
    "pipeline": {"repository": "acme/lake"},
    "emr": {},
    "streams": {"orders": {"mode": "provisioned", "shards": 2}},
    "applications": {"lake": {"streams": ["orders"], "access": {"kind": "emr-serverless"}}},
}


def ids(state: dict[str, Any]) -> dict[str, str]:
    """What AWS knows each resource by: another one, where it was replaced."""
    return {
        f"{each['type']}.{each['name']}": instance["attributes"]["id"]
        for each in state["resources"]
        if each["mode"] == "managed"
        for instance in each["instances"]
    }


def reading(state: dict[str, Any]) -> set[str]:
    """What readers may do with the streams."""
    (policy,) = (each for each in state["resources"] if each["type"] == "aws_iam_policy" and each["name"] == "lake")
    statements = json.loads(policy["instances"][0]["attributes"]["policy"])["Statement"]
    return {action for each in statements if each["Sid"] == "ReadStreams" for action in each["Action"]}


@pytest.mark.long
def test_stack_of_an_earlier_version_changes_in_place(
    checkout: Checkout,
    aws: LocalAws,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    repository, s3 = checkout("before", **FILE), aws.client("s3")
    environment, names = repository.environment, Names(repository.environment)

    def bootstrap(version: str, recorded: Path | None = None) -> tuple[dict[str, str], set[str]]:
        """Apply a version's bootstrap stack; what there is afterwards, and what was said before."""
        monkeypatch.setenv("TF_CLI_ARGS_init", "")
        out = reach(repository.directory / version, environment, monkeypatch)
        if recorded is None:
            synthesize_bootstrap([environment], out)
        else:
            (out / "stacks" / names.bootstrap_stack_name / "cdk.tf.json").write_bytes(recorded.read_bytes())
        caplog.clear()
        with caplog.at_level("INFO"):
            apply_bootstrap(environment, out, s3, aws.client("iam"), approve=True)
        prefix = f"{names.bootstrap_stack_name}: "
        said = {each.removeprefix(prefix) for each in caplog.messages if each.startswith(prefix)}
        return ids(state_of(aws, environment)), said

    def deploy(version: str, synthesized: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """Apply a version's stack; the state afterwards, and what was done, by address."""
        monkeypatch.setenv("TF_CLI_ARGS_init", " ".join(f"-backend-config={each}=true" for each in BACKEND))
        planner = replace(repository.planner(), synthesized=synthesized)
        planner.plan(repository.deployment, version, repository.plans)
        plan = json.loads((repository.plans / names.stack_name / PLAN_JSON).read_text(encoding="utf-8"))
        actions = {each["address"]: each["change"]["actions"] for each in plan["resource_changes"]}
        done = {address: each for address, each in actions.items() if each not in (["no-op"], ["read"])}
        planner.apply(repository.deployment, [version], repository.plans)
        return json.loads(planner.records.state(repository.deployment) or b""), done

    recorded = tmp_path / "recorded" / "stacks" / names.stack_name
    recorded.mkdir(parents=True)
    (recorded / "cdk.tf.json").write_bytes((DEPLOYED / "environment.json").read_bytes())

    before, _ = bootstrap("before", DEPLOYED / "bootstrap.json")
    assert {"aws_iam_role.apply", "aws_iam_policy.change_access", "aws_s3_bucket.state"} <= before.keys()
    old, _ = deploy("before", tmp_path / "recorded")
    deployed = ids(old)
    assert {"aws_kinesis_stream.orders", "aws_kinesis_stream_consumer.orders_lake"} <= deployed.keys()

    new = {"aws_iam_policy.change_keys", "aws_iam_role_policy_attachment.apply_change_keys"}
    now, said = bootstrap("now")
    assert now.keys() - before.keys() == new
    assert {address: now[address] for address in before} == before
    assert "aws_iam_role.apply: update of assume_role_policy" in said
    assert {f"{each}: create" for each in new} <= said
    assert not [each for each in said if "delete" in each], "something was replaced"
    again, said = bootstrap("again")
    assert (again, said) == (now, {"nothing changes"})
    state, done = deploy("now", repository.synthesized)
    present = ids(state)
    # Without a topic, an alarm tells nobody.
    alarms = {address for address in deployed if address.startswith("aws_cloudwatch_metric_alarm.")}
    assert present == {address: each for address, each in deployed.items() if address not in alarms}
    assert {address for address, actions in done.items() if actions == ["delete"]} == alarms
    assert not [address for address, actions in done.items() if "create" in actions], "something was replaced"
    assert reading(state) - reading(old) == {"kinesis:GetRecords", "kinesis:GetShardIterator"}

    state, done = deploy("back", tmp_path / "recorded")
    assert ids(state) == deployed
    assert {address for address, actions in done.items() if "create" in actions} == alarms
    assert reading(state) == reading(old)
    back, said = bootstrap("back", DEPLOYED / "bootstrap.json")
    assert back == before
    assert {each for each in said if "delete" in each} == {f"{each}: delete" for each in new}
    assert {each.levelname for each in caplog.records if each.getMessage().endswith(": delete")} == {"WARNING"}
