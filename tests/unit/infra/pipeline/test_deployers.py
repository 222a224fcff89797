"""Before there is a role that applies, GitHub's rules must let only those deploy who should."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError
from infra.pipeline.deployments import deployment_of
from infra.settings.model import Environment
from kinesis_efo_infra.pipeline.deployers import DEPLOY, check_rules, workflow_of
from kinesis_efo_infra.pipeline.github import RefusedError

Json = dict[str, Any]
Load = Callable[..., Environment]
ROOT = Path(__file__).resolve().parents[4]
REVIEWERS = {"type": "required_reviewers", "reviewers": [{"type": "Team"}]}
NEW, OLD = "acme@12/lake@34", "acme/lake"


class FakeGitHub:
    """What GitHub says of a repository and of its environment."""

    def __init__(self) -> None:
        self.repository: Json = {"full_name": "acme/lake", "id": 34, "owner": {"login": "acme", "id": 12}}
        self.subject: Json = {"use_default": True, "sub_claim_prefix": f"repo:{OLD}"}
        self.environment: Json | None = {
            "deployment_branch_policy": {"protected_branches": False, "custom_branch_policies": True},
            "protection_rules": [{"type": "branch_policy"}],
        }
        self.branches: list[Json] = [{"name": "main", "type": "branch"}]
        self.failure: PipelineError | None = None

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if self.failure:
            raise self.failure
        match path.partition("?")[0].split("/"):
            case [""]:
                return self.repository
            case ["actions", "oidc", "customization", "sub"]:
                return self.subject
            case ["environments", "test"] if self.environment is None:
                raise RefusedError("Not Found", 404)
            case ["environments", "test"]:
                return self.environment
            case ["environments", "test", "deployment-branch-policies"]:
                return {"branch_policies": self.branches}
        raise AssertionError(path)

    def pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        raise AssertionError(path)

    def download(self, run: int, artifact: str, to: Path) -> None:
        raise AssertionError(artifact)


@pytest.fixture
def github() -> FakeGitHub:
    return FakeGitHub()


def refused(github: FakeGitHub, environment: Environment, deploy: Path = Path("none")) -> str:
    with pytest.raises(PipelineError) as caught:
        check_rules(github, deployment_of(environment), deploy)
    return str(caught.value)


def test_rules_that_let_the_branch_deploy_and_no_other_pass(github: FakeGitHub, load: Load) -> None:
    for repository in (NEW, OLD):
        check_rules(github, deployment_of(load(pipeline={"repository": repository})), ROOT / DEPLOY)
    github.subject["sub_claim_prefix"] = f"repo:{NEW}"
    check_rules(github, deployment_of(load(pipeline={"repository": NEW})), ROOT / DEPLOY)
    # GitHub's API before it told the prefix.
    github.subject = {"use_default": True}
    check_rules(github, deployment_of(load(pipeline={"repository": OLD})))
    assert github.environment
    github.environment["deployment_branch_policy"] = {"protected_branches": True, "custom_branch_policies": False}
    github.environment["protection_rules"] = [REVIEWERS]
    check_rules(github, deployment_of(load(pipeline={"repository": OLD}, protected=True)))


def test_which_form_of_subjects_holds_is_said(github: FakeGitHub, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    old = load(pipeline={"repository": OLD})
    check_rules(github, deployment_of(old))
    assert f"`repository: {OLD}` has no ids" in caplog.text
    assert f"say {NEW}" in caplog.text
    github.subject["sub_claim_prefix"] = f"repo:{NEW}"
    assert f"its tokens say {NEW}, and `repository:` says {OLD}; say `{NEW}`" in refused(github, old)
    github.subject["use_default"] = False
    assert "have a subject of their own (`include_claim_keys`)" in refused(github, old)


def test_a_repository_that_was_renamed_or_is_another_is_found(github: FakeGitHub, load: Load) -> None:
    github.repository.update(full_name="acme/pond")
    github.subject["sub_claim_prefix"] = "repo:acme@12/pond@34"
    renamed = "its tokens say acme@12/pond@34, and `repository:` says acme@12/lake@34; say `acme@12/pond@34`"
    assert renamed in refused(github, load(pipeline={"repository": NEW}))
    github.repository["id"] = 35
    assert "`repository:` has id 34, and acme/pond has 35" in refused(github, load(pipeline={"repository": NEW}))


def test_an_environment_without_rules_is_refused(github: FakeGitHub, load: Load) -> None:
    environment = load(pipeline={"repository": OLD})
    assert github.environment
    github.environment["deployment_branch_policy"] = None
    assert "the GitHub environment test lets every branch deploy: allow it the branch main" in refused(
        github, environment
    )
    github.environment = None
    assert "there is no GitHub environment test: create it, and allow it the branch main" in refused(
        github, environment
    )


@pytest.mark.parametrize("branches", [[], ["*"], ["main", "release/*"], ["trunk"]])
def test_an_environment_for_other_branches_is_refused(branches: list[str], github: FakeGitHub, load: Load) -> None:
    github.branches = [{"name": each} for each in branches]
    told = ", ".join(f"branch {each}" for each in branches) or "nobody"
    assert f"the GitHub environment test lets deploy {told}: " in refused(github, load(pipeline={"repository": OLD}))


def test_a_protected_environment_needs_reviewers(github: FakeGitHub, load: Load) -> None:
    protected = load(pipeline={"repository": OLD}, protected=True)
    assert "test has no required reviewers, and test is protected" in refused(github, protected)
    assert github.environment
    github.environment["protection_rules"] = [{**REVIEWERS, "reviewers": []}]
    assert "no required reviewers" in refused(github, protected)


@pytest.mark.parametrize("protected", [True, False])
def test_ways_around_the_reviewers_are_warned_of(
    protected: bool, github: FakeGitHub, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    environment = deployment_of(load(pipeline={"repository": NEW}, protected=protected))
    assert github.environment

    def warned(can_admins_bypass: bool | None, prevent_self_review: bool | None) -> list[bool]:
        caplog.clear()
        assert github.environment
        github.environment["can_admins_bypass"] = can_admins_bypass
        github.environment["protection_rules"] = [
            {**REVIEWERS, "prevent_self_review": True},
            {**REVIEWERS, "prevent_self_review": prevent_self_review},
        ]
        check_rules(github, environment, ROOT / DEPLOY)
        return [
            'without an approval; switch off "Allow administrators to bypass' in caplog.text,
            'approve it as well; switch on "Prevent self-review"' in caplog.text,
        ]

    assert warned(True, False) == [True, True]
    assert warned(False, False) == [False, True]
    assert warned(True, True) == [True, False]
    assert warned(False, True) == [False, False]


def test_what_has_no_reviewers_has_no_ways_around_them(
    github: FakeGitHub, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    assert github.environment
    github.environment["can_admins_bypass"] = True
    check_rules(github, deployment_of(load(pipeline={"repository": NEW})), ROOT / DEPLOY)
    assert caplog.text == ""


def test_an_answer_that_leaves_the_ways_around_out_is_taken_for_github_s_default(
    github: FakeGitHub, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    assert github.environment
    github.environment["protection_rules"] = [REVIEWERS]
    check_rules(github, deployment_of(load(pipeline={"repository": NEW})), ROOT / DEPLOY)
    assert "can_admins_bypass" in caplog.text
    assert "prevent_self_review" in caplog.text


def test_the_workflow_must_be_started_by_a_push_to_the_branch(github: FakeGitHub, load: Load) -> None:
    github.branches = [{"name": "trunk", "type": "branch"}]
    told = refused(github, load(pipeline={"repository": OLD, "branch": "trunk"}), ROOT / DEPLOY)
    assert (
        "deploy.yml is not started by a push to trunk alone; name it under `on: push: branches:`, which has main"
        in told
    )


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("{push: {branches: [main, 'release/**']}}", "is started by a push to release/[*][*]; name the branches"),
        ("{push: {branches: ['**']}}", "is not started by a push to main alone; name it .*, which has [*][*]"),
        ("push", "is not started by a push to main alone; name it .*, which has none"),
        ("[push, workflow_dispatch]", "is not started by a push to main alone"),
        ("{push: }", "is not started by a push to main alone"),
        ("{workflow_dispatch: }", "is not started by a push to main alone"),
        ("[", "cannot be read as YAML: while parsing a flow node"),
    ],
)
def test_a_push_to_any_branch_does_not_deploy(
    on: str, message: str, github: FakeGitHub, load: Load, tmp_path: Path
) -> None:
    deploy = tmp_path / "deploy.yml"
    deploy.write_text(f"on: {on}\n", encoding="utf-8")
    assert re.search(message, refused(github, load(pipeline={"repository": NEW}), deploy))


def test_a_file_that_is_no_workflow_deploys_nothing(github: FakeGitHub, load: Load, tmp_path: Path) -> None:
    for written in ("", "- a list", "text"):
        (tmp_path / "deploy.yml").write_text(written, encoding="utf-8")
        told = refused(github, load(pipeline={"repository": NEW}), tmp_path / "deploy.yml")
        assert "is not started by a push to main alone" in told


def test_the_workflow_is_that_of_the_repository_which_the_files_are_in(
    github: FakeGitHub, load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environments = tmp_path / "repository" / "apps" / "lake" / "environments"
    environments.mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    expected = tmp_path / "repository" / DEPLOY
    assert workflow_of(environments) == expected
    trunk = load(pipeline={"repository": OLD, "branch": "trunk"})
    github.branches = [{"name": "trunk", "type": "branch"}]
    # It has none: ours, which a push to trunk does not start, says nothing of it.
    check_rules(github, deployment_of(trunk), workflow_of(environments))
    assert f"there is no {expected}, so whether a push to trunk deploys was not looked at" in caplog.text
    expected.parent.mkdir(parents=True)
    expected.write_text("on: {push: {branches: [release]}}", encoding="utf-8")
    assert f"{expected} is not started by a push to trunk alone" in refused(github, trunk, workflow_of(environments))
    # A folder that is no clone, as `new-repository` writes it.
    (tmp_path / "repository" / ".git").rmdir()
    assert workflow_of(environments) == expected
    assert workflow_of(ROOT / "infra" / "environments") == ROOT / DEPLOY
    other = expected.with_name("deploy-lake.yml")
    other.touch()
    expected.unlink()
    assert workflow_of(environments, "deploy-lake.yml") == other
    other.write_text("on: {push: {branches: trunk}}", encoding="utf-8")
    check_rules(github, deployment_of(trunk), other)


def test_where_github_cannot_be_asked_nothing_is_done(github: FakeGitHub, load: Load) -> None:
    for failure in (PipelineError("the GitHub command line cannot be run"), RefusedError("Forbidden", 403)):
        github.failure = failure
        told = refused(github, load(pipeline={"repository": OLD}))
        assert told.startswith(f"GitHub cannot be asked who may deploy test: {failure}")
        assert "say UNASKED=1" in told
