"""Rejects settings that still have placeholder values of the template, which cannot be deployed: an example account or bucket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from kinesis_efo_infra.errors import Fault, SettingsError

ACCOUNT = "123456789012"
"""Account id used in the templates, in the documentation and by the local AWS emulator."""
EXAMPLES = (ACCOUNT, "111122223333")
"""Accounts that AWS uses in examples."""
BUCKET = "acme-terraform-state"
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1", "local-aws", "host.docker.internal")
"""Host names in the endpoint of a local AWS emulator."""


class Head(Protocol):
    """The settings of an environment that `refuse` checks for placeholder values."""

    @property
    def environment(self) -> str:
        """Name of the environment."""

    @property
    def account_id(self) -> str:
        """The account that the environment is deployed to."""

    @property
    def state_bucket(self) -> str:
        """S3 bucket of the Terraform state."""


def refuse(environment: Head, variables: Mapping[str, str] = os.environ) -> None:
    """Reject placeholder values of the template, which are valid only for a local AWS.

    Args:
        environment: The environment.
        variables: Environment variables: `AWS_ENDPOINT_URL` determines whether the endpoint is a local AWS.

    Raises:
        SettingsError: A value is a placeholder of the template, and the endpoint is not a local AWS.
    """
    if urlsplit(variables.get("AWS_ENDPOINT_URL", "")).hostname in LOCAL_HOSTS:
        return
    file = f"{environment.environment}.yaml"
    faults = []
    if environment.account_id in EXAMPLES:
        faults.append(
            Fault("account_id", environment.account_id, "is the account of the examples: give your own", file)
        )
    if environment.state_bucket.startswith(BUCKET):
        rule = "is the template's, and may be somebody's: give a name of your own, as names of buckets are unique in all of AWS"
        faults.append(Fault("state_bucket", environment.state_bucket, rule, file))
    if faults:
        raise SettingsError(faults)
