"""A repository that the command writes fits the workflows, and the roles that an administrator makes for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import SettingsError
from infra.pipeline.deployments import deployment_of
from infra.settings.load import load_for_bootstrap
from infra.stacks import permissions
from infra.stacks.permissions import trust_to_apply
from infra.stacks.permissions.scope import Scope
from kinesis_efo_infra import __version__
from kinesis_efo_infra.gate.excuses import load_excuses
from kinesis_efo_infra.iam import policy_json
from kinesis_efo_infra.pipeline import publisher
from kinesis_efo_infra.pipeline.__main__ import main
from kinesis_efo_infra.pipeline.environment import load, read
from kinesis_efo_infra.pipeline.new_repository import write
from tests.support.iam import allowed
from tests.support.isolated import CONSTRUCTS
from tests.support.missing import make

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = ROOT / "examples" / "own_cdktf_app"
WORKFLOWS = ROOT / ".github" / "workflows"
NEXT = publisher.trusted(tag="v9.9.9")


def files(directory: Path) -> Mapping[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    named = listed or [str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()]
    return {name: (directory / name).read_text(encoding="utf-8") for name in named}


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def changed(directory: Path, **changes: Any) -> Path:
    """The environment file of the example in a directory, with changes."""
    path = directory / "streaming-dev.yaml"
    path.write_text(yaml.safe_dump({**document(EXAMPLE / "environments" / path.name), **changes}), encoding="utf-8")
    return path


def test_the_example_is_what_the_command_writes(tmp_path: Path) -> None:
    assert main(["new-repository", str(tmp_path)]) == 0
    assert files(tmp_path) == files(EXAMPLE), (
        "python -m kinesis_efo_infra.pipeline new-repository examples/own_cdktf_app"
    )


def test_nothing_is_overwritten_and_a_wrong_name_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "Makefile").write_text("mine", encoding="utf-8")
    assert main(["new-repository", str(tmp_path)]) == 1
    assert "nothing is overwritten, and" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"], "neither the one nor the others"
    assert main(["new-repository", str(tmp_path / "other"), "--environment", "Dev_1"]) == 1
    assert "got 'Dev_1'" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--publisher", "acme"), "as owner/name; got 'acme'"),
        (("--publisher", "acme/streams\nevil"), "as owner/name; got 'acme/streams\\nevil'"),
        (("--tag", "main"), "must be that of a release"),
        (("--tag", "v1"), "got 'v1'"),
    ],
)
def test_what_no_workflow_or_package_can_be_called_is_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["new-repository", str(tmp_path), *arguments]) == 1
    assert message in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["new-repository", str(tmp_path / "file")]) == 1
    assert "cannot be written" in caplog.text


def test_it_says_where_the_next_steps_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert main(["new-repository", str(tmp_path)]) == 0
    assert f"{tmp_path / 'README.md'} says what comes next" in caplog.text


def test_the_command_says_what_to_install_where_only_the_constructs_are() -> None:
    # -S: without site-packages.
    program = f"import sys; sys.path.insert(0, {str(CONSTRUCTS)!r}); from kinesis_efo_infra.pipeline.console import main; sys.exit(main())"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "pip install 'kinesis-efo-infra[pipeline]'" in ran.stderr
    assert "Traceback" not in ran.stderr
    scripts = tomllib.loads((CONSTRUCTS / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {"kinesis-efo-infra": "kinesis_efo_infra.pipeline.console:main"}


def test_what_is_written_names_its_environment_and_whose_workflows_it_calls(tmp_path: Path) -> None:
    write(tmp_path, "lake", "acme/streams", "v1.2.3")
    (environment,) = load(tmp_path / "environments")
    assert environment.pipeline is not None
    assert environment.pipeline.workflows == ["acme/streams/.github/workflows/deploy-environment.yml@refs/tags/v1.2.3"]
    texts = "".join(files(tmp_path).values())
    assert publisher.REPOSITORY not in texts
    assert "streaming-dev" not in texts
    assert "@@" not in texts
    assert texts.count("==1.2.3") == 2


def test_its_workflows_call_what_there_is_with_the_permissions_that_it_asks_for() -> None:
    callers = sorted((EXAMPLE / ".github" / "workflows").glob("*.yml"))
    assert [path.name for path in callers] == ["deploy.yml", "drift.yml", "pull-request.yml"]
    for path in callers:
        ours = document(WORKFLOWS / path.name)
        theirs = document(path)
        (job,) = [each for each in theirs["jobs"].values() if "uses" in each]
        repository, _, called = job["uses"].partition("/.github/workflows/")
        assert (repository, called.partition("@")[2]) == (publisher.REPOSITORY, f"v{__version__}")
        (mine,) = [
            each
            for each in ours["jobs"].values()
            if each.get("uses") == f"./.github/workflows/{called.partition('@')[0]}"
        ]
        # As this repository calls it, which test_workflows looks at.
        assert {key: job[key] for key in job if key != "uses"} == {key: mine[key] for key in mine if key != "uses"}
        # YAML 1.1 reads the key `on` as true.
        assert theirs[True] == ours[True]


def test_there_is_one_check_to_require_whatever_the_environments_are_called() -> None:
    # A job that calls a workflow has no check of its own: GitHub would wait for it for ever.
    jobs = document(EXAMPLE / ".github" / "workflows" / "pull-request.yml")["jobs"]
    (check,) = [each for each in jobs.values() if "uses" not in each]
    assert f"the check *{check['name']}*" in " ".join((EXAMPLE / "README.md").read_text(encoding="utf-8").split())
    assert (check["needs"], check["if"], check["permissions"]) == ("stacks", "${{ always() }}", {})
    (step,) = check["steps"]
    assert step["env"] == {"RESULT": "${{ needs.stacks.result }}"}
    for result, code in (("success", 0), ("failure", 1), ("cancelled", 1), ("skipped", 1)):
        ran = subprocess.run(["sh", "-c", step["run"]], env={"RESULT": result}, check=False)
        assert ran.returncode == code, result


def test_its_makefile_has_every_target_that_the_workflows_run() -> None:
    scripts = "\n".join(
        step["run"]
        for path in WORKFLOWS.glob("*.yml")
        if "workflow_call" in document(path)[True]
        for job in document(path)["jobs"].values()
        for step in job.get("steps", ())
        if "run" in step
    )
    targets = set(re.findall(r"make (?:-s )?([a-z]+)", scripts))
    assert targets == {
        "apply", "approval", "comment", "digest", "drift", "environments", "findings", "issue", "jobs", "pipeline", "plan",
        "providers", "scan", "synth", "tell",
    }  # fmt: skip
    for target in sorted(targets):
        asked = subprocess.run([make(), "-n", target], cwd=EXAMPLE, capture_output=True, text=True, check=False)
        assert asked.returncode == 0, asked.stderr
    asked = subprocess.run([make(), "-n", "pipeline", "synth"], cwd=EXAMPLE, capture_output=True, text=True, check=True)
    assert asked.stdout.count("sync --locked --no-build") == 2, "packages with hashes, of which nothing is built"
    # A lock that nobody has looked at is never made on the way.
    unlocked = subprocess.run([make(), "pipeline"], cwd=EXAMPLE, capture_output=True, text=True, check=False)
    assert unlocked.returncode == 2
    assert "uv.lock is missing" in unlocked.stderr


def test_one_place_names_the_publisher() -> None:
    package = Path(publisher.__file__).parents[1]
    naming = [
        path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc" and "OWNER/" in path.read_text()
    ]
    assert naming == [Path(publisher.__file__)]


def test_the_roles_that_an_administrator_makes_are_those_that_its_workflows_assume() -> None:
    own = read(EXAMPLE / "environments" / "streaming-dev.yaml")
    theirs, bootstrapped = own.deployment, deployment_of(load_for_bootstrap(EXAMPLE / "environments", "streaming-dev"))
    for name in (
        "plan_role",
        "apply_role",
        "github_environment",
        "state_bucket",
        "state_key",
        "record_key",
        "repository",
    ):
        assert getattr(theirs, name) == getattr(bootstrapped, name), name
    # The name is one that this repository's stacks declare, and excuse.
    assert theirs.named == replace(bootstrapped.named, reserved=frozenset(), services=theirs.named.services)
    scope = Scope(load_for_bootstrap(EXAMPLE / "environments", "streaming-dev"))
    arn = "arn:aws:kms:us-east-1:123456789012:alias/kinesis-efo/{}".format
    for alias in (
        "stream/streaming-dev-orders",
        "application/streaming-dev/lake",
        "manifest/kinesis-efo/streaming-dev/lake",
    ):
        assert any(fnmatchcase(arn(alias), each) for each in scope.aliases), alias
    assert not any(fnmatchcase(arn("stream/streaming-devil"), each) for each in scope.aliases)


def test_the_role_that_applies_may_change_what_the_example_declares_and_no_more() -> None:
    environment = load_for_bootstrap(EXAMPLE / "environments", "streaming-dev")
    policies = [
        each for kind, policy in permissions.policies(environment).items() if kind != "boundary" for each in policy
    ]
    applies = json.loads(policy_json(policies))["Statement"]
    bounded = json.loads(policy_json(permissions.boundary(environment)))["Statement"]
    own = {"environment": "streaming-dev", "managed-by": "kinesis-efo"}
    new = {f"aws:RequestTag/{name}": value for name, value in own.items()} | {
        "iam:PermissionsBoundary": read(EXAMPLE / "environments" / "streaming-dev.yaml").boundary
    }
    there = {f"aws:ResourceTag/{name}": value for name, value in own.items()}
    arn = "arn:aws:{}:us-east-1:123456789012:{}".format
    iam = "arn:aws:iam::123456789012:{}".format
    declared = {
        ("kinesis:CreateStream", arn("kinesis", "stream/streaming-dev-orders")): new,
        ("kinesis:RegisterStreamConsumer", arn("kinesis", "stream/streaming-dev-orders")): there,
        ("dynamodb:CreateTable", arn("dynamodb", "table/kinesis-efo-streaming-dev-lake")): new,
        ("ssm:PutParameter", arn("ssm", "parameter/kinesis-efo/streaming-dev/lake")): there,
        ("iam:CreateRole", iam("role/kinesis-efo-streaming-dev-lake")): new,
        ("iam:CreatePolicy", iam("policy/kinesis-efo-streaming-dev-lake")): new,
        ("kms:CreateAlias", arn("kms", "alias/kinesis-efo/stream/streaming-dev-orders")): {},
        ("kms:CreateAlias", arn("kms", "alias/kinesis-efo/application/streaming-dev/lake")): {},
    }
    refused = [call for call, context in declared.items() if not allowed(applies, *call, context)]
    assert refused == []
    others = [(action, resource.replace("streaming-dev", "streaming-prod")) for action, resource in declared]
    assert [
        call for call in others if allowed(applies, *call, new | {"aws:ResourceTag/environment": "streaming-prod"})
    ] == []
    reads = ("kinesis:SubscribeToShard", arn("kinesis", "stream/streaming-dev-orders/consumer/lake:1"))
    assert allowed(bounded, *reads, there)
    assert not allowed(bounded, "kinesis:RegisterStreamConsumer", arn("kinesis", "stream/streaming-dev-orders"), there)


def test_an_upgrade_trusts_two_versions_until_it_is_done(tmp_path: Path) -> None:
    now = document(EXAMPLE / "environments" / "streaming-dev.yaml")["pipeline"]

    def trusted(*workflows: str) -> tuple[str, ...]:
        changed(tmp_path, pipeline={**now, "workflows": list(workflows)})
        statement = trust_to_apply(load_for_bootstrap(tmp_path, "streaming-dev"), "arn")
        conditions = {each.variable.partition(":")[2]: each.values for each in statement.conditions}
        assert conditions["ref"] == ("refs/heads/main",), "whoever calls it, from its branch only"
        assert conditions["repository_id"] == ("2",)
        return conditions["job_workflow_ref"]

    assert trusted(publisher.trusted()) == (publisher.trusted(),)
    assert trusted(publisher.trusted(), NEXT) == (publisher.trusted(), NEXT)
    assert trusted() == tuple(
        f"acme/streaming/.github/workflows/{name}.yml@refs/heads/main" for name in ("deploy-environment", "deploy")
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"acount_id": "1"},
            "acount_id: is no setting of this file; streams and applications are declared in the program",
        ),
        ({"account_id": 111122223333}, "account_id: Input should be a valid string; got 111122223333"),
        ({"region": "eu-wst-1"}, "region: must be a region of AWS; is eu-west-1 meant?"),
        ({"environment": "dev"}, "environment: must be 'streaming-dev', as the file is called; got 'dev'"),
        (
            {"pipeline": {"repository": "acme/x", "workflows": ["acme/x@v1"]}},
            "pipeline.workflows.0: String should match",
        ),
        (
            {"pipeline": {"repository": "acme/x", "after": "streaming-dev"}},
            "pipeline.after: must be another environment",
        ),
    ],
)
def test_a_fault_of_its_environment_file_says_where(changes: Any, message: str, tmp_path: Path) -> None:
    changed(tmp_path, **changes)
    with pytest.raises(SettingsError) as caught:
        load(tmp_path)
    assert message in str(caught.value)


def beside(directory: Path, name: str, **changes: Any) -> None:
    """A second environment file of the example, in the same account."""
    written = {**document(EXAMPLE / "environments" / "streaming-dev.yaml"), "environment": name, **changes}
    (directory / f"{name}.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")


def test_no_environment_begins_like_one_whose_roles_would_reach_it(tmp_path: Path) -> None:
    changed(tmp_path)
    # Nobody bootstraps the second one, so that nothing else would notice.
    beside(tmp_path, "streaming-dev-2", pipeline=None)
    with pytest.raises(
        SettingsError, match=r"streaming-dev-2.yaml: environment: begins like streaming-dev, whose role"
    ):
        load(tmp_path)
    beside(tmp_path, "streaming-dev-2", pipeline=None, account_id="444455556666")
    assert len(load(tmp_path)) == 2


def test_an_environment_comes_after_one_that_a_pipeline_deploys(tmp_path: Path) -> None:
    now = document(changed(tmp_path))["pipeline"]
    own = {"account_id": "444455556666", "state_bucket": "acme-prod"}
    beside(tmp_path, "streaming-prod", pipeline={**now, "after": "streaming-dev"}, **own)
    assert len(load(tmp_path)) == 2
    changed(tmp_path, pipeline=None)
    with pytest.raises(SettingsError, match=r"streaming-prod.yaml: pipeline.after: must be .* with a pipeline"):
        load(tmp_path)


def test_one_bootstrap_stack_declares_a_bucket_and_an_account_s_provider(tmp_path: Path) -> None:
    now = document(changed(tmp_path))["pipeline"]
    beside(tmp_path, "streaming-prod")
    with pytest.raises(SettingsError) as caught:
        load(tmp_path)
    already = r"is missing: the bootstrap stack of streaming-dev declares"
    assert (
        f"streaming-prod.yaml: pipeline.oidc_provider_arn: {already} the OIDC provider in account 123456789012 already"
        in str(caught.value)
    )
    bucket = f"streaming-prod.yaml: pipeline.adopt_state_bucket: {already} acme-terraform-state already"
    assert bucket in str(caught.value)
    provider = "arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com"
    beside(tmp_path, "streaming-prod", pipeline={**now, "adopt_state_bucket": True, "oidc_provider_arn": provider})
    assert len(load(tmp_path)) == 2
    # Of another account, a provider of its own; names of buckets are unique in all of AWS.
    beside(tmp_path, "streaming-prod", account_id="444455556666")
    with pytest.raises(SettingsError) as caught:
        load(tmp_path)
    assert str(caught.value).count("is missing") == 1
    assert bucket in str(caught.value)
    # Without a pipeline, bootstrap makes the bucket alone, if it is missing.
    beside(tmp_path, "streaming-prod", pipeline=None)
    assert len(load(tmp_path)) == 2


@pytest.mark.parametrize("name", ["streaming-dev.yaml", "excuses.yaml"])
def test_a_key_that_is_written_twice_is_refused(name: str, tmp_path: Path) -> None:
    texts = {
        "streaming-dev.yaml": changed(tmp_path).read_text(encoding="utf-8") + 'account_id: "444455556666"\n',
        "excuses.yaml": "- check: CKV_AWS_18\n  check: CKV_AWS_19\n",
    }
    (tmp_path / name).write_text(texts[name], encoding="utf-8")
    with pytest.raises(SettingsError, match="is written twice"):
        load_excuses(tmp_path, date(2026, 1, 1)) if name == "excuses.yaml" else load(tmp_path)


def test_what_only_an_administrator_must_know_is_a_fault_with_its_file(tmp_path: Path) -> None:
    now = document(EXAMPLE / "environments" / "streaming-dev.yaml")["pipeline"]
    changed(tmp_path, pipeline={**now, "oidc_provider_arn": "arn:aws:iam::123456789012:role/github"})
    with pytest.raises(SettingsError, match=r"streaming-dev.yaml: pipeline.oidc_provider_arn: must match"):
        load_for_bootstrap(tmp_path, "streaming-dev")
