"""A repository that the command writes fits the workflows, and the roles that an administrator makes for it."""

from __future__ import annotations

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
from infra.stacks.permissions import trust_to_apply
from infra.stacks.permissions.scope import Scope
from kinesis_efo_infra import __version__
from kinesis_efo_infra.gate.excuses import load_excuses
from kinesis_efo_infra.pipeline import publisher
from kinesis_efo_infra.pipeline.__main__ import main
from kinesis_efo_infra.pipeline.environment import load, read
from kinesis_efo_infra.pipeline.new_repository import write
from tests.support.isolated import CONSTRUCTS
from tests.support.missing import make
from tests.unit.infra.conftest import attempt, policy, rows, tags

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


def test_example_is_what_the_command_writes(tmp_path: Path) -> None:
    assert main(["new-repository", str(tmp_path)]) == 0
    assert files(tmp_path) == files(EXAMPLE), (
        "python -m kinesis_efo_infra.pipeline new-repository examples/own_cdktf_app"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--publisher", "acme"], "as owner/name; got 'acme'"),
        (["--publisher", "acme/streams\nevil"], "as owner/name; got 'acme/streams\\nevil'"),
        (["--tag", "main"], "must be that of a release"),
        (["--tag", "v1"], "got 'v1'"),
        (["--environment", "Dev_1"], "got 'Dev_1'"),
    ],
)
def test_wrong_name_is_refused(
    arguments: list[str], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["new-repository", str(tmp_path), *arguments]) == 1
    assert message in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "Makefile").write_text("mine", encoding="utf-8")
    assert main(["new-repository", str(tmp_path)]) == 1
    assert "nothing is overwritten, and" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"], "neither the one nor the others"
    assert main(["new-repository", str(tmp_path / "Makefile")]) == 1
    assert "cannot be written" in caplog.text
    assert main(["new-repository", str(tmp_path / "new"), "--engine", "cdktn"]) == 0
    assert f"{tmp_path / 'new' / 'README.md'} says what comes next" in caplog.text
    assert "[cdktn,pipeline]" in (tmp_path / "new" / "pyproject.toml").read_text(encoding="utf-8")


def test_command_without_pipeline_names_the_extra() -> None:
    # -S: without site-packages.
    program = f"import sys; sys.path.insert(0, {str(CONSTRUCTS)!r}); from kinesis_efo_infra.pipeline.console import main; sys.exit(main())"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "pip install 'kinesis-efo-infra[pipeline]'" in ran.stderr
    assert "Traceback" not in ran.stderr
    scripts = tomllib.loads((CONSTRUCTS / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {"kinesis-efo-infra": "kinesis_efo_infra.pipeline.console:main"}


def test_repository_calls_workflows_of_its_publisher(tmp_path: Path) -> None:
    write(tmp_path, "lake", "acme/streams", "v1.2.3")
    (environment,) = load(tmp_path / "environments")
    assert environment.pipeline is not None
    assert environment.pipeline.workflows == ["acme/streams/.github/workflows/deploy-environment.yml@refs/tags/v1.2.3"]
    texts = "".join(files(tmp_path).values())
    assert publisher.REPOSITORY not in texts
    assert "streaming-dev" not in texts
    assert "@@" not in texts
    assert texts.count("==1.2.3") == 2


def test_workflows_are_called_as_in_this_repository() -> None:
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


def test_one_check_is_required_for_all_environments() -> None:
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


def test_makefile_has_every_target_of_the_workflows() -> None:
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


def test_workflows_assume_the_bootstrapped_roles() -> None:
    own = read(EXAMPLE / "environments" / "streaming-dev.yaml")
    theirs, bootstrapped = own.deployment, deployment_of(load_for_bootstrap(EXAMPLE / "environments", "streaming-dev"))
    names = ("plan_role", "apply_role", "github_environment", "state_bucket", "state_key", "record_key", "repository")
    for name in names:
        assert getattr(theirs, name) == getattr(bootstrapped, name), name
    # The name is one that this repository's stacks declare, and excuse.
    assert theirs.named == replace(bootstrapped.named, reserved=frozenset(), services=theirs.named.services)
    scope = Scope(load_for_bootstrap(EXAMPLE / "environments", "streaming-dev"))
    arn = "arn:aws:kms:us-east-1:123456789012:alias/kinesis-efo/{}".format
    application = ("application/streaming-dev/lake", "manifest/kinesis-efo/streaming-dev/lake")
    for alias in ("stream/streaming-dev-orders", *application):
        assert any(fnmatchcase(arn(alias), each) for each in scope.aliases), alias
    assert not any(fnmatchcase(arn("stream/streaming-devil"), each) for each in scope.aliases)


def test_apply_role_changes_what_the_example_declares() -> None:
    environment = load_for_bootstrap(EXAMPLE / "environments", "streaming-dev")
    boundary = {"iam:PermissionsBoundary": read(EXAMPLE / "environments" / "streaming-dev.yaml").boundary}
    contexts = {"new": tags("Request", "streaming-dev") | boundary, "ours": tags("Resource", "streaming-dev")}
    here = "us-east-1:123456789012"
    applies = f"""
+ kinesis:CreateStream arn:aws:kinesis:{here}:stream/streaming-dev-orders | new
+ kinesis:RegisterStreamConsumer arn:aws:kinesis:{here}:stream/streaming-dev-orders | ours
+ dynamodb:CreateTable arn:aws:dynamodb:{here}:table/kinesis-efo-streaming-dev-lake | new
+ ssm:PutParameter arn:aws:ssm:{here}:parameter/kinesis-efo/streaming-dev/lake | ours
+ iam:CreateRole arn:aws:iam::123456789012:role/kinesis-efo-streaming-dev-lake | new
+ iam:CreatePolicy arn:aws:iam::123456789012:policy/kinesis-efo-streaming-dev-lake | new
+ kms:CreateAlias arn:aws:kms:{here}:alias/kinesis-efo/stream/streaming-dev-orders
+ kms:CreateAlias arn:aws:kms:{here}:alias/kinesis-efo/application/streaming-dev/lake
"""
    attempt(policy(environment), applies, **contexts)
    theirs = re.sub(r"(?m)^\+ (.*)streaming-dev(\S*).*$", r"- \1streaming-prod\2 | new + theirs", applies)
    attempt(policy(environment), theirs, theirs={"aws:ResourceTag/environment": "streaming-prod"}, **contexts)
    bounded = f"""
+ kinesis:SubscribeToShard arn:aws:kinesis:{here}:stream/streaming-dev-orders/consumer/lake:1 | ours
- kinesis:RegisterStreamConsumer arn:aws:kinesis:{here}:stream/streaming-dev-orders | ours
"""
    attempt(policy(environment, "boundary"), bounded, **contexts)


def test_upgrade_trusts_two_versions(tmp_path: Path) -> None:
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


FAULTY = r"""
acount_id: '1' => acount_id: is no setting of this file; streams and applications are declared in the program
account_id: 111122223333 => account_id: Input should be a valid string; got 111122223333
region: eu-wst-1 => region: must be a region of AWS; is eu-west-1 meant?
environment: dev => environment: must be 'streaming-dev', as the file is called; got 'dev'
pipeline: {repository: acme/x, workflows: [acme/x@v1]} => pipeline.workflows.0: String should match
pipeline: {repository: acme/x, after: streaming-dev} => pipeline.after: must be another environment
"""


@pytest.mark.parametrize(("changes", "message"), rows(FAULTY))
def test_fault_of_an_environment_file_is_named(changes: str, message: str, tmp_path: Path) -> None:
    changed(tmp_path, **yaml.safe_load("{" + changes + "}"))
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(tmp_path)


def beside(directory: Path, name: str, **changes: Any) -> None:
    """A second environment file of the example, in the same account."""
    written = {**document(EXAMPLE / "environments" / "streaming-dev.yaml"), "environment": name, **changes}
    (directory / f"{name}.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")


# The rules are those of `test_files_of_an_account_go_together`.
def test_environments_of_an_account_go_together(tmp_path: Path) -> None:
    now = document(changed(tmp_path))["pipeline"]
    # Nobody bootstraps the second one, so that nothing else would notice.
    beside(tmp_path, "streaming-dev-2", pipeline=None)
    with pytest.raises(SettingsError, match=r"dev-2.yaml: environment: begins like streaming-dev, whose role"):
        load(tmp_path)
    (tmp_path / "streaming-dev-2.yaml").unlink()
    beside(tmp_path, "streaming-prod")
    with pytest.raises(SettingsError, match=r"(?s)oidc_provider_arn: is missing: .*adopt_state_bucket: is missing: "):
        load(tmp_path)
    # Names of buckets are unique in all of AWS.
    own = {"account_id": "444455556666", "state_bucket": "acme-prod"}
    beside(tmp_path, "streaming-prod", pipeline={**now, "after": "streaming-dev"}, **own)
    assert len(load(tmp_path)) == 2


@pytest.mark.parametrize("name", ["streaming-dev.yaml", "excuses.yaml"])
def test_key_written_twice_is_refused(name: str, tmp_path: Path) -> None:
    texts = {
        "streaming-dev.yaml": changed(tmp_path).read_text(encoding="utf-8") + 'account_id: "444455556666"\n',
        "excuses.yaml": "- check: CKV_AWS_18\n  check: CKV_AWS_19\n",
    }
    (tmp_path / name).write_text(texts[name], encoding="utf-8")
    with pytest.raises(SettingsError, match="is written twice"):
        load_excuses(tmp_path, date(2026, 1, 1)) if name == "excuses.yaml" else load(tmp_path)


def test_administrators_settings_are_checked(tmp_path: Path) -> None:
    now = document(EXAMPLE / "environments" / "streaming-dev.yaml")["pipeline"]
    issuer = "token.actions.acme.ghe.com"
    changed(tmp_path, pipeline={**now, "issuer": issuer})
    (mine,) = load(tmp_path)
    bootstrapped = load_for_bootstrap(tmp_path, "streaming-dev")
    assert mine.pipeline and bootstrapped.pipeline
    assert mine.pipeline.issuer == bootstrapped.pipeline.issuer == issuer
    changed(tmp_path, pipeline={**now, "oidc_provider_arn": "arn:aws:iam::123456789012:role/github"})
    with pytest.raises(SettingsError, match=r"streaming-dev.yaml: pipeline.oidc_provider_arn: must match"):
        load_for_bootstrap(tmp_path, "streaming-dev")
