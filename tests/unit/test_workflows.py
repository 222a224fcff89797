"""The workflows call what there is, with actions that cannot change under them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.pipeline import __main__ as command
from infra.stacks.bootstrap import SESSION_SECONDS
from kinesis_efo_infra.pipeline import github
from kinesis_efo_infra.pipeline.deployment import WORKFLOW
from kinesis_efo_infra.pipeline.terraform import PLATFORMS
from tests.support.missing import EVERYTHING, make

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
CORE = ROOT / "packages" / "kinesis-efo-core"
PULL_REQUEST = ROOT / ".github" / "workflows" / "pull-request.yml"
DEPLOY = ROOT / ".github" / "workflows" / "deploy.yml"
NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"
PLAN_STACKS = ROOT / ".github" / "workflows" / "plan-stacks.yml"
DEPLOY_STACKS = ROOT / ".github" / "workflows" / "deploy-stacks.yml"
DEPLOY_ENVIRONMENT = ROOT / ".github" / "workflows" / "deploy-environment.yml"
SYNTHESIZE = ROOT / ".github" / "workflows" / "synthesize.yml"
ACTIONS = sorted((ROOT / ".github" / "actions").glob("*/action.yml"))
CONSTRUCTS = ROOT / "packages" / "kinesis-efo-infra" / "kinesis_efo_infra" / "pipeline"
CREDENTIALS = "aws-actions/configure-aws-credentials"
"""The action that gets credentials of AWS for the identity of a job."""


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
    assert used or path.parent.name == "rust"
    for action, comment in used:
        assert action.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert action.startswith("./") or re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_a_job_that_is_run_again_replaces_what_it_uploaded() -> None:
    # Artifacts are those of the run, whatever its attempt: a second one of the same name fails, unless it may overwrite.
    uploads = [step for step in every_step() if step.get("uses", "").startswith("actions/upload-artifact@")]
    assert len(uploads) >= 6
    assert [step["with"]["name"] for step in uploads if step["with"].get("overwrite") is not True] == []


def test_directories_of_one_run_do_not_share_what_they_hand_to_later_jobs() -> None:
    # Artifacts are those of the run, also if it calls a workflow twice.
    handed = [
        step["with"]["name"] for step in every_step() if step.get("with", {}).get("path", "").endswith("/cdktf.out")
    ]
    assert sorted(handed) == [*["cdktf.out-${{ env.HANDED }}"] * 6, "cdktf.out-${{ steps.synth.outputs.digest }}"]
    shown = [step["with"]["name"] for step in every_step() if step.get("with", {}).get("path", "").endswith("}}/plans")]
    # Two of them may have a stack of one name, in two accounts.
    assert shown == ["shown-${{ inputs.stack }}-${{ env.HANDED }}"] * 3


def refusal() -> str:
    """The step that refuses what later steps would not find: the first after the repository is there."""
    steps = document(SYNTHESIZE)["jobs"]["synth"]["steps"]
    assert steps[0]["uses"].startswith("actions/checkout@")
    assert steps[1]["working-directory"] == "."
    assert steps[1]["env"] == {"DIRECTORY": "${{ inputs.directory }}"}
    return str(steps[1]["run"])


def restart() -> str:
    """The step that starts a deployment again."""
    (step,) = document(DEPLOY_ENVIRONMENT)["jobs"]["again"]["steps"]
    return str(step["run"])


def locks() -> str:
    """The step that refuses a lock of the provider in which hashes are missing."""
    steps = document(SYNTHESIZE)["jobs"]["synth"]["steps"]
    (script,) = [each["run"] for each in steps if "providers.lock.hcl" in each.get("run", "")]
    return str(script)


def no_way_back() -> str:
    """The step that refuses a deployment that is started again, if it is not of the head of its branch any more."""
    jobs = document(DEPLOY_ENVIRONMENT)["jobs"]
    plan, deploy = (jobs[name]["steps"] for name in ("plan", "deploy"))
    assert plan[1] == deploy[1], "GitHub starts single jobs again, too"
    assert plan[1]["if"] == "${{ github.run_attempt > 1 }}"
    # Whether a commit is older than what is deployed is a question to the whole history.
    assert deploy[0]["with"]["fetch-depth"] == 0
    return str(deploy[1]["run"])


def started_by(workflow: str, script: str, at: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as GitHub does, in a run of a workflow of `acme/lake`."""
    given = {"GITHUB_REPOSITORY": "acme/lake", "GITHUB_WORKFLOW_REF": f"acme/lake/{workflow}@refs/heads/a@b"}
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=at,
        env={"PATH": f"{at}:{os.environ['PATH']}", **given, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("event", "workflow", "directory", "told"),
    [
        ("pull_request", ".github/workflows/pull-request.yml", "apps/lake", ""),
        ("push", ".github/workflows/deploy-lake.yml", "apps/lake", ""),
        ("push", ".github/workflows/deploy.yml", "apps/pond", "directory: apps/pond has no Makefile"),
        (
            "pull_request",
            "workflows/pull-request.yml",
            "apps/lake",
            "takes plans of .github/workflows/pull-request.yml",
        ),
        (
            "pull_request",
            ".github/workflows/plan-lake.yml",
            "apps/lake",
            "takes plans of .github/workflows/pull-request.yml only, and this is acme/lake/.github/workflows/plan-lake.yml;",
        ),
    ],
)
def test_what_later_steps_would_not_find_is_refused_at_once(
    event: str, workflow: str, directory: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "apps" / "lake").mkdir(parents=True)
    (tmp_path / "apps" / "lake" / "Makefile").touch()
    assert github._PLANNED_BY in refusal()
    ran = started_by(workflow, refusal(), tmp_path, GITHUB_EVENT_NAME=event, DIRECTORY=directory)
    assert (ran.returncode, ran.stderr) == (1 if told else 0, "")
    assert told in ran.stdout
    assert ran.stdout.startswith("::error::") is bool(told)


@pytest.mark.parametrize("path", ["providers.lock.hcl", "infra/providers.lock.hcl"])
@pytest.mark.parametrize("hashes", [None, 0, 3, 4])
def test_a_provider_lock_without_some_platform_is_refused(path: str, hashes: int | None, tmp_path: Path) -> None:
    assert "-lt 4 " in locks()
    assert len(PLATFORMS) == 4
    (tmp_path / "infra").mkdir()
    if hashes is not None:
        lines = [*(f'    "h1:{number}",' for number in range(hashes)), '    "zh:0",']
        (tmp_path / path).write_text("\n".join(lines), encoding="utf-8")
    ran = started_by("deploy.yml", locks(), tmp_path)
    assert (ran.returncode, ran.stderr) == (int(hashes in (0, 3)), "")
    assert ("make providers" in ran.stdout) is (hashes in (0, 3))


def test_what_is_started_again_is_the_workflow_that_was_started(tmp_path: Path) -> None:
    (tmp_path / "gh").write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    (tmp_path / "gh").chmod(0o755)
    ran = started_by(".github/workflows/deploy-lake.yml", restart(), tmp_path, GITHUB_REF_NAME="a@b", REPAIR="true")
    assert ran.stdout == "workflow run deploy-lake.yml --repo acme/lake --ref a@b -f repair=true\n", ran.stderr


@pytest.mark.parametrize("head", ["c0ffee", "revert"])
def test_what_is_not_the_head_of_its_branch_any_more_is_not_deployed_by_starting_its_run_again(
    head: str, tmp_path: Path
) -> None:
    (tmp_path / "gh").write_text(
        f'#!/bin/sh\n[ "$*" = "api repos/acme/lake/git/ref/heads/main --jq .object.sha" ] && echo {head}\n',
        encoding="utf-8",
    )
    (tmp_path / "gh").chmod(0o755)
    ran = started_by("deploy.yml", no_way_back(), tmp_path, GITHUB_REF_NAME="main", GITHUB_SHA="c0ffee")
    assert (ran.returncode, ran.stderr) == (int(head != "c0ffee"), "")
    assert ("c0ffee is not the head of main any more; revert is" in ran.stdout) is (head != "c0ffee")


def test_a_pull_request_that_is_merged_into_another_branch_is_checked_and_planned_again() -> None:
    template = CONSTRUCTS / "template" / "github" / "workflows" / "pull-request.yml.template"
    for path in (PULL_REQUEST, template):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8").replace("@@", ""))
        assert workflow[True]["pull_request"]["types"] == ["opened", "synchronize", "reopened", "edited"]
        # GitHub counts a job that is left out as a success of the check.
        assert [job for job in workflow["jobs"].values() if "if" in job] == [workflow["jobs"]["checks"]]
        assert workflow["jobs"]["checks"]["if"] == "${{ always() }}"


def test_an_issue_names_the_workflow_that_its_caller_says_deploys() -> None:
    watch = document(ROOT / ".github" / "workflows" / "watch-stacks.yml")
    assert watch[True]["workflow_call"]["inputs"]["deploy"]["default"] == WORKFLOW == DEPLOY.name
    (step,) = [each for each in watch["jobs"]["drift"]["steps"] if each.get("run", "").startswith("make drift ")]
    assert step["env"] == {"DEPLOY": "${{ inputs.deploy }}"}
    for directory in (ROOT, ROOT / "examples" / "own_cdktf_app"):
        asked = subprocess.run(
            [make(), "-n", "drift", "DEPLOY=deploy-lake.yml"], cwd=directory, capture_output=True, text=True, check=True
        )
        assert "--deploy 'deploy-lake.yml'" in asked.stdout


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
                continue
            used = {step.get("uses", "").partition("@")[0] for step in job["steps"]}
            is_known = bool(used & {CREDENTIALS, "pypa/gh-action-pypi-publish"})
            assert (permitted.get("id-token") == "write") is is_known, name
            if "write" in (permitted.get("pull-requests"), permitted.get("contents"), permitted.get("actions")):
                assert not is_known, "code of a pull request holds one key at a time"


def test_a_job_that_calls_a_workflow_permits_what_its_jobs_ask_for_and_no_more() -> None:
    def asked(path: Path) -> dict[str, str]:
        """The most that the jobs of a workflow, and of those that it calls, ask for."""
        found: dict[str, str] = {}
        for job in document(path)["jobs"].values():
            for kind, access in job["permissions"].items():
                found[kind] = "write" if "write" in (access, found.get(kind)) else access
        return found

    called = 0
    for path in WORKFLOWS:
        for name, job in document(path)["jobs"].items():
            if "uses" not in job:
                continue
            callee = ROOT / job["uses"]
            assert callee.parent == path.parent, "of this repository, at this commit"
            assert "workflow_call" in document(callee)[True], name  # type: ignore[index]
            assert job["permissions"] == asked(callee), f"{path.name}: {name}"
            assert set(job.get("with", {})) <= set(document(callee)[True]["workflow_call"]["inputs"]), name  # type: ignore[index]
            called += 1
    assert called == 7


def test_a_workflow_that_other_repositories_call_uses_none_of_their_actions() -> None:
    """A path of an action is one of the repository that is checked out; its Makefile is all that is asked of it."""
    checking = [line.strip() for step in (refusal(), locks(), restart(), no_way_back()) for line in step.splitlines()]
    for path in WORKFLOWS:
        if "workflow_call" in document(path)[True]:  # type: ignore[index]
            steps = [step for job in document(path)["jobs"].values() for step in job.get("steps", ())]
            assert not any(step.get("uses", "").startswith("./") for step in steps), path.name
            runs = [line.strip() for step in steps for line in step.get("run", "").splitlines()]
            known = re.compile(r'make |[a-z]+="\$\(make |echo |gh workflow run |#')
            assert all(known.match(line) for line in runs if line not in checking), runs


def test_a_job_that_may_ask_for_an_identity_runs_nothing_that_a_stack_is_synthesized_with() -> None:
    checked = 0
    for path in WORKFLOWS:
        workflow = document(path)
        for name, job in workflow["jobs"].items():
            if job["permissions"].get("id-token") != "write" or "uses" in job or path.stem == "release":
                continue
            used = [step.get("uses", "").partition("@")[0] or step["run"] for step in job["steps"]]
            assert used.index("make pipeline") < used.index("actions/download-artifact") < used.index(CREDENTIALS), name
            assert not any(word in step for step in used for word in ("synth", ".venv/", "make environments")), name
            # Every `make` uses the small environment, and what was handed over is checked by its digest.
            variables = {**workflow.get("env", {}), **job.get("env", {})}
            assert variables["PIPELINE_VENV"] == ".venv-pipeline", name
            assert variables["HANDED"] in ("${{ needs.synth.outputs.digest }}", "${{ inputs.handed }}"), name
            checked += 1
    assert checked == 4


def test_jobs_with_an_identity_fetch_only_what_locks_name() -> None:
    """In a job that may ask for an identity, any program can; pip without hashes would take what an index serves."""
    fetches = re.compile(r"\b(?:pipx|uvx|npx|npm|curl|wget|cargo|rustup|apt-get|pip3? install|uv (?:tool|run|pip))\b")
    jobs = [job for path in WORKFLOWS for job in document(path)["jobs"].values()]
    holding = [job for job in jobs if job["permissions"].get("id-token") == "write" and "steps" in job]
    runs = "\n".join(step.get("run", "") for job in holding for step in job["steps"])
    targets = sorted(set(re.findall(r"\bmake (?:-s )?([a-z-]+)", runs)))
    assert {"pipeline", "plan", "apply", "jobs", "drift"} <= set(targets)
    asked = [make(), "-n", "-B", *targets, "PIPELINE_VENV=.venv-pipeline"]
    ran = runs + subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not fetches.findall(ran)
    setup = (ROOT / "scripts" / "setup").read_text(encoding="utf-8")
    template = (CONSTRUCTS / "template" / "Makefile.template").read_text(encoding="utf-8")
    for text in (setup, template):
        installs = [line for line in text.splitlines() if "-m pip install" in line]
        assert installs
        assert all("--require-hashes" in line or line.lstrip().startswith("locked_uv ") for line in installs), installs
        assert "--locked --" in text
    assert not fetches.findall(re.sub("python3 -m pip install .*--require-hashes", "", template))


def test_checkov_runs_in_jobs_without_identity_alone_and_on_the_plan_that_is_applied() -> None:
    """checkov and the checks of a team are code of others, which could read the credentials of the process that starts it."""
    for path in (PLAN_STACKS, DEPLOY_ENVIRONMENT):
        for name, job in document(path)["jobs"].items():
            runs = " ".join(step.get("run", "") for step in job.get("steps", ()))
            if job["permissions"].get("id-token") == "write":
                assert "make scan" not in runs, name
                assert len(re.findall(r"make plan\b", runs)) == len(re.findall("UNSCANNED=1", runs)), name
                assert "make apply" not in runs or 'APPROVED="$APPROVED"' in runs, "else it scans"
        scan = document(path)["jobs"]["scan"]
        assert scan["permissions"] == {"contents": "read"}
        assert scan["steps"][-1]["run"] == "make scan"
    assert scan["steps"][-1]["env"] == {"APPROVED": "${{ needs.plan.outputs.digest }}"}
    asked = subprocess.run(
        [make(), "-n", "plan", "scan", "UNSCANNED=1", "HANDED=c0ffee", "APPROVED=beef"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert re.search(r"infra\.pipeline .* plan 'dev' .*--handed 'c0ffee' .*--unscanned", asked, re.DOTALL)
    assert re.search(r"infra\.pipeline .* scan 'dev' .*--handed 'c0ffee' --approved 'beef'", asked)


def test_what_a_job_with_keys_starts_was_packed_in_the_one_that_has_none() -> None:
    """A build backend is code that no lock names. Its own environment has no keys, but that of its parents has."""
    synth = SYNTHESIZE.read_text(encoding="utf-8")
    assert "id-token" not in synth
    assert synth.index("PACKED=1") < synth.index("make -s digest") < synth.index("upload-artifact")
    asked = subprocess.run(
        [make(), "-n", "synth", "jobs", "PACKED=1", "HANDED=c0ffee"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.search(r"infra\.pipeline .* package", asked)
    assert re.search(r"infra\.pipeline .* jobs 'dev' .*--handed 'c0ffee'", asked)


def test_the_small_environment_has_what_plans_and_applies_and_neither_spark_nor_cdktf() -> None:
    asked = subprocess.run(
        [make(), "-n", "-B", "pipeline"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "--no-default-groups --group pipeline --extra emr --no-build" in asked
    assert "--no-install-project --no-install-package kinesis-efo-infra" in asked
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    assert not any(word in each for each in groups["pipeline"] for word in ("spark", "cdkt", "moto"))
    assert 'digest="$(make -s digest)"' in SYNTHESIZE.read_text(encoding="utf-8")


def test_their_make_targets_exist() -> None:
    targets = {word for line in re.findall(r"make (?:-s )?([a-z][a-z -]*)", scripts()) for word in line.split()}
    assert {"lint", "test", "synth", "engines", "plan", "apply", "jobs", "drift", "environments"} <= targets
    for target in targets:
        asked = subprocess.run([make(), "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "No rule to make target" not in asked.stderr, asked.stderr


def test_terraform_has_one_version_everywhere() -> None:
    asked = [step["with"] for step in every_step() if step.get("uses", "").startswith("hashicorp/setup-terraform@")]
    assert len(asked) == 7
    assert all(each == asked[0] for each in asked)


def test_before_a_merge_and_before_a_release_every_test_is_run() -> None:
    (testing,) = [step for step in every_step() if "make core cdktf test" in step.get("run", "")]
    assert testing["env"][EVERYTHING]
    action = document(ROOT / ".github" / "actions" / "test" / "action.yml")["runs"]["steps"]
    assert action[0]["uses"].startswith("hashicorp/setup-terraform@"), "the tests with real Terraform need it"
    assert action[-1] == testing
    for name in ("pull-request", "release"):
        job = document(ROOT / ".github" / "workflows" / f"{name}.yml")["jobs"]["test"]
        assert job["steps"][-1] == {"uses": "./.github/actions/test"}


def test_what_takes_too_long_before_a_merge_is_run_every_night() -> None:
    job = document(NIGHTLY)["jobs"]["long"]
    targets = job["strategy"]["matrix"]["target"]
    assert targets == ["soak", "seeds", "mutants", "fuzz", "fuzz-core", "sanitize", "upgrade", "sparks"]
    assert job["steps"][-1] == {"run": 'make "$TARGET"', "env": {"TARGET": "${{ matrix.target }}"}}
    assert job["steps"][0]["with"]["fetch-depth"] == 0, "upgrade runs what the history has"
    for target in targets:
        asked = subprocess.run([make(), "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert asked.returncode == 0, asked.stderr


@pytest.mark.parametrize(
    ("dates", "tag", "compared"),
    [
        (["2020-01-01", "2020-01-02"], "HEAD^", ["v1.2.0", "HEAD"]),
        (["2020-01-01"], None, ["There is no tag yet to compare with.", "HEAD"]),
        (["2099-01-01"], None, ["There is no tag yet to compare with.", "There is no commit yet of a week before."]),
    ],
)
def test_every_night_speed_is_compared_with_the_last_tag_and_with_a_week_before(
    dates: list[str], tag: str | None, compared: list[str], tmp_path: Path
) -> None:
    bench = tmp_path / "bin" / "make"
    bench.parent.mkdir()
    bench.write_text('#!/bin/sh\n[ "$1" = bench ] && echo "${2#AGAINST=}"\n')
    bench.chmod(0o755)
    environment = {**os.environ, "PATH": f"{bench.parent}{os.pathsep}{os.environ['PATH']}"}

    def git(*arguments: str, date: str = "2020-01-01") -> str:
        who = {f"GIT_{one}_{what}": "a@b.example" for one in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        when = {"GIT_AUTHOR_DATE": f"{date}T00:00:00Z", "GIT_COMMITTER_DATE": f"{date}T00:00:00Z"}
        run = ["git", "-C", str(tmp_path), *arguments]
        return subprocess.run(
            run, env=os.environ | who | when, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    for date in dates:
        git("commit", "--quiet", "--allow-empty", "--message", date, date=date)
    if tag is not None:
        git("tag", "v1.2.0", tag)
    steps = [step["run"] for step in document(NIGHTLY)["jobs"]["slower"]["steps"] if "AGAINST" in step.get("run", "")]
    ran = [
        subprocess.run(
            ["sh", "-e", "-c", step], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        for step in steps
    ]
    assert [each.stdout.strip() for each in ran] == [
        git("rev-parse", "HEAD") if to == "HEAD" else to for to in compared
    ]


def test_both_engines_are_compared_and_scanned_before_a_merge() -> None:
    job = document(PULL_REQUEST)["jobs"]["engines"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [
        "make engines ENVIRONMENTS=examples/environments",
        "make synth KINESIS_EFO_CDK=cdktn ENVIRONMENTS=examples/environments",
    ]


def test_their_steps_exist() -> None:
    parser = command._parser()
    (steps,) = [action.choices for action in parser._actions if hasattr(action, "choices") and action.choices]
    rules = (ROOT / "infra" / "Makefile.inc").read_text(encoding="utf-8")
    called = set(re.findall(r"\$\(PIPELINE\) ([a-z-]+)", rules))
    assert {"environments", "plan", "github-approval", "github-comment", "github-findings", "github-issue"} <= called
    assert called <= set(steps)


def test_only_plans_of_the_workflow_that_is_there_are_taken() -> None:
    # A run is one of the workflow that was started, whatever that calls.
    assert (ROOT / github._PLANNED_BY) == PULL_REQUEST
    assert document(PULL_REQUEST)["jobs"]["stacks"]["uses"] == f"./.github/workflows/{PLAN_STACKS.name}"
    upload = PLAN_STACKS.read_text(encoding="utf-8")
    assert "name: plan-${{ matrix.stack }}-${{ env.COMMIT }}" in upload, "as fetch_plan looks for it"


def test_what_is_deployed_is_what_names_the_branch_that_was_pushed() -> None:
    for name in ("deploy", "watch"):
        synth = document(ROOT / ".github" / "workflows" / f"{name}-stacks.yml")["jobs"]["synth"]
        assert synth["with"]["branch"] == "${{ github.ref_name }}", name
        assert "if" not in synth, name
    # YAML 1.1 reads the key `on` as true. Never tags, and no branch that nothing is deployed from.
    assert document(DEPLOY)[True]["push"] == {"branches": ["main"]}  # type: ignore[index]
    assert document(DEPLOY)["jobs"]["deploy"]["uses"] == f"./.github/workflows/{DEPLOY_STACKS.name}"
    deploy = document(DEPLOY_STACKS)["jobs"]["deploy"]
    assert deploy["strategy"]["max-parallel"] == 1
    assert deploy["with"]["github_environment"] == "${{ matrix.github_environment }}"
    assert deploy["uses"] == f"./.github/workflows/{DEPLOY_ENVIRONMENT.name}"


def test_a_plan_is_shown_before_the_approval_and_that_plan_is_what_is_approved() -> None:
    jobs = document(DEPLOY_ENVIRONMENT)["jobs"]
    plan, deploy, again = jobs["plan"], jobs["deploy"], jobs["again"]
    assert "environment" not in plan, "no approval comes before the plan"
    assert deploy["environment"] == "${{ inputs.github_environment }}"
    assert deploy["needs"] == ["plan", "scan"]
    roles = [
        step["with"]["role-to-assume"]
        for job in (plan, deploy)
        for step in job["steps"]
        if step.get("uses", "").startswith(CREDENTIALS)
    ]
    assert roles == ["${{ inputs.plan_role }}", "${{ inputs.apply_role }}"]
    shown = [step.get("run", "") for step in plan["steps"]]
    assert shown.index('make -s comment >> "$GITHUB_STEP_SUMMARY"') < len(shown) - 1
    assert shown[-1].startswith("make -s approval ")
    (apply,) = [step for step in deploy["steps"] if step.get("id") == "apply"]
    assert apply["env"]["APPROVED"] == "${{ needs.plan.outputs.digest }}"
    assert 'APPROVED="$APPROVED"' in apply["run"]
    # What is not what was approved any more asks for another approval, and is not applied.
    assert again["needs"] == "deploy"
    assert again["if"] == "${{ failure() && needs.deploy.outputs.stale == 'true' }}"
    assert again["permissions"] == {"actions": "write"}
    assert "approved" not in str(again["steps"])


def test_a_merge_queue_gets_the_check_and_makes_no_plan() -> None:
    assert "merge_group" in document(PULL_REQUEST)[True]  # type: ignore[index]
    assert "github.event_name != 'merge_group'" in document(PLAN_STACKS)["jobs"]["plan"]["if"]


def test_what_is_planned_is_deployed_from_the_branch_that_is_merged_into() -> None:
    workflow = document(PLAN_STACKS)
    branch = "${{ github.base_ref || github.ref_name }}"
    assert workflow["env"]["BRANCH"] == workflow["jobs"]["synth"]["with"]["branch"] == branch
    asked = subprocess.run(
        [make(), "-n", "environments", "tell"],
        cwd=ROOT,
        env={**os.environ, "BRANCH": "main"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.findall(r"--directory \S+ (environments|github-comment) .*?(--b\w+ \S+)", asked, re.DOTALL) == [
        ("environments", '--branch "$BRANCH"'),
        ("github-comment", '--branch "$BRANCH"'),
    ]


def test_an_approval_that_waits_holds_up_its_own_environment_only() -> None:
    assert "concurrency" not in document(DEPLOY)
    deploy = document(DEPLOY_STACKS)
    assert "concurrency" not in deploy
    group = {"group": "deploy-${{ matrix.github_environment }}", "cancel-in-progress": False}
    assert deploy["jobs"]["deploy"]["concurrency"] == group


def summary(results: Mapping[str, str]) -> str:
    """What the job that sums up the others says; empty if it succeeds."""
    (step,) = document(PULL_REQUEST)["jobs"]["checks"]["steps"]
    assert step["shell"] == "python"
    needs = {name: {"result": result, "outputs": {}} for name, result in results.items()}
    ran = subprocess.run(
        [sys.executable, "-c", step["run"]],
        env={"NEEDS": json.dumps(needs)},
        capture_output=True,
        text=True,
        check=False,
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


def test_the_one_check_fails_where_a_job_did_not_succeed_or_was_left_out() -> None:
    done = dict.fromkeys(("lint", "test", "stacks", "engines"), "success")
    assert summary(done) == ""
    assert summary({**done, "test": "failure"}) == "test: failure"
    assert summary({**done, "lint": "cancelled", "stacks": "failure"}) == "lint: cancelled, stacks: failure"
    assert summary({**done, "stacks": "skipped"}) == "stacks: skipped"


def test_credentials_last_as_long_as_a_deployment_may_take_and_no_longer_than_the_role_allows() -> None:
    job = document(DEPLOY_ENVIRONMENT)["jobs"]["deploy"]
    (seconds,) = [
        step["with"]["role-duration-seconds"] for step in job["steps"] if step.get("uses", "").startswith(CREDENTIALS)
    ]
    assert int(seconds) == job["timeout-minutes"] * 60 == SESSION_SECONDS


def test_what_is_published_was_built_and_tested_from_a_tag_by_jobs_that_hold_no_key() -> None:
    release = document(RELEASE)
    assert release[True] == {"push": {"tags": ["v*"]}}  # type: ignore[index]
    publish = release["jobs"]["publish"]
    assert publish["environment"] == "pypi"
    assert not any("run" in step for step in publish["steps"]), "no code of ours runs where the key is"
    assert not any("with" in step and "password" in step["with"] for step in publish["steps"]), "trusted publishing"
    for name in publish["needs"]:
        assert release["jobs"][name]["permissions"] == {"contents": "read"}
    steps = {name: [step.get("run", "") for step in job["steps"]] for name, job in release["jobs"].items()}
    assert "make lint" in steps["test"]
    ancestry, built, checked = (
        next(number for number, run in enumerate(steps["build"]) if text in run)
        for text in ("merge-base", "make dist", "scripts.release")
    )
    assert ancestry < built < checked
    assert release["jobs"]["build"]["steps"][0]["with"]["fetch-depth"] == 0


@pytest.mark.parametrize("merged", [True, False])
def test_only_tags_of_the_default_branch_are_released(merged: bool, tmp_path: Path) -> None:
    (step,) = [each for each in document(RELEASE)["jobs"]["build"]["steps"] if "merge-base" in each.get("run", "")]
    assert step["env"] == {"BRANCH": "${{ github.event.repository.default_branch }}"}

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
        command = ["git", *who, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    git("commit", "--quiet", "--allow-empty", "-m", "a")
    tagged = git("rev-parse", "HEAD")
    git("commit", "--quiet", "--allow-empty", "-m", "b")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    if not merged:
        git("checkout", "--quiet", "-b", "other", tagged)
        git("commit", "--quiet", "--allow-empty", "-m", "c")
        tagged = git("rev-parse", "HEAD")
    environment = {**os.environ, "GITHUB_SHA": tagged, "GITHUB_REF_NAME": "v1.0.0", "BRANCH": "main"}
    ran = subprocess.run(
        ["bash", "-ec", step["run"]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode == 0) is merged
    assert ("v1.0.0 is not on main" in ran.stdout) is not merged


def test_the_core_is_released_as_one_wheel_for_each_kind_of_machine() -> None:
    release = document(RELEASE)["jobs"]
    job = release["core"]
    assert job["runs-on"] == "${{ matrix.machine }}"
    assert job["strategy"]["matrix"] == {"machine": ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-15", "macos-15-intel"]}
    (build,) = [step for step in job["steps"] if step.get("uses", "").startswith("pypa/cibuildwheel@")]
    assert build["with"] == {"package-dir": str(CORE.relative_to(ROOT)), "output-dir": "dist"}
    upload = job["steps"][-1]["with"]
    assert (upload["path"], upload["if-no-files-found"]) == ("dist/*.whl", "error")
    project = tomllib.loads((CORE / "pyproject.toml").read_text(encoding="utf-8"))
    built = project["tool"]["cibuildwheel"]
    oldest = project["project"]["requires-python"].removeprefix(">=").replace(".", "")
    assert built["build"] == [f"cp{oldest}-{kind}_*" for kind in ("manylinux", "musllinux", "macosx")]
    assert built["archs"] == ["native"]
    cargo = tomllib.loads((CORE / "Cargo.toml").read_text(encoding="utf-8"))
    assert cargo["dependencies"]["pyo3"]["features"] == [f"abi3-py{oldest}"], "one wheel serves later versions"
    assert built["test-command"] == "python {package}/check.py"
    assert (CORE / "check.py").exists()
    assert built["linux"]["before-all"] == "sh {package}/install-rust"
    # Without isolation, the build uses what was installed by its hash.
    assert built["build-frontend"] == {"name": "build", "args": ["--no-isolation"]}
    options = "--require-hashes --only-binary :all: --requirement {package}/maturin.txt"
    assert built["before-build"] == f"python -m pip install {options}"
    locked = (CORE / "maturin.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"^maturin==(1\.\d+)\.\d+ ", locked, re.MULTILINE)
    assert tuple(map(int, version.split("."))) >= (1, 9)
    assert project["build-system"]["requires"] == ["maturin>=1.9,<2"]
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", locked)) > 10
    # What one job uploads is what the other publishes, and what is on the page.
    for name in ("publish", "page"):
        download = release[name]["steps"][0]["with"]
        assert download == {"pattern": "dist*", "merge-multiple": True, "path": "dist"}
    assert upload["name"] == "dist-core-${{ matrix.machine }}"
    assert set(release["publish"]["needs"]) == set(release) - {"publish", "page"}


def test_the_core_is_checked_before_a_merge_and_before_a_release() -> None:
    for path in (PULL_REQUEST, RELEASE):
        assert document(path)["jobs"]["rust"]["steps"][-1] == {"uses": "./.github/actions/rust"}
    steps = document(ROOT / ".github" / "actions" / "rust" / "action.yml")["runs"]["steps"]
    within = {
        directory: [step["run"] for step in steps if step.get("working-directory") == str(directory.relative_to(ROOT))]
        for directory in (CORE, CORE / "fuzz")
    }
    form = ["cargo fmt --check", "cargo clippy --locked --all-targets -- -D warnings"]
    assert within == {
        CORE: [*form, "cargo test --locked", "cargo deny check"],
        CORE / "fuzz": [*form, "cargo deny check advisories sources"],
    }
    rules = tomllib.loads((CORE / "deny.toml").read_text(encoding="utf-8"))
    assert set(rules) == {"graph", "advisories", "licenses", "bans", "sources"}
    assert rules["sources"] == {"unknown-registry": "deny", "unknown-git": "deny"}
    assert rules["bans"] == {"multiple-versions": "deny", "wildcards": "deny"}
    assert "ignore" not in rules["advisories"]


def test_nothing_that_is_downloaded_is_run_unseen() -> None:
    texts = [
        scripts(),
        *(path.read_text(encoding="utf-8") for path in (CORE / "pyproject.toml", CORE / "install-rust")),
    ]
    assert not re.search(r"(?:curl|wget)[^\n]*\|\s*(?:ba)?sh", "\n".join(texts))


@pytest.mark.parametrize("genuine", [True, False])
def test_only_the_installer_of_rust_with_its_hash_is_run(genuine: bool, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    installer = f'#!/bin/sh\necho "$@" > {ran}\n'
    (tmp_path / "curl").write_text(
        f"#!/bin/sh\nwhile [ $# -gt 1 ]; do [ $1 = -o ] && to=$2; shift; done\ncat {tmp_path}/installer > $to\n"
    )
    (tmp_path / "installer").write_text(installer)
    (tmp_path / "curl").chmod(0o755)
    script = (CORE / "install-rust").read_text(encoding="utf-8")
    if genuine:
        script = re.sub(r"hash=[0-9a-f]{64}", f"hash={hashlib.sha256(installer.encode()).hexdigest()}", script)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is genuine
    assert ran.exists() is genuine
    assert not genuine or "--default-toolchain 1.95.0" in ran.read_text()


def test_rust_has_one_version_everywhere_that_is_new_enough() -> None:
    texts = [path.read_text(encoding="utf-8") for path in [*WORKFLOWS, *ACTIONS, CORE / "install-rust"]]
    asked = re.findall(r"(?:toolchain install|--default-toolchain|rustup default) (\S+?)[\s\"]", "\n".join(texts))
    assert len(asked) == 9
    (version,) = set(asked)
    least = tomllib.loads((CORE / "Cargo.toml").read_text(encoding="utf-8"))["package"]["rust-version"]
    assert tuple(map(int, version.split("."))) >= tuple(map(int, least.split(".")))


def test_newer_crates_are_proposed() -> None:
    updates = document(ROOT / ".github" / "dependabot.yml")["updates"]
    (cargo,) = [each for each in updates if each["package-ecosystem"] == "cargo"]
    directories = {path.parent for path in CORE.glob("**/Cargo.lock") if "target" not in path.parts}
    assert {ROOT / directory.lstrip("/") for directory in cargo["directories"]} == directories == {CORE, CORE / "fuzz"}
    assert all(each["cooldown"] == {"default-days": 7} for each in updates)


def test_neither_tests_nor_lints_of_python_need_cargo() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"].items()]
    assert "kinesis-efo-core" not in str([asked, project["dependency-groups"], project["tool"]["uv"]])
    linting = subprocess.run([make(), "-n", "-B", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "cargo" not in linting
    assert not any(line.startswith("scripts/setup core") for line in linting.splitlines()), "it is built where it was"
