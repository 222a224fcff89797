"""Applies a synthesized stack to a local AWS with Terraform. The state is a file, and no request reaches AWS itself."""

from __future__ import annotations

import json
import logging
import os
import shutil
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from kinesis_efo_infra.errors import PipelineError
from kinesis_efo_infra.pipeline.bundle import Changes
from kinesis_efo_infra.pipeline.filled_in import LOCAL_HOSTS
from kinesis_efo_infra.pipeline.limits import Plan
from kinesis_efo_infra.pipeline.terraform import Terraform

logger = logging.getLogger(__name__)
CONFIGURATION = "cdk.tf.json"
_PLAN = "local.tfplan"
_SERVICES = ("cloudwatch", "dynamodb", "ec2", "emrserverless", "iam", "kinesis", "kms", "s3", "scheduler", "ssm", "sts")
# The provider prefixes S3 Control's host with the account, and such a name cannot be resolved for a local AWS. So S3 Control gets a host
# that does not exist, with the local AWS as HTTP proxy. Requests to loopback, such as those of other services, never go through a proxy.
_S3_CONTROL = "http://s3-control.local-aws"


def apply_local(stack: Path, endpoint: str) -> None:
    """Apply a stack to a local AWS. The directory of the stack is not changed, and the state is not kept.

    Args:
        stack: Directory with the stack's `cdk.tf.json`.
        endpoint: URL of the local AWS.

    Raises:
        PipelineError: There is no such stack, the endpoint is not local, or Terraform is missing or fails.
    """
    if not (stack / CONFIGURATION).is_file():
        raise PipelineError(f"{stack}: there is no {CONFIGURATION}: synthesize the stack first")
    with TemporaryDirectory(prefix="kinesis-efo-local-") as scratch:
        copy = Path(scratch) / stack.name
        shutil.copytree(stack, copy, ignore=shutil.ignore_patterns(".terraform", "*.tfstate*"))
        local = LocalStack(copy, endpoint)
        local.begin()
        local.apply()


class LocalStack:
    """A stack that is planned for, or applied to, a local AWS.

    Args:
        directory: Directory with the stack's `cdk.tf.json`. An override file for the endpoints and the backend is written into it.
        endpoint: URL of the local AWS.
        plugins: Plugin cache directory, with which several stacks share the provider that `begin` installs.

    Raises:
        PipelineError: The endpoint is not local, or Terraform is missing.
    """

    def __init__(self, directory: Path, endpoint: str, plugins: Path | None = None) -> None:
        if urlsplit(endpoint).hostname not in LOCAL_HOSTS:
            raise PipelineError(
                f"the endpoint must be local AWS ({', '.join(LOCAL_HOSTS)}), never AWS itself; got {endpoint!r}"
            )
        self.directory = directory
        self.terraform = Terraform(directory, _variables(endpoint, plugins))
        document = json.loads((directory / CONFIGURATION).read_text(encoding="utf-8"))
        self.write("local_override.tf.json", override(document, endpoint))

    def __str__(self) -> str:
        return self.directory.name

    def begin(self) -> None:
        """Install the provider, and check the configuration.

        Raises:
            PipelineError: The provider's registry cannot be reached, or the configuration is wrong.
        """
        try:
            self.terraform.init()
        except PipelineError as error:
            # Skip the warnings before the error.
            said = textwrap.shorten(str(error).rpartition("Error: ")[2], 300, placeholder=" ...")
            raise PipelineError(
                f"{self}: init failed (is the AWS provider installed, or its registry reachable?): {said}"
            ) from None
        self.terraform.validate()
        logger.info("%s: initialized and valid, with %s", self, self.terraform.version)

    @property
    def versions(self) -> list[str]:
        """Name and version of Terraform, then address and version of each provider that `begin` installed."""
        return [self.terraform.version, *(f"{name} {version}" for name, version in self.terraform.providers.items())]

    def plan(self) -> Plan:
        """Plan, and return the plan as `terraform show -json` writes it.

        Raises:
            PipelineError: Terraform or the provider reports an error.
        """
        self.terraform.plan(self.directory / _PLAN)
        return self.terraform.show(self.directory / _PLAN)

    def apply(self) -> Changes:
        """Plan and apply, and return the numbers of changed resources.

        Raises:
            PipelineError: Terraform, the provider or the local AWS reports an error.
        """
        changes = Changes.of(self.plan())
        self.terraform.apply(self.directory / _PLAN)
        logger.info("%s: applied, %s", self, changes)
        return changes

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Write a JSON file into the stack's directory."""
        (self.directory / name).write_text(json.dumps(document, indent=2), encoding="utf-8")


def override(document: dict[str, Any], endpoint: str) -> dict[str, Any]:
    """Return a Terraform override file with which a stack uses a local AWS, and keeps its state in a file.

    Args:
        document: The stack's configuration. All of its AWS providers are overridden.
        endpoint: URL of the local AWS.
    """
    settings = {
        "access_key": "local",
        "secret_key": "local",
        "skip_credentials_validation": True,
        "skip_metadata_api_check": "true",
        "s3_use_path_style": True,
        "http_proxy": endpoint,
        "endpoints": [{**dict.fromkeys(_SERVICES, endpoint), "s3control": _S3_CONTROL}],
    }
    present = document.get("provider", {}).get("aws", {})
    blocks = present if isinstance(present, list) else [present]
    aliases = [{"alias": each["alias"]} if "alias" in each else {} for each in blocks]
    return {
        "terraform": {"backend": {"local": {"path": "local.tfstate"}}},
        "provider": {"aws": [{**alias, **settings} for alias in aliases]},
    }


def _variables(endpoint: str, plugins: Path | None) -> dict[str, str]:
    """Return environment variables that prevent requests from reaching AWS itself."""
    nothing = {"AWS_PROFILE": "", "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    cache = {} if plugins is None else {"TF_PLUGIN_CACHE_DIR": str(plugins)}
    # AWS_ENDPOINT_URL is for services that have no endpoint in `override`.
    return {**nothing, **cache, "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE": "1", "AWS_ENDPOINT_URL": endpoint}
