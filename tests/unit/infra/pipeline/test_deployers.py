"""Before there is a role that applies, GitHub's rules must let only those deploy who should."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import PipelineError
from infra.pipeline.deployments import deployment_of
from infra.settings.model import Environment
from kinesis_efo_infra.pipeline.deployers import DEPLOY, check_rules, workflow_of
from kinesis_efo_infra.pipeline.github import RefusedError
from tests.unit.infra.conftest import Load, rows

Json = dict[str, Any]
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
        answers: dict[str, Any] = {
            "": self.repository,
            "actions/oidc/customization/sub": self.subject,
            "environments/test": self.environment,
            "environments/test/deployment-branch-policies": {"branch_policies": self.branches},
        }
        if (answer := answers[path.partition("?")[0]]) is None:
            raise RefusedError("Not Found", 404)
        return answer


@pytest.fixture
def github() -> FakeGitHub:
    return FakeGitHub()


def refused(github: FakeGitHub, environment: Environment, deploy: Path = Path("none")) -> str:
    with pytest.raises(PipelineError) as caught:
        check_rules(github, deployment_of(environment), deploy)
    return str(caught.value)


# Settings of the pipeline, answers of GitHub by path, and what is refused.
ANSWERS = r"""
NEW | => passes
OLD | => passes
NEW | subject.sub_claim_prefix: 'repo:acme@12/lake@34' => passes
OLD, protected: true | environment.deployment_branch_policy: {protected_branches: true, custom_branch_policies: false}, environment.protection_rules: [REVIEWERS] => passes
# The form of subjects, and the repository that they name.
OLD | subject.sub_claim_prefix: 'repo:acme@12/lake@34' => its tokens say acme@12/lake@34, and `repository:` says acme/lake; say `acme@12/lake@34`
OLD | subject: {use_default: false, sub_claim_prefix: 'repo:acme@12/lake@34'} => have a subject of their own (`include_claim_keys`)
NEW | repository.full_name: acme/pond, subject.sub_claim_prefix: 'repo:acme@12/pond@34' => its tokens say acme@12/pond@34, and `repository:` says acme@12/lake@34; say `acme@12/pond@34`
NEW | repository: {full_name: acme/pond, id: 35, owner: {login: acme, id: 12}}, subject.sub_claim_prefix: 'repo:acme@12/pond@34' => `repository:` has id 34, and acme/pond has 35
# The environment and its branches.
OLD | environment.deployment_branch_policy: null => the GitHub environment test lets every branch deploy: allow it the branch main
OLD | environment: null => there is no GitHub environment test: create it, and allow it the branch main
OLD | branches: [] => the GitHub environment test lets deploy nobody:
OLD | branches: [{name: main}, {name: release/*}] => the GitHub environment test lets deploy branch main, branch release/*:
OLD, protected: true | => test has no required reviewers, and test is protected
OLD, protected: true | environment.protection_rules: [{type: required_reviewers, reviewers: []}] => no required reviewers
"""


@pytest.mark.parametrize(("given", "message"), rows(ANSWERS))
def test_rules_of_github_allow_or_refuse_bootstrap(given: str, message: str, github: FakeGitHub, load: Load) -> None:
    settings, _, answers = given.partition("|")
    text = answers.replace("REVIEWERS", "{type: required_reviewers, reviewers: [{type: Team}]}")
    for path, value in yaml.safe_load("{" + text + "}").items():
        name, _, key = path.partition(".")
        setattr(github, name, {**getattr(github, name), key: value} if key else value)
    written = {"OLD": f"pipeline: {{repository: {OLD}}}", "NEW": f"pipeline: {{repository: {NEW}}}"}
    environment = load(re.sub("OLD|NEW", lambda found: written[found[0]], settings))
    if message == "passes":
        check_rules(github, deployment_of(environment), ROOT / DEPLOY)
    else:
        assert message in refused(github, environment)


def test_repository_without_ids_is_a_warning(github: FakeGitHub, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    check_rules(github, deployment_of(load(pipeline={"repository": OLD})))
    assert f"`repository: {OLD}` has no ids" in caplog.text
    assert f"say {NEW}" in caplog.text


# What GitHub says, or its default; protected or not makes no difference.
@pytest.mark.parametrize(("bypass", "prevent"), [(True, False), (False, True), (None, None)])
def test_ways_around_reviewers_are_warned_of(
    bypass: bool | None, prevent: bool | None, github: FakeGitHub, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    rule = REVIEWERS if prevent is None else {**REVIEWERS, "prevent_self_review": prevent}
    given = {} if bypass is None else {"can_admins_bypass": bypass}
    github.environment = {**(github.environment or {}), **given, "protection_rules": [rule]}
    check_rules(github, deployment_of(load(pipeline={"repository": NEW})), ROOT / DEPLOY)
    assert ("can_admins_bypass" in caplog.text, "prevent_self_review" in caplog.text) == (
        bypass is not False,
        not prevent,
    )


WORKFLOWS = r"""
on: {push: {branches: [main, 'release/**']}} => is started by a push to release/[*][*]; name the branches
on: {push: {branches: ['**']}} => is not started by a push to main alone; name it .*, which has [*][*]
on: [push, workflow_dispatch] => is not started by a push to main alone
on: [ => cannot be read as YAML: while parsing a flow node
- a list => is not started by a push to main alone
"""


@pytest.mark.parametrize(("text", "message"), [*rows(WORKFLOWS), ("", "is not started by a push to main alone")])
def test_push_to_other_branches_does_not_deploy(
    text: str, message: str, github: FakeGitHub, load: Load, tmp_path: Path
) -> None:
    deploy = tmp_path / "deploy.yml"
    deploy.write_text(f"{text}\n", encoding="utf-8")
    assert re.search(message, refused(github, load(pipeline={"repository": NEW}), deploy))


def test_workflow_is_that_of_the_files_repository(
    github: FakeGitHub, load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environments, expected = tmp_path / "apps" / "lake" / "environments", tmp_path / DEPLOY
    environments.mkdir(parents=True)
    expected.parent.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    assert workflow_of(environments) == expected
    trunk = deployment_of(load(pipeline={"repository": OLD, "branch": "trunk"}))
    github.branches = [{"name": "trunk", "type": "branch"}]
    # It has none: ours, which a push to trunk does not start, says nothing of it.
    check_rules(github, trunk, workflow_of(environments))
    assert f"there is no {expected}, so whether a push to trunk deploys was not looked at" in caplog.text
    # A folder that is no clone, as `new-repository` writes it.
    expected.touch()
    (tmp_path / ".git").rmdir()
    assert workflow_of(environments) == expected
    assert workflow_of(ROOT / "infra" / "environments") == ROOT / DEPLOY
    other = expected.rename(expected.with_name("deploy-lake.yml"))
    assert workflow_of(environments, "deploy-lake.yml") == other
    other.write_text("on: {push: {branches: trunk}}", encoding="utf-8")
    check_rules(github, trunk, other)


def test_without_github_nothing_is_done(github: FakeGitHub, load: Load) -> None:
    for failure in (PipelineError("the GitHub command line cannot be run"), RefusedError("Forbidden", 403)):
        github.failure = failure
        told = refused(github, load(pipeline={"repository": OLD}))
        assert told.startswith(f"GitHub cannot be asked who may deploy test: {failure}")
        assert "say UNASKED=1" in told
