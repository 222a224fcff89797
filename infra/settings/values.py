"""Types of the values in an environment file. Limits and name patterns are those of AWS's API references."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, StringConstraints

from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.locations import Location

_KINESIS_NAME = r"[a-zA-Z0-9_.-]{1,128}"
_OWNER, _NAME = "[A-Za-z0-9-]{1,39}", "[A-Za-z0-9_.-]{1,100}"
_STREAM_ARN = rf"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:\d{{12}}:stream/{_KINESIS_NAME}"

OWNER_TAGS = ("environment", "managed-by")
"""Tags that identify the owner of a resource. Permissions depend on them."""
DEFAULT_PROJECT = "kinesis-efo"
"""The project of an environment file that does not set one."""

Key = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
"""Key of an entry in the environment file. It is part of Terraform addresses, so change it only with `moved_from`."""
KinesisName = Annotated[str, StringConstraints(pattern=rf"^{_KINESIS_NAME}$")]
TableName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{3,255}$")]
RoleName = Annotated[str, StringConstraints(pattern=r"^[\w+=,.@-]{1,64}$")]
StreamArn = Annotated[str, StringConstraints(pattern=rf"^{_STREAM_ARN}$")]
ConsumerArn = Annotated[str, StringConstraints(pattern=rf"^{_STREAM_ARN}/consumer/{_KINESIS_NAME}:\d+$")]
KeyArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[a-zA-Z0-9-]+$")]
TopicArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[a-zA-Z0-9_.-]+$")]
PolicyArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:iam::(aws|\d{12}):policy/[\w+=,.@/-]+$")]
PrincipalArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:(root|role/[\w+=,.@/-]+)$")]
OidcArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:oidc-provider/[\w./-]+$")]


def _project(name: str) -> str:
    if name == DEFAULT_PROJECT.partition("-")[0]:
        raise ValueError(f"must be another name: those of {DEFAULT_PROJECT} begin with {name}- as well")
    if name.startswith(("aws", "ssm")) or name in ("amzn", "sg", "sthree"):
        raise ValueError(
            "must be another name: AWS keeps it for itself in names of parameters, security groups or buckets"
        )
    return name


# Only the default project's name contains a hyphen, so that the names of one project's resources never begin like those of another.
ProjectName = Annotated[
    str, StringConstraints(pattern=rf"^({DEFAULT_PROJECT}|[a-z][a-z0-9]{{0,15}})$"), AfterValidator(_project)
]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
Repository = Annotated[str, StringConstraints(pattern=rf"^({_OWNER}@\d+/{_NAME}@\d+|{_OWNER}/{_NAME})$")]
"""A GitHub repository, with or without ids: `owner@id/name@id` or `owner/name`."""
AccountId = Annotated[str, StringConstraints(pattern=r"^\d{12}$")]
BucketName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
SubnetId = Annotated[str, StringConstraints(pattern=r"^subnet-[0-9a-f]{8,17}$")]
SecurityGroupId = Annotated[str, StringConstraints(pattern=r"^sg-[0-9a-f]{8,17}$")]

ShardMetric = Literal[
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
]


def _tags(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > 40:
        raise ValueError("must be at most 40 tags (AWS allows 50 per resource, and this code adds its own)")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or key.lower().startswith("aws:"):
            raise ValueError(
                f"a tag's key must have 1 to 128 characters and not begin with 'aws:', which {key!r} does not keep"
            )
        if len(value) > 256:
            raise ValueError(f"a tag's value must have at most 256 characters; that of {key!r} has {len(value)}")
    # Compare in lower case, because the names of IAM condition keys for tags are case-insensitive.
    if reserved := sorted(key for key in tags if key.lower() in OWNER_TAGS):
        raise ValueError(
            f"must not have {', '.join(reserved)}: this code sets them, and permissions go by them, as they say whose a resource is"
        )
    return tags


def _location(uri: str) -> str:
    try:
        Location.parse(uri)
    except ArgumentError as error:
        raise ValueError(str(error).removeprefix("a location ").partition("; got ")[0]) from None
    return uri


S3Location = Annotated[str, AfterValidator(_location)]
"""An S3 location, as `s3://bucket/prefix`."""
Tags = Annotated[dict[str, str], AfterValidator(_tags)]
