"""Partitions and DNS suffixes of AWS regions, and the account and region of a deployment.

The region data is a copy of botocore's, because the constructs do not depend on botocore; a test compares them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kinesis_efo_infra.errors import ArgumentError

_PARTITIONS: Final = {
    **dict.fromkeys(("af", "ap", "ca", "eu", "il", "me", "mx", "sa", "us"), ("aws", "amazonaws.com")),
    "cn": ("aws-cn", "amazonaws.com.cn"),
    "eusc-de": ("aws-eusc", "amazonaws.eu"),
    "eu-isoe": ("aws-iso-e", "cloud.adc-e.uk"),
    "us-gov": ("aws-us-gov", "amazonaws.com"),
    "us-iso": ("aws-iso", "c2s.ic.gov"),
    "us-isob": ("aws-iso-b", "sc2s.sgov.gov"),
    "us-isof": ("aws-iso-f", "csp.hci.ic.gov"),
}
"""Partition and DNS suffix by the prefix of a region's name."""


def partition(region: str) -> str:
    """Return the AWS partition that a region belongs to.

    Raises:
        ArgumentError: No known partition has such a region.

    >>> partition("eu-west-1"), partition("cn-north-1"), partition("eusc-de-east-1")
    ('aws', 'aws-cn', 'aws-eusc')
    """
    return _partition(region)[0]


def dns_suffix(region: str) -> str:
    """Return the DNS suffix of the endpoints in a region.

    Raises:
        ArgumentError: No known partition has such a region.

    >>> dns_suffix("eu-west-1"), dns_suffix("cn-north-1"), dns_suffix("eusc-de-east-1")
    ('amazonaws.com', 'amazonaws.com.cn', 'amazonaws.eu')
    """
    return _partition(region)[1]


def principal(service: str, partition: str) -> str:
    """Return a service's principal for use in policies: `<service>.amazonaws.com`, for some services in China followed by `.cn`.

    Source: the data source `aws_service_principal` of Terraform's AWS provider.

    >>> principal("ec2", "aws-eusc"), principal("ec2", "aws-cn"), principal("emr-serverless", "aws-cn")
    ('ec2.amazonaws.com', 'ec2.amazonaws.com.cn', 'emr-serverless.amazonaws.com')
    """
    chinese = partition == "aws-cn" and service in ("ec2", "elasticmapreduce")
    return f"{service}.amazonaws.com{'.cn' if chinese else ''}"


def _partition(region: str) -> tuple[str, str]:
    parts = re.fullmatch(r"(.+)-[a-z]+-\d+", region)
    if parts is None or parts[1] not in _PARTITIONS:
        raise ArgumentError(
            f"region must be one of AWS, such as eu-west-1; got {region!r}: correct it, or upgrade kinesis-efo-infra if it is new"
        )
    return _PARTITIONS[parts[1]]


def region_and_account(arn: str) -> tuple[str, str]:
    """Return the region and the account in an ARN.

    >>> region_and_account("arn:aws:kinesis:eu-west-1:111122223333:stream/orders")
    ('eu-west-1', '111122223333')
    """
    _, _, _, region, account, _ = arn.split(":", 5)
    return region, account


@dataclass(frozen=True, slots=True)
class Account:
    """An AWS account and region, as literal values or as CDKTF tokens.

    Attributes:
        account_id: Id of the account.
        region: Name of the region.
        partition: The region's partition.
        dns_suffix: DNS suffix of the region's endpoints.
        ec2: The principal that stands for EC2 in policies.

    >>> Account.literal("111122223333", "eu-west-1").arn("kinesis", "stream/orders")
    'arn:aws:kinesis:eu-west-1:111122223333:stream/orders'
    """

    account_id: str
    region: str
    partition: str
    dns_suffix: str
    ec2: str

    @classmethod
    def literal(cls, account_id: str, region: str) -> Account:
        """Return an account and region with literal values."""
        place = partition(region)
        return cls(account_id, region, place, dns_suffix(region), principal("ec2", place))

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource in the account and region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account_id}:{resource}"
