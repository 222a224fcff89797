"""What guards keys and approvals in the workflows of GitHub: permissions, pinned code, and which job runs whose code."""

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

from infra.stacks.bootstrap import SESSION_SECONDS
from kinesis_efo_infra.pipeline.terraform import PLATFORMS
from tests.support.commands import outcome, program
from tests.support.missing import make

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
ACTIONS = {path.parent.name: path for path in sorted((ROOT / ".github" / "actions").glob("*/action.yml"))}
CORE = ROOT / "packages" / "kinesis-efo-core"
TEMPLATE = ROOT / "packages" / "kinesis-efo-infra" / "kinesis_efo_infra" / "pipeline" / "template"
CREDENTIALS = "aws-actions/configure-aws-credentials"
"""The action that gets credentials of AWS for the identity of a job."""


def document(path: Path) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8").replace("@@", ""))
    # YAML 1.1 reads the key `on` as true.
    return {"on" if key is True else key: value for key, value in loaded.items()}


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = document(WORKFLOWS[name])["jobs"]
    return found


def steps(name: str, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = jobs(name)[job].get("steps", [])
    return found


ALL = [(workflow, name, job) for workflow in WORKFLOWS for name, job in jobs(workflow).items()]
"""Every job, with the names of its workflow and its own."""


def has_identity(job: Mapping[str, Any]) -> bool:
    return bool(job["permissions"].get("id-token") == "write" and "steps" in job)


def dry_run(*arguments: str) -> str:
    """The commands that make would run."""
    ran = outcome([make(), "-n", *arguments], cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def run_step(script: str, at: Path, workflow: str = "deploy.yml", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as GitHub does, in a run of a workflow of `acme/lake`."""
    # Of an enterprise whose data stay in a region, which `gh` has to be told.
    given = {"GITHUB_SERVER_URL": "https://acme.ghe.com", "GITHUB_REPOSITORY": "acme/lake"}
    given["GITHUB_WORKFLOW_REF"] = f"acme/lake/{workflow}@refs/heads/a@b"
    environment = {"PATH": f"{at}:{os.environ['PATH']}", **given, **variables}
    return outcome(["bash", "-e", "-c", script], cwd=at, env=environment)


# Steps with more than a `make`
REFUSAL: str = steps("synthesize", "synth")[1]["run"]
(LOCKS,) = [str(step["run"]) for step in steps("synthesize", "synth") if "providers.lock.hcl" in step.get("run", "")]
(RESTART,) = [str(step["run"]) for step in steps("deploy-environment", "again")]
NOT_THE_HEAD: str = steps("deploy-environment", "plan")[1]["run"]


def test_an_identity_excludes_write_access_to_github() -> None:
    for workflow, name, job in ALL:
        if "uses" not in job:
            used = {step.get("uses", "").partition("@")[0] for step in job["steps"]}
            assert has_identity(job) is bool(used & {CREDENTIALS, "pypa/gh-action-pypi-publish"}), (workflow, name)
            writes = {job["permissions"].get(kind) for kind in ("pull-requests", "contents", "actions")}
            assert "write" not in writes or not has_identity(job), (workflow, name)


def test_a_calling_job_permits_exactly_what_the_called_needs() -> None:
    called = [(name, job, ROOT / job["uses"]) for _, name, job in ALL if "uses" in job]
    assert len(called) == 7
    for name, job, callee in called:
        most: dict[str, str] = {}
        for each in jobs(callee.stem).values():
            # `write` comes after `read`, and is more.
            most |= {kind: max(access, most.get(kind, "")) for kind, access in each["permissions"].items()}
        assert job["permissions"] == most, name
        assert set(job.get("with", {})) <= set(document(callee)["on"]["workflow_call"]["inputs"]), name


def test_reusable_workflows_run_only_make_targets_of_their_callers() -> None:
    checking = {line.strip() for step in (REFUSAL, LOCKS, RESTART, NOT_THE_HEAD) for line in step.splitlines()}
    known = re.compile(r'make |[a-z]+="\$\(make |echo |gh workflow run |#')
    for workflow, name, job in ALL:
        if "workflow_call" in document(WORKFLOWS[workflow])["on"]:
            assert not any(step.get("uses", "").startswith("./") for step in job.get("steps", ())), (workflow, name)
            runs = {line.strip() for step in job.get("steps", ()) for line in step.get("run", "").splitlines()}
            assert all(known.match(line) for line in runs - checking), runs


def test_jobs_with_an_identity_run_no_stack_code() -> None:
    holding = [each for each in ALL if has_identity(each[2]) and each[0] != "release"]
    assert len(holding) == 4
    for workflow, name, job in holding:
        used = [step.get("uses", "").partition("@")[0] or step["run"] for step in job["steps"]]
        assert used.index("make pipeline") < used.index("actions/download-artifact") < used.index(CREDENTIALS), name
        assert not any(word in step for step in used for word in ("synth", ".venv/", "make environments")), name
        # Every `make` uses the small environment, and what was handed over is checked by its digest.
        variables = {**document(WORKFLOWS[workflow]).get("env", {}), **job.get("env", {})}
        assert variables["PIPELINE_VENV"] == ".venv-pipeline", name
        assert variables["HANDED"] in ("${{ needs.synth.outputs.digest }}", "${{ inputs.handed }}"), name


def test_jobs_with_an_identity_download_only_locked_code() -> None:
    """In a job that may ask for an identity, any program can; pip without hashes would take what an index serves."""
    fetches = re.compile(r"\b(?:pipx|uvx|npx|npm|curl|wget|cargo|rustup|apt-get|pip3? install|uv (?:tool|run|pip))\b")
    runs = "\n".join(step.get("run", "") for _, _, job in ALL if has_identity(job) for step in job["steps"])
    targets = sorted(set(re.findall(r"\bmake (?:-s )?([a-z-]+)", runs)))
    assert {"pipeline", "plan", "apply", "jobs", "drift"} <= set(targets)
    assert not fetches.findall(runs + dry_run("-B", *targets, "PIPELINE_VENV=.venv-pipeline"))
    template = (TEMPLATE / "Makefile.template").read_text(encoding="utf-8")
    for text in ((ROOT / "scripts" / "setup").read_text(encoding="utf-8"), template):
        installs = [line for line in text.splitlines() if "-m pip install" in line]
        assert installs
        assert all("--require-hashes" in line or line.lstrip().startswith("locked_uv ") for line in installs), installs
        assert "--locked --" in text
    assert not fetches.findall(re.sub("python3 -m pip install .*--require-hashes", "", template))
    small = dry_run("-B", "pipeline")
    assert "--no-default-groups --group pipeline --extra emr --no-build" in small
    assert "--no-install-project --no-install-package kinesis-efo-infra" in small
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    assert not any(word in each for each in groups["pipeline"] for word in ("spark", "cdkt", "moto"))


def test_checkov_runs_without_identity_on_the_applied_plan() -> None:
    """checkov and the checks of a team are code of others, which could read the credentials of the process that starts it."""
    for workflow in ("plan-stacks", "deploy-environment"):
        for name, job in jobs(workflow).items():
            runs = " ".join(step.get("run", "") for step in job.get("steps", ()))
            if has_identity(job):
                assert "make scan" not in runs, name
                assert len(re.findall(r"make plan\b", runs)) == len(re.findall("UNSCANNED=1", runs)), name
                assert "make apply" not in runs or 'APPROVED="$APPROVED"' in runs, "else it scans"
        scan = jobs(workflow)["scan"]
        assert scan["permissions"] == {"contents": "read"}
        assert scan["steps"][-1]["run"] == "make scan"
    assert scan["steps"][-1]["env"] == {"APPROVED": "${{ needs.plan.outputs.digest }}"}
    commands = dry_run("plan", "scan", "UNSCANNED=1", "HANDED=c0ffee", "APPROVED=beef")
    assert re.search(r"infra\.pipeline .* plan 'dev' .*--handed 'c0ffee' .*--unscanned", commands, re.DOTALL)
    assert re.search(r"infra\.pipeline .* scan 'dev' .*--handed 'c0ffee' --approved 'beef'", commands)


def test_job_code_is_packed_without_keys() -> None:
    """A build backend is code that no lock names. Its own environment has no keys, but that of its parents has."""
    synth = WORKFLOWS["synthesize"].read_text(encoding="utf-8")
    assert "id-token" not in synth
    assert synth.index("PACKED=1") < synth.index('digest="$(make -s digest)"') < synth.index("upload-artifact")
    commands = dry_run("synth", "jobs", "PACKED=1", "HANDED=c0ffee")
    assert re.search(r"infra\.pipeline .* package", commands)
    assert re.search(r"infra\.pipeline .* jobs 'dev' .*--handed 'c0ffee'", commands)


# Plans and approvals


@pytest.mark.parametrize(
    ("event", "workflow", "directory", "message"),
    [
        ("pull_request", ".github/workflows/pull-request.yml", "apps/lake", ""),
        ("push", ".github/workflows/deploy-lake.yml", "apps/lake", ""),
        ("push", ".github/workflows/deploy.yml", "apps/pond", "directory: apps/pond has no Makefile"),
        ("pull_request", "workflows/pull-request.yml", "apps/lake", "plans of .github/workflows/pull-request.yml"),
        ("pull_request", ".github/workflows/plan-lake.yml", "apps/lake", "acme/lake/.github/workflows/plan-lake.yml;"),
    ],
)
def test_unusable_plans_are_refused_before_synthesis(
    event: str, workflow: str, directory: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "apps" / "lake").mkdir(parents=True)
    (tmp_path / "apps" / "lake" / "Makefile").touch()
    ran = run_step(REFUSAL, tmp_path, workflow, GITHUB_EVENT_NAME=event, DIRECTORY=directory)
    assert (ran.returncode, ran.stderr) == (1 if message else 0, "")
    assert message in ran.stdout
    assert ran.stdout.startswith("::error::") is bool(message)


@pytest.mark.parametrize("path", ["providers.lock.hcl", "infra/providers.lock.hcl"])
@pytest.mark.parametrize("hashes", [None, 0, 3, 4])
def test_a_provider_lock_without_some_platform_is_refused(path: str, hashes: int | None, tmp_path: Path) -> None:
    assert len(PLATFORMS) == 4
    (tmp_path / "infra").mkdir()
    if hashes is not None:
        lines = [*(f'    "h1:{number}",' for number in range(hashes)), '    "zh:0",']
        (tmp_path / path).write_text("\n".join(lines), encoding="utf-8")
    ran = run_step(LOCKS, tmp_path)
    assert (ran.returncode, ran.stderr) == (int(hashes in (0, 3)), "")
    assert ("make providers" in ran.stdout) is (hashes in (0, 3))


def test_a_stale_approval_restarts_its_own_workflow(tmp_path: Path) -> None:
    program(tmp_path / "gh", 'echo "$@"')
    workflow = ".github/workflows/deploy-lake.yml"
    ran = run_step(RESTART, tmp_path, workflow, GITHUB_REF_NAME="a@b", REPAIR="true")
    assert (
        ran.stdout == "workflow run deploy-lake.yml --repo https://acme.ghe.com/acme/lake --ref a@b -f repair=true\n"
    ), ran.stderr


@pytest.mark.parametrize("head", ["c0ffee", "revert"])
def test_restarting_an_old_run_deploys_nothing(head: str, tmp_path: Path) -> None:
    plan, deploy = (steps("deploy-environment", job) for job in ("plan", "deploy"))
    assert plan[1] == deploy[1], "GitHub starts single jobs again, too"
    assert plan[1]["if"] == "${{ github.run_attempt > 1 }}"
    # Whether a commit is older than what is deployed is a question to the whole history.
    assert deploy[0]["with"]["fetch-depth"] == 0
    asked = "api --hostname acme.ghe.com repos/acme/lake/git/ref/heads/main --jq .object.sha"
    program(tmp_path / "gh", f'[ "$*" = "{asked}" ] && echo {head}')
    ran = run_step(NOT_THE_HEAD, tmp_path, GITHUB_REF_NAME="main", GITHUB_SHA="c0ffee")
    assert (ran.returncode, ran.stderr) == (int(head != "c0ffee"), "")
    assert ("c0ffee is not the head of main any more; revert is" in ran.stdout) is (head != "c0ffee")


def test_a_retargeted_pull_request_is_planned_again() -> None:
    for path in (WORKFLOWS["pull-request"], TEMPLATE / "github" / "workflows" / "pull-request.yml.template"):
        workflow = document(path)
        assert workflow["on"]["pull_request"]["types"] == ["opened", "synchronize", "reopened", "edited"]
        # GitHub counts a job that is left out as a success of the check.
        assert [job for job in workflow["jobs"].values() if "if" in job] == [workflow["jobs"]["checks"]]
        assert workflow["jobs"]["checks"]["if"] == "${{ always() }}"


def test_the_pushed_branch_decides_what_is_deployed() -> None:
    for workflow in ("deploy-stacks", "watch-stacks"):
        synth = jobs(workflow)["synth"]
        assert synth["with"]["branch"] == "${{ github.ref_name }}", workflow
        assert "if" not in synth, workflow
    plan = document(WORKFLOWS["plan-stacks"])
    branch = "${{ github.base_ref || github.ref_name }}"
    assert plan["env"]["BRANCH"] == plan["jobs"]["synth"]["with"]["branch"] == branch
    # Never tags, and no branch that nothing is deployed from.
    assert document(WORKFLOWS["deploy"])["on"]["push"] == {"branches": ["main"]}
    deploy = jobs("deploy-stacks")["deploy"]
    assert deploy["strategy"]["max-parallel"] == 1
    assert deploy["with"]["github_environment"] == "${{ matrix.github_environment }}"


def test_the_shown_plan_is_the_approved_one() -> None:
    plan, deploy, again = (jobs("deploy-environment")[name] for name in ("plan", "deploy", "again"))
    assert "environment" not in plan, "no approval comes before the plan"
    assert deploy["environment"] == "${{ inputs.github_environment }}"
    assert deploy["needs"] == ["plan", "scan"]
    given = [
        step["with"] for job in (plan, deploy) for step in job["steps"] if step.get("uses", "").startswith(CREDENTIALS)
    ]
    assert [each["role-to-assume"] for each in given] == ["${{ inputs.plan_role }}", "${{ inputs.apply_role }}"]
    assert int(given[1]["role-duration-seconds"]) == deploy["timeout-minutes"] * 60 == SESSION_SECONDS
    shown = [step.get("run", "") for step in plan["steps"]]
    assert shown.index('make -s comment >> "$GITHUB_STEP_SUMMARY"') < len(shown) - 1
    assert shown[-1].startswith("make -s approval ")
    (apply,) = [step for step in deploy["steps"] if step.get("id") == "apply"]
    assert apply["env"]["APPROVED"] == "${{ needs.plan.outputs.digest }}"
    assert 'APPROVED="$APPROVED"' in apply["run"]
    # What is not what was approved any more asks for another approval, and is not applied.
    assert (again["needs"], again["permissions"]) == ("deploy", {"actions": "write"})
    assert again["if"] == "${{ failure() && needs.deploy.outputs.stale == 'true' }}"
    assert "approved" not in str(again["steps"])


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({}, ""),
        ({"test": "failure"}, "test: failure"),
        ({"lint": "cancelled", "stacks": "failure"}, "lint: cancelled, stacks: failure"),
        ({"stacks": "skipped"}, "stacks: skipped"),
    ],
)
def test_the_required_check_needs_every_job_to_succeed(results: dict[str, str], message: str) -> None:
    others = jobs("pull-request").keys() - {"checks"}
    check = jobs("pull-request")["checks"]
    assert set(check["needs"]) == others
    assert check["steps"][0]["shell"] == "python"
    needs = {name: {"result": results.get(name, "success"), "outputs": {}} for name in sorted(others)}
    ran = outcome([sys.executable, "-c", check["steps"][0]["run"]], env={"NEEDS": json.dumps(needs)})
    assert (bool(ran.returncode), ran.stderr.strip()) == (bool(message), message)


# Releases


def test_releases_are_built_from_a_tag_without_keys() -> None:
    assert document(WORKFLOWS["release"])["on"] == {"push": {"tags": ["v*"]}}
    release = jobs("release")
    publish = release["publish"]
    assert publish["environment"] == "pypi"
    assert not any("run" in step for step in publish["steps"]), "no code of ours runs where the key is"
    assert not any("password" in step.get("with", {}) for step in publish["steps"]), "trusted publishing"
    assert set(publish["needs"]) == set(release) - {"publish", "page"}
    assert all(release[name]["permissions"] == {"contents": "read"} for name in publish["needs"])
    for name in ("check", "publish"):
        (got,) = [each["with"] for each in release[name]["steps"] if "download-artifact" in each.get("uses", "")]
        assert got == {"pattern": "dist*", "merge-multiple": True, "path": "dist"}, "what is checked is published"
    runs = "\n".join(step.get("run", "") for step in release["build"]["steps"])
    assert runs.index("merge-base") < runs.index("make dist") < runs.index("scripts.release")


@pytest.mark.parametrize("merged", [True, False])
def test_only_tags_of_the_default_branch_are_released(merged: bool, tmp_path: Path) -> None:
    (step,) = [each for each in steps("release", "build") if "merge-base" in each.get("run", "")]
    assert step["env"] == {"BRANCH": "${{ github.event.repository.default_branch }}"}

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
        return outcome(["git", *who, *arguments], cwd=tmp_path, check=True).stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    git("commit", "--quiet", "--allow-empty", "-m", "a")
    tagged = git("rev-parse", "HEAD")
    git("commit", "--quiet", "--allow-empty", "-m", "b")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    if not merged:
        git("checkout", "--quiet", "-b", "other", tagged)
        git("commit", "--quiet", "--allow-empty", "-m", "c")
        tagged = git("rev-parse", "HEAD")
    ran = run_step(step["run"], tmp_path, GITHUB_SHA=tagged, GITHUB_REF_NAME="v1.0.0", BRANCH="main")
    assert (ran.returncode == 0) is merged
    assert ("v1.0.0 is not on main" in ran.stdout) is not merged


@pytest.mark.parametrize("genuine", [True, False])
def test_only_the_hashed_rust_installer_is_run(genuine: bool, tmp_path: Path) -> None:
    ran, installer = tmp_path / "ran", tmp_path / "installer"
    program(installer, f'echo "$@" > {ran}')
    program(
        tmp_path / "curl", f"while [ $# -gt 1 ]; do [ $1 = -o ] && to=$2; shift; done\ncat {tmp_path}/installer > $to"
    )
    script = (CORE / "install-rust").read_text(encoding="utf-8")
    if genuine:
        digest = hashlib.sha256(installer.read_bytes()).hexdigest()
        script = re.sub(r"hash=[0-9a-f]{64}", f"hash={digest}", script)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert (outcome(["sh", "-c", script], env=environment).returncode == 0) is genuine
    assert ran.exists() is genuine


def test_no_download_is_piped_into_a_shell() -> None:
    paths = [*WORKFLOWS.values(), *ACTIONS.values(), CORE / "pyproject.toml", CORE / "install-rust"]
    for path in paths:
        assert not re.search(r"(?:curl|wget)[^\n]*\|\s*(?:ba)?sh", path.read_text(encoding="utf-8")), path
