"""The publisher of this package and its workflows."""

from __future__ import annotations

from kinesis_efo_infra import __version__

REPOSITORY = "OWNER/kinesis-efo"
"""GitHub repository of the reusable workflows. `OWNER` is a placeholder, to be replaced here before the first release."""
TAG = f"v{__version__}"
"""Git tag of this version. Package and workflows are released together, with the same version."""


def workflow(name: str) -> str:
    """Return the reference by which workflows of other repositories call a reusable workflow."""
    return f"{REPOSITORY}/.github/workflows/{name}@{TAG}"


def trusted(repository: str = REPOSITORY, tag: str = TAG) -> str:
    """Return the claim `job_workflow_ref` of the OIDC tokens that GitHub issues to jobs of the published deployment workflow."""
    return f"{repository}/.github/workflows/deploy-environment.yml@refs/tags/{tag}"
