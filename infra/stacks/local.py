"""How Terraform's AWS provider reaches local AWS: where it sends requests, and what it must not look for."""

from __future__ import annotations

from typing import Any

_SERVICES = ("cloudwatch", "dynamodb", "ec2", "emrserverless", "iam", "kinesis", "kms", "s3", "scheduler", "ssm", "sts")
# The provider puts the account before the host of S3 Control, and nobody resolves such a name of local AWS. So it gets a host that
# there is not, and local AWS as its proxy; requests to loopback never go through one.
_S3_CONTROL = "http://s3-control.local-aws"


def provider(endpoint: str) -> dict[str, Any]:
    """The provider's settings, by their names in Terraform.

    Args:
        endpoint: URL of local AWS.
    """
    return {
        "access_key": "local",
        "secret_key": "local",
        "skip_credentials_validation": True,
        "skip_metadata_api_check": "true",
        "s3_use_path_style": True,
        "http_proxy": endpoint,
        "endpoints": {**dict.fromkeys(_SERVICES, endpoint), "s3control": _S3_CONTROL},
    }


def override(endpoint: str, state: str) -> dict[str, Any]:
    """What a file beside a stack must say, so that the stack is applied to local AWS, and its state is kept in a file.

    Args:
        endpoint: URL of local AWS.
        state: Name of the file with the state.
    """
    settings = provider(endpoint)
    return {
        "terraform": {"backend": {"local": {"path": state}}},
        "provider": {"aws": {**settings, "endpoints": [settings["endpoints"]]}},
    }
