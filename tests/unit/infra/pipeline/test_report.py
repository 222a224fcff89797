"""Comments about plans and issues about drift say what there is, and fit."""

import re
from dataclasses import replace

from kinesis_efo_infra.pipeline.bundle import Changes, Meta
from kinesis_efo_infra.pipeline.report import LIMIT, Planned, comment, drift_body


def planned(stack: str, text: str = "+ resource", **changes: int) -> Planned:
    meta = Meta("dev", "c0ffee" * 7, "a" * 64, "b" * 64, "line", 7, "1.11.4", bool(changes), Changes(**changes))
    return Planned(stack, meta, text)


def test_comment_fits_githubs_limit() -> None:
    told = comment([planned(f"stack-{n}", "x" * 100_000, create=n) for n in range(7)], [], all_planned=True)
    assert len(told) < 65_536
    assert told.count("... the rest is in the artifact") == 7
    assert len(drift_body("dev", planned("dev").meta, "x" * 100_000, {})) < LIMIT


def large(actions: dict[str, str]) -> Planned:
    """A plan with these actions by address, of which Terraform says far more than a comment holds, in the order of the alphabet."""
    begin = {"create": "will be created", "delete": "will be destroyed", "update": "will be updated in-place"}
    blocks = [f"  # {address} {begin[actions[address]]}\n" + f"      + {address}\n" * 40 for address in sorted(actions)]
    text = "\n\n".join(["Terraform will perform:", *blocks]) + f"\n\nPlan: {len(actions)} to do."
    changes = [{"address": address, "change": {"actions": [each]}} for address, each in actions.items()]
    return replace(planned("dev", text, create=len(actions)), plan={"resource_changes": changes})


def test_losses_and_grants_of_large_plans_are_shown_first() -> None:
    streams = {f'aws_kinesis_stream.s["a {n:03}"]': "create" for n in range(300)}
    grants = dict.fromkeys(
        ("aws_kinesis_resource_policy.z", "aws_kms_key.z", "aws_iam_role.z", "data.aws_iam_policy_document.z"), "update"
    )
    planned = large({"aws_cloudwatch_metric_alarm.a": "update", **streams, **grants, "aws_s3_bucket.z": "delete"})
    assert len(planned.text) > 300_000
    told = comment([planned], [], all_planned=True)
    drifted = drift_body("dev", planned.meta, planned.text, {}, plan=planned.plan)
    first = [f"aws_{each}.z" for each in ("s3_bucket", "iam_role", "kinesis_resource_policy", "kms_key")]
    first.append("data.aws_iam_policy_document.z")
    for each in (told, drifted):
        assert len(each) < LIMIT
        # First all by address, those that matter first, and then their text in the same order.
        listed = each.partition("```hcl\n")[2].partition("\n```")[0].splitlines()
        addresses = [line.partition(": ")[0] for line in listed]
        assert (addresses[:5], len(addresses)) == (first, len(streams) + 6)
        shown = re.findall(r"(?m)^  # (.*) will be", each)
        assert shown[:5] == first
        assert shown == addresses[: len(shown)]
        left = 306 - len(shown)
        assert f"... {left} more are in the artifact: {left} x create aws_kinesis_stream\n" in each
        assert "Plan: 306 to do." in each


def test_text_of_a_plan_cannot_end_its_block() -> None:
    told = comment([planned("dev", 'description = "```"\n@everyone')], [], all_planned=True)
    assert '````hcl\ndescription = "```"\n@everyone\n````' in told


def test_drift_names_the_workflow_that_deploys() -> None:
    for under_way in ("", "c0ffee"):
        told = drift_body("dev", planned("dev", update=1).meta, "", {}, under_way=under_way, workflow="deploy-lake.yml")
        assert "`gh workflow run deploy-lake.yml --ref main" in told
        assert "deploy.yml" not in told
