"""The workflows call what there is, with actions that cannot change under them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.pipeline import github
from infra.pipeline.__main__ import _parser
from infra.stacks.bootstrap import SESSION_SECONDS
from tests.support.missing import EVERYTHING, make

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PULL_REQUEST = ROOT / ".github" / "workflows" / "pull-request.yml"
DEPLOY = ROOT / ".github" / "workflows" / "deploy.yml"
DEPLOY_ENVIRONMENT = ROOT / ".github" / "workflows" / "deploy-environment.yml"
ACTIONS = sorted((ROOT / ".github" / "actions").glob("*/action.yml"))


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def every_step() -> list[dict[str, Any]]:
    in_jobs = [step for path in WORKFLOWS for job in document(path)["jobs"].values() for step in job.get("steps", [])]
    return in_jobs + [step for path in ACTIONS for step in document(path)["runs"]["steps"]]


def scripts() -> str:
    return "\n".join(step["run"] for step in every_step() if "run" in step)


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.stem)
def test_every_action_is_a_commit_with_its_version_beside_it(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    assert used
    for action, comment in used:
        assert action.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert action.startswith("./") or re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_an_action_has_one_version_everywhere() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*WORKFLOWS, *ACTIONS])
    versions: dict[str, set[str]] = {}
    for action, commit in re.findall(r"uses: ([\w./-]+)@(\w+)", text):
        versions.setdefault(action, set()).add(commit)
    assert all(len(commits) == 1 for commits in versions.values()), versions


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_nothing_is_permitted_but_what_a_job_asks_for(path: Path) -> None:
    workflow = document(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert "permissions" in job, name
        assert ("timeout-minutes" in job) is ("uses" not in job), name


def test_identities_are_given_to_jobs_that_need_them_and_write_access_to_github_to_others() -> None:
    for path in WORKFLOWS:
        for name, job in document(path)["jobs"].items():
            permitted = job["permissions"]
            if "uses" in job:
                # The most that jobs of the called workflow may ask for, which is looked at itself.
                assert job["uses"] == f"./.github/workflows/{DEPLOY_ENVIRONMENT.name}"
                continue
            used = {step.get("uses", "").partition("@")[0] for step in job["steps"]}
            is_known = bool(used & {"./.github/actions/terraform", "pypa/gh-action-pypi-publish"})
            assert (permitted.get("id-token") == "write") is is_known, name
            if "write" in (permitted.get("pull-requests"), permitted.get("contents"), permitted.get("actions")):
                assert not is_known, "code of a pull request holds one key at a time"


def test_a_job_that_may_ask_for_an_identity_runs_nothing_that_a_stack_is_synthesized_with() -> None:
    checked = 0
    for path in WORKFLOWS:
        workflow = document(path)
        for name, job in workflow["jobs"].items():
            if job["permissions"].get("id-token") != "write" or "uses" in job or path.stem == "release":
                continue
            used = [step.get("uses", step.get("run", "")) for step in job["steps"]]
            handed, assumed = used.index("./.github/actions/handed"), used.index("./.github/actions/terraform")
            assert handed < assumed, name
            assert not any(
                word in step for step in used for word in ("synth", "setup", ".venv/", "make environments")
            ), name
            # Every `make` uses the small environment, and what was handed over is checked by its digest.
            variables = {**workflow.get("env", {}), **job.get("env", {})}
            assert variables["PIPELINE_VENV"] == ".venv-pipeline", name
            assert variables["HANDED"] in ("${{ needs.synth.outputs.digest }}", "${{ inputs.handed }}"), name
            checked += 1
    assert checked == 4


def test_the_small_environment_has_what_plans_and_applies_and_neither_spark_nor_cdktf() -> None:
    asked = subprocess.run(
        [make(), "-n", "-B", "pipeline"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "--no-default-groups --group pipeline --extra emr --no-build" in asked
    assert "--no-install-project --no-install-package kinesis-efo-infra" in asked
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    assert not any(word in each for each in groups["pipeline"] for word in ("spark", "cdkt", "moto"))
    assert 'digest="$(make -s digest)"' in (ROOT / ".github/actions/synth/action.yml").read_text(encoding="utf-8")


def test_their_make_targets_exist() -> None:
    targets = {word for line in re.findall(r"make (?:-s )?([a-z ]+)", scripts()) for word in line.split()}
    assert {"lint", "test", "synth", "engines", "plan", "apply", "jobs", "drift", "environments"} <= targets
    for target in targets:
        asked = subprocess.run([make(), "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "No rule to make target" not in asked.stderr, asked.stderr


def test_terraform_has_one_version_everywhere() -> None:
    asked = [step["with"] for step in every_step() if step.get("uses", "").startswith("hashicorp/setup-terraform@")]
    assert len(asked) == 3
    assert asked[0] == asked[1] == asked[2]


def test_before_a_merge_and_before_a_release_every_test_is_run() -> None:
    (testing,) = [step for step in every_step() if "make cdktf test" in step.get("run", "")]
    assert testing["env"][EVERYTHING]
    action = document(ROOT / ".github" / "actions" / "test" / "action.yml")["runs"]["steps"]
    assert action[0]["uses"].startswith("hashicorp/setup-terraform@"), "the tests with real Terraform need it"
    assert action[-1] == testing
    for name in ("pull-request", "release"):
        job = document(ROOT / ".github" / "workflows" / f"{name}.yml")["jobs"]["test"]
        assert job["steps"][-1] == {"uses": "./.github/actions/test"}


def test_both_engines_are_compared_and_scanned_before_a_merge() -> None:
    job = document(PULL_REQUEST)["jobs"]["engines"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [
        "make engines ENVIRONMENTS=examples/environments",
        "make synth KINESIS_EFO_CDK=cdktn ENVIRONMENTS=examples/environments",
    ]


def test_their_steps_exist() -> None:
    (steps,) = [action.choices for action in _parser()._actions if hasattr(action, "choices") and action.choices]
    called = set(re.findall(r"infra\.pipeline ([a-z-]+)", scripts()))
    assert called == {"environments", "github-approval", "github-comment", "github-findings", "github-issue", "plan"}
    assert called <= set(steps)


def test_only_plans_of_the_workflow_that_is_there_are_taken() -> None:
    assert (ROOT / github._PLANNED_BY).exists()
    upload = (ROOT / github._PLANNED_BY).read_text(encoding="utf-8")
    assert "name: plan-${{ matrix.stack }}-${{ env.COMMIT }}" in upload, "as fetch_plan looks for it"


def test_what_is_deployed_is_what_names_the_branch_that_was_pushed() -> None:
    for name in ("deploy", "drift"):
        synth = document(ROOT / ".github" / "workflows" / f"{name}.yml")["jobs"]["synth"]
        assert synth["steps"][-1]["with"]["branch"] == "${{ github.ref_name }}", name
        assert "if" not in synth, name
    deploy = document(DEPLOY)
    # YAML 1.1 reads the key `on` as true. Never tags, and no branch that nothing is deployed from.
    assert deploy[True]["push"] == {"branches": ["main"]}  # type: ignore[index]
    assert deploy["jobs"]["deploy"]["strategy"]["max-parallel"] == 1
    assert deploy["jobs"]["deploy"]["with"]["github_environment"] == "${{ matrix.github_environment }}"


def test_a_plan_is_shown_before_the_approval_and_that_plan_is_what_is_approved() -> None:
    jobs = document(DEPLOY_ENVIRONMENT)["jobs"]
    plan, deploy, again = jobs["plan"], jobs["deploy"], jobs["again"]
    assert "environment" not in plan, "no approval comes before the plan"
    assert deploy["environment"] == "${{ inputs.github_environment }}"
    assert deploy["needs"] == "plan"
    roles = [
        step["with"]["role"] for job in (plan, deploy) for step in job["steps"] if "terraform" in step.get("uses", "")
    ]
    assert roles == ["${{ inputs.plan_role }}", "${{ inputs.apply_role }}"]
    shown = [step.get("run", "") for step in plan["steps"]]
    assert shown.index('make -s comment ONLY="$ENV" >> "$GITHUB_STEP_SUMMARY"') < len(shown) - 1
    assert "github-approval" in shown[-1]
    (apply,) = [step for step in deploy["steps"] if step.get("id") == "apply"]
    assert apply["env"]["APPROVED"] == "${{ needs.plan.outputs.digest }}"
    assert 'APPROVED="$APPROVED"' in apply["run"]
    # What is not what was approved any more asks for another approval, and is not applied.
    assert again["needs"] == "deploy"
    assert again["if"] == "${{ failure() && needs.deploy.outputs.stale == 'true' }}"
    assert again["permissions"] == {"actions": "write"}
    assert "approved" not in str(again["steps"])


def test_a_merge_queue_gets_the_check_and_makes_no_plan() -> None:
    workflow = document(PULL_REQUEST)
    assert "merge_group" in workflow[True]  # type: ignore[index]
    assert "github.event_name != 'merge_group'" in workflow["jobs"]["plan"]["if"]
    done = dict.fromkeys(("lint", "test", "synth", "engines"), "success")
    assert summary({**done, "plan": "skipped", "comment": "skipped"}, any_plan=False, event="merge_group") == ""
    assert summary(
        {**done, "test": "failure", "plan": "skipped", "comment": "skipped"}, any_plan=False, event="merge_group"
    )


def test_what_is_planned_is_deployed_from_the_branch_that_is_merged_into() -> None:
    workflow = document(PULL_REQUEST)
    assert workflow["env"]["BRANCH"] == "${{ github.base_ref || github.ref_name }}"
    asked = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "$BRANCH" in str(step)]
    assert [("--branch" in each, "--base" in each) for each in asked] == [(False, True), (True, False)]
    assert workflow["jobs"]["synth"]["steps"][1]["with"]["branch"] == "${{ env.BRANCH }}"


def test_an_approval_that_waits_holds_up_its_own_environment_only() -> None:
    deploy = document(DEPLOY)
    assert "concurrency" not in deploy
    group = {"group": "deploy-${{ matrix.github_environment }}", "cancel-in-progress": False}
    assert deploy["jobs"]["deploy"]["concurrency"] == group


def summary(results: Mapping[str, str], *, any_plan: bool = True, event: str = "pull_request") -> str:
    """What the job that sums up the others says; empty if it succeeds."""
    (step,) = document(PULL_REQUEST)["jobs"]["checks"]["steps"]
    assert step["shell"] == "python"
    needs = {name: {"result": result, "outputs": {}} for name, result in results.items()}
    environment = {"NEEDS": json.dumps(needs), "ANY_PLAN": str(any_plan).lower(), "GITHUB_EVENT_NAME": event}
    ran = subprocess.run(
        [sys.executable, "-c", step["run"]], env=environment, capture_output=True, text=True, check=False
    )
    assert bool(ran.returncode) == bool(ran.stderr), ran.stderr
    return ran.stderr.strip()


def test_one_check_stands_for_all_whatever_the_environments_are_called() -> None:
    jobs = document(PULL_REQUEST)["jobs"]
    check = jobs["checks"]
    assert set(check["needs"]) == set(jobs) - {"checks"}
    assert check["if"] == "${{ always() }}"
    assert "matrix" not in check["name"]
    assert f"*{check['name']}*" in (ROOT / "docs" / "gitops.md").read_text(encoding="utf-8")
    # It must not take a plan for needless that the job itself makes.
    assert jobs["plan"]["if"] == check["steps"][0]["env"]["ANY_PLAN"]


def test_the_one_check_fails_where_a_job_did_not_succeed_or_was_left_out() -> None:
    done = dict.fromkeys(("lint", "test", "synth", "engines", "plan", "comment"), "success")
    unplanned = {**done, "plan": "skipped", "comment": "skipped"}
    assert summary(done) == ""
    assert summary({**done, "test": "failure"}) == "test: failure"
    assert summary({**done, "lint": "cancelled", "comment": "failure"}) == "lint: cancelled, comment: failure"
    assert summary(unplanned) == "plan: skipped, comment: skipped"
    assert summary(unplanned, any_plan=False) == ""
    assert summary({**unplanned, "test": "skipped"}, any_plan=False) == "test: skipped"
    assert summary({**done, "comment": "skipped"}, event="workflow_dispatch") == ""
    assert summary({**unplanned, "plan": "failure"}, any_plan=False) == "plan: failure"


def test_credentials_last_as_long_as_a_deployment_may_take_and_no_longer_than_the_role_allows() -> None:
    job = document(DEPLOY_ENVIRONMENT)["jobs"]["deploy"]
    (seconds,) = [step["with"]["seconds"] for step in job["steps"] if step.get("uses") == "./.github/actions/terraform"]
    assert int(seconds) == job["timeout-minutes"] * 60 == SESSION_SECONDS


def test_what_is_published_was_built_and_tested_from_a_tag_by_jobs_that_hold_no_key() -> None:
    release = document(ROOT / ".github" / "workflows" / "release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # type: ignore[index]
    publish = release["jobs"]["publish"]
    assert publish["environment"] == "pypi"
    assert not any("run" in step for step in publish["steps"]), "no code of ours runs where the key is"
    assert not any("with" in step and "password" in step["with"] for step in publish["steps"]), "trusted publishing"
    for name in publish["needs"]:
        assert release["jobs"][name]["permissions"] == {"contents": "read"}
    steps = {name: [step.get("run", "") for step in job["steps"]] for name, job in release["jobs"].items()}
    assert "make lint" in steps["test"]
    built, checked = (
        next(number for number, run in enumerate(steps["build"]) if text in run)
        for text in ("make dist", "scripts.release")
    )
    assert built < checked
