"""AWS clients. If AWS cannot be called, the command fails with a one-line message that includes the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.exceptions import (
    BotoCoreError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import (
    ConnectionError as NoConnection,
)

from kinesis_efo_infra.errors import AwsError

_CREDENTIALS = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)


@contextmanager
def asking(account_id: str) -> Iterator[None]:
    """Convert errors that prevent a call to AWS into `AwsError`. Error responses from AWS are not converted.

    Raises:
        AwsError: There are no credentials, or AWS cannot be reached.
    """
    try:
        yield
    except BotoCoreError as error:
        what = "there are no credentials" if isinstance(error, _CREDENTIALS) else "AWS cannot be asked"
        raise AwsError(f"{what}: {' '.join(str(error).split())}; {_remedy(error, account_id)}") from error


def client(service: str, region: str, account_id: str) -> Any:
    """Return a boto3 client of a service, with the credentials from the environment.

    Raises:
        AwsError: The environment refers to credentials that do not exist.
    """
    with asking(account_id):
        # Do not use boto3's default session, which caches the first credentials that it finds.
        return boto3.session.Session().client(service, region_name=region)


def _remedy(error: BotoCoreError, account_id: str) -> str:
    if isinstance(error, _CREDENTIALS):
        return (
            f"give credentials of account {account_id}: `aws sso login` with AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY; in CI, the role of the pipeline"
        )
    if isinstance(error, NoConnection | HTTPClientError):
        return "look at the network, the proxy and AWS_ENDPOINT_URL"
    return "look at the settings of AWS in the environment and in ~/.aws/config"
