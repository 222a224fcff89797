"""The publisher of this package and its workflows."""

from __future__ import annotations

from kinesis_efo_infra import __version__

REPOSITORY = "OWNER/kinesis-efo"
"""The repository of the reusable workflows. No owner has been named yet: this is the one place to name it."""
TAG = f"v{__version__}"
"""The tag of this version: package and workflows are released together."""


def workflow(name: str) -> str:
    """Return the reference by which workflows of other repositories call a reusable workflow."""
    return f"{REPOSITORY}/.github/workflows/{name}@{TAG}"


def trusted(repository: str = REPOSITORY, tag: str = TAG) -> str:
    """Return the claim `job_workflow_ref` in GitHub's tokens for the job of the published workflow that applies."""
    return f"{repository}/.github/workflows/deploy-environment.yml@refs/tags/{tag}"
