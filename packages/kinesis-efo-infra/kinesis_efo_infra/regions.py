"""Partitions and DNS suffixes of AWS regions, and the account that something is deployed to.

A copy of botocore's data, because the constructs do not depend on botocore; a test compares them.
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
"""Partition and DNS suffix by the beginning of a region's name."""


def partition(region: str) -> str:
    """The AWS partition a region is in.

    Raises:
        ArgumentError: There is no partition with such a region.

    >>> partition("eu-west-1"), partition("cn-north-1"), partition("eusc-de-east-1")
    ('aws', 'aws-cn', 'aws-eusc')
    """
    return _partition(region)[0]


def dns_suffix(region: str) -> str:
    """DNS suffix of the endpoints in a region.

    Raises:
        ArgumentError: There is no partition with such a region.

    >>> dns_suffix("eu-west-1"), dns_suffix("cn-north-1"), dns_suffix("eusc-de-east-1")
    ('amazonaws.com', 'amazonaws.com.cn', 'amazonaws.eu')
    """
    return _partition(region)[1]


def principal(service: str, partition: str) -> str:
    """The principal of a service in policies: `ec2.amazonaws.com` in all partitions but China's.

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
    """Region and account in an ARN.

    >>> region_and_account("arn:aws:kinesis:eu-west-1:111122223333:stream/orders")
    ('eu-west-1', '111122223333')
    """
    _, _, _, region, account, _ = arn.split(":", 5)
    return region, account


@dataclass(frozen=True, slots=True)
class Account:
    """An account of AWS and a region, as literal values or as CDKTF tokens.

    Attributes:
        account_id: The account.
        region: The region.
        partition: Its partition.
        dns_suffix: DNS suffix of its endpoints.
        ec2: The principal of EC2 in its policies.

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
        """An account that is known before synthesis."""
        place = partition(region)
        return cls(account_id, region, place, dns_suffix(region), principal("ec2", place))

    def arn(self, service: str, resource: str) -> str:
        """ARN of something in the account and region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account_id}:{resource}"
