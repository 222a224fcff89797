"""Asks GitHub who can deploy: whether its tokens say what the roles' trust expects, and whether its environment has rules.

Source: docs.github.com, REST API, "GitHub Actions OIDC", "Deployment environments", "Deployment branch policies".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from infra import names
from infra.errors import PipelineError
from infra.pipeline.github import Api, RefusedError
from infra.settings import Environment, Pipeline

logger = logging.getLogger(__name__)

DEPLOY = Path(".github/workflows/deploy.yml")
_MISSING = 404


def check_rules(api: Api, environment: Environment, deploy: Path = DEPLOY) -> None:
    """Check that only those deploy who should.

    Args:
        api: The repository that deploys.
        environment: An environment with a pipeline.
        deploy: The workflow that deploys; another CI system has none.

    Raises:
        PipelineError: They do not, or GitHub cannot be asked.
    """
    assert environment.pipeline is not None
    try:
        faults = [
            *_subject(api, environment.pipeline),
            *_rules(api, environment, environment.pipeline),
            *_branches(deploy, environment.pipeline.branch),
        ]
    except PipelineError as error:
        raise PipelineError(
            f"GitHub cannot be asked who may deploy {environment.environment}: {error}. Log in as somebody who administers "
            "the repository (`gh auth login`); or say UNASKED=1, if its rules are as docs/gitops.md says"
        ) from error
    if faults:
        listing = "\n".join(f"  {each}" for each in faults)
        raise PipelineError(
            f"more than those who should could deploy {environment.environment}, or nobody could; nothing was done:\n{listing}"
        )


def _subject(api: Api, pipeline: Pipeline) -> Iterator[str]:
    """Faults of what GitHub's tokens say of the repository: a rename or a transfer changes it."""
    given = pipeline.repository
    plain, number = names.github_repository(given)
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


def _rules(api: Api, environment: Environment, pipeline: Pipeline) -> Iterator[str]:
    """Faults of the rules of the GitHub environment."""
    name = names.qualified(environment)
    path, to_do = f"environments/{quote(name, safe='')}", f"allow it the branch {pipeline.branch} and no other"
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
        if allowed != [f"branch {pipeline.branch}"]:
            yield f"the GitHub environment {name} lets deploy {', '.join(allowed) or 'nobody'}: {to_do}"
    kinds = [each["type"] for each in found.get("protection_rules") or [] if each.get("reviewers", True)]
    if environment.protected and "required_reviewers" not in kinds:
        yield f"the GitHub environment {name} has no required reviewers, and {environment.environment} is protected"


def _branches(deploy: Path, branch: str) -> Iterator[str]:
    """Faults of the workflow that deploys: it must run on a push to the branch, and on no pattern of branches."""
    if not deploy.exists():
        return
    # YAML 1.1 reads the key `on` as true.
    document = yaml.safe_load(deploy.read_text(encoding="utf-8"))
    pushed = ((document.get(True) or document.get("on") or {}).get("push") or {}).get("branches") or []
    if branch not in pushed:
        yield f"{deploy} is not started by a push to {branch}; add it to the branches there, which are {', '.join(pushed)}"
