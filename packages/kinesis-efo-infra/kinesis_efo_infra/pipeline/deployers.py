"""Checks with GitHub who can deploy: whether tokens match the roles' trust policies, and whether protection rules are set.

Source: docs.github.com, REST API, "GitHub Actions OIDC", "Deployment environments", "Deployment branch policies".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from kinesis_efo_infra.errors import PipelineError
from kinesis_efo_infra.pipeline.deployment import WORKFLOW, Deployment, github_repository
from kinesis_efo_infra.pipeline.github import Api, RefusedError

logger = logging.getLogger(__name__)

_WORKFLOWS = Path(".github/workflows")
DEPLOY = _WORKFLOWS / WORKFLOW
_MISSING = 404
_PATTERN = set("*?+[]!")
"""Characters that make GitHub treat a branch name in a workflow as a pattern."""


def workflow_of(environments: Path, name: str = WORKFLOW) -> Path:
    """Return the path of the workflow that deploys, in the repository that contains the environment files.

    Args:
        environments: Directory of environment files.
        name: File name of the workflow.

    Returns:
        The path, even if the file does not exist.
    """
    above = environments.resolve().parents
    root = next((each for each in above if (each / ".git").exists() or (each / _WORKFLOWS / name).exists()), above[0])
    return root / _WORKFLOWS / name


def check_rules(api: Api, deployment: Deployment, deploy: Path = DEPLOY) -> None:
    """Check that only the intended workflows and people can deploy.

    Args:
        api: GitHub's API for the repository that deploys.
        deployment: The deployment to check.
        deploy: Path of the workflow that deploys; it does not exist if another CI system deploys.

    Raises:
        PipelineError: Other workflows or people can deploy, or nobody can; or GitHub cannot be reached.
    """
    try:
        faults = [
            *_subject(api, deployment),
            *_rules(api, deployment),
            *_branches(deploy, deployment.branch),
        ]
    except PipelineError as error:
        raise PipelineError(
            f"GitHub cannot be asked who may deploy {deployment.environment}: {error}. Log in as somebody who administers "
            "the repository (`gh auth login`); or say UNASKED=1, if its rules are as docs/pipeline-setup.md says"
        ) from error
    if faults:
        listing = "\n".join(f"  {each}" for each in faults)
        raise PipelineError(
            f"more than those who should could deploy {deployment.environment}, or nobody could; nothing was done:\n{listing}"
        )


def _subject(api: Api, deployment: Deployment) -> Iterator[str]:
    """Yield a message if the repository in GitHub's tokens is not that of the settings, for example after a rename or transfer."""
    given = deployment.repository
    plain, number = github_repository(given)
    repository = api.call("GET", "")
    said = api.call("GET", "actions/oidc/customization/sub")
    owner, _, name = repository["full_name"].partition("/")
    with_ids = f"{owner}@{repository['owner']['id']}/{name}@{repository['id']}"
    if not said.get("use_default", True):
        yield "its tokens have a subject of their own (`include_claim_keys`); the roles' trust expects GitHub's default"
        return
    present = str(said.get("sub_claim_prefix") or f"repo:{repository['full_name']}").removeprefix("repo:")
    if number and number != str(repository["id"]):
        yield f"`repository:` has id {number}, and {repository['full_name']} has {repository['id']}; say `{with_ids}`"
    elif present not in ({given, plain} if number else {given}):
        yield f"its tokens say {present}, and `repository:` says {given}; say `{with_ids}`"
    elif repository["full_name"].lower() != plain.lower():
        yield f"it is called {repository['full_name']} now, and its workflows with it; say `repository: {with_ids}`"
    elif not number:
        logger.warning(
            "warning: `repository: %s` has no ids, so that a repository that gets its name after it could deploy; say %s, which "
            "is right for both forms of GitHub's tokens",
            given,
            with_ids,
        )


def _rules(api: Api, deployment: Deployment) -> Iterator[str]:
    """Yield a message for each fault in the GitHub environment's protection rules."""
    name = deployment.github_environment
    path, to_do = f"environments/{quote(name, safe='')}", f"allow it the branch {deployment.branch} and no other"
    try:
        found = api.call("GET", path)
    except RefusedError as error:
        if error.status != _MISSING:
            raise
        yield f"there is no GitHub environment {name}: create it, and {to_do}. Whoever names it first makes one without rules"
        return
    policy: dict[str, Any] | None = found.get("deployment_branch_policy")
    if not policy:
        yield f"the GitHub environment {name} lets every branch deploy: {to_do}"
    elif policy.get("custom_branch_policies"):
        listed = api.call("GET", f"{path}/deployment-branch-policies?per_page=100")["branch_policies"]
        allowed = sorted(f"{each.get('type', 'branch')} {each['name']}" for each in listed)
        if allowed != [f"branch {deployment.branch}"]:
            yield f"the GitHub environment {name} lets deploy {', '.join(allowed) or 'nobody'}: {to_do}"
    reviews = [
        each
        for each in found.get("protection_rules") or []
        if each["type"] == "required_reviewers" and each.get("reviewers")
    ]
    if reviews:
        _warn_of_ways_around(name, found, reviews)
    elif deployment.protected:
        yield f"the GitHub environment {name} has no required reviewers, and {deployment.environment} is protected"


def _warn_of_ways_around(name: str, found: Mapping[str, Any], reviews: Sequence[Mapping[str, Any]]) -> None:
    """Warn if people can deploy without approval by someone else. This is not an error, because it is GitHub's default."""
    if found.get("can_admins_bypass", True):
        logger.warning(
            "warning: administrators can deploy to the GitHub environment %s without an approval; switch off "
            '"Allow administrators to bypass configured protection rules" (can_admins_bypass)',
            name,
        )
    if not all(each.get("prevent_self_review", False) for each in reviews):
        logger.warning(
            "warning: whoever starts a deployment to the GitHub environment %s can approve it as well; switch on "
            '"Prevent self-review" (prevent_self_review)',
            name,
        )


def _branches(deploy: Path, branch: str) -> Iterator[str]:
    """Yield a message if the workflow that deploys does not run on pushes to the branch, or uses branch patterns."""
    if not deploy.exists():
        logger.warning(
            "warning: there is no %s, so whether a push to %s deploys was not looked at; call deploy-stacks.yml from it",
            deploy,
            branch,
        )
        return
    try:
        document = yaml.safe_load(deploy.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        yield f"{deploy} cannot be read as YAML: {' '.join(str(error).split())}; mend it"
        return
    # YAML 1.1 reads the key `on` as true.
    started = (document.get(True) or document.get("on")) if isinstance(document, dict) else None
    push = started.get("push") if isinstance(started, dict) else None
    branches = (push.get("branches") if isinstance(push, dict) else None) or []
    pushed = [branches] if isinstance(branches, str) else [str(each) for each in branches]
    if branch not in pushed:
        listed = ", ".join(pushed) or "none"
        yield f"{deploy} is not started by a push to {branch} alone; name it under `on: push: branches:`, which has {listed}"
    elif patterns := [each for each in pushed if set(each) & _PATTERN]:
        yield f"{deploy} is started by a push to {', '.join(patterns)}; name the branches that deploy, each by its whole name"
