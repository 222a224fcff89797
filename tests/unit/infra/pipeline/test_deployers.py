"""Before there is a role that applies, GitHub's rules must let only those deploy who should."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError
from infra.pipeline.deployers import DEPLOY, check_rules
from infra.pipeline.github import RefusedError
from infra.settings import Environment

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
        check_rules(github, environment, deploy)
    return str(caught.value)


def test_rules_that_let_the_branch_deploy_and_no_other_pass(github: FakeGitHub, load: Load) -> None:
    for repository in (NEW, OLD):
        check_rules(github, load(pipeline={"repository": repository}), ROOT / DEPLOY)
    github.subject["sub_claim_prefix"] = f"repo:{NEW}"
    check_rules(github, load(pipeline={"repository": NEW}), ROOT / DEPLOY)
    # GitHub's API before it told the prefix.
    github.subject = {"use_default": True}
    check_rules(github, load(pipeline={"repository": OLD}))
    assert github.environment
    github.environment["deployment_branch_policy"] = {"protected_branches": True, "custom_branch_policies": False}
    github.environment["protection_rules"] = [REVIEWERS]
    check_rules(github, load(pipeline={"repository": OLD}, protected=True))


def test_which_form_of_subjects_holds_is_said(github: FakeGitHub, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    old = load(pipeline={"repository": OLD})
    check_rules(github, old)
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


def test_the_workflow_must_be_started_by_a_push_to_the_branch(github: FakeGitHub, load: Load) -> None:
    github.branches = [{"name": "trunk", "type": "branch"}]
    told = refused(github, load(pipeline={"repository": OLD, "branch": "trunk"}), ROOT / DEPLOY)
    assert "deploy.yml is not started by a push to trunk; add it to the branches there, which are main" in told


def test_where_github_cannot_be_asked_nothing_is_done(github: FakeGitHub, load: Load) -> None:
    for failure in (PipelineError("the GitHub command line cannot be run"), RefusedError("Forbidden", 403)):
        github.failure = failure
        told = refused(github, load(pipeline={"repository": OLD}))
        assert told.startswith(f"GitHub cannot be asked who may deploy test: {failure}")
        assert "say UNASKED=1" in told
