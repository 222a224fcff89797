"""Quickly checks for faults that would make all other checks fail: no region, no credentials, no connection to Kinesis."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from aiobotocore.config import AioConfig
from botocore import UNSIGNED
from botocore.exceptions import ClientError

from kinesis_efo.aws_errors import CALL_ERRORS, describe, is_foreign
from kinesis_efo.errors import ConfigurationError
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.findings import LOG_IN, Finding, Status, failed_call, what_and_fix
from kinesis_efo_tools.operate.machine import CREDENTIALS, PATH, no_path

PATIENCE: Final = 4.0
"""Timeout of each check in seconds, short enough to report a fault within five seconds."""

_ONCE: Final = AioConfig(
    # Do not sign the call: any response from AWS proves that there is a connection, regardless of the credentials.
    signature_version=UNSIGNED,
    connect_timeout=PATIENCE / 2,
    read_timeout=PATIENCE / 2,
    retries={"mode": "standard", "total_max_attempts": 1},
)


def no_region(location: str) -> Finding:
    """Return the outcome for a missing region, without which the manifest at `location` cannot be loaded."""
    return Finding(
        "region",
        Status.FAILED,
        f"no region is configured, so {location} cannot be asked for",
        "give --region, set AWS_REGION, or set `region` in the AWS profile",
    )


async def obstacles(access: Access) -> list[Finding]:
    """Return the faults that would make all other checks fail; empty if there are none."""
    looks = (_credentials(access), _path(access))
    return [found for found in await asyncio.gather(*looks) if found is not None]


async def _credentials(access: Access) -> Finding | None:
    try:
        found = await asyncio.wait_for(access.credentials(), PATIENCE)
    except TimeoutError:
        # Not a fault: a credential process may be waiting until the user enters a code. `_path` reports network problems.
        return None
    except ConfigurationError as error:
        return Finding(CREDENTIALS, Status.FAILED, *what_and_fix(error))
    except CALL_ERRORS as error:
        outcome = failed_call(CREDENTIALS, error, "sts:AssumeRole")
        fails = outcome.status is Status.FAILED or is_foreign(error)  # foreign: sent by another server than AWS
        return replace(outcome, status=Status.FAILED) if fails else None
    if found is not None:
        return None
    tried = "neither the environment, nor a profile, nor this host's role has any"
    return Finding(CREDENTIALS, Status.FAILED, f"there are no AWS credentials: {tried}", LOG_IN)


async def _path(access: Access) -> Finding | None:
    try:
        opening = await access.open("kinesis", _ONCE)
    except (ConfigurationError, *CALL_ERRORS):
        return None  # `_credentials` reports this error
    async with opening as kinesis:
        endpoint = kinesis.meta.endpoint_url
        try:
            await kinesis.list_streams(Limit=1)
        except ClientError as error:
            return no_path(f"{endpoint}: {describe(error)}") if is_foreign(error) else None
        except ConfigurationError as error:
            return Finding(PATH, Status.FAILED, *what_and_fix(error))
        except CALL_ERRORS as error:
            return no_path(f"{endpoint}: {describe(error)}")
    return None
