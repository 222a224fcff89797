"""Partitions and DNS suffixes of AWS regions, and the account that something is deployed to.

Source: AWS General Reference, "Regions and endpoints"; IAM user guide, "ARNs", on partitions.
"""

from __future__ import annotations

from dataclasses import dataclass


def partition(region: str) -> str:
    """The AWS partition a region is in.

    >>> partition("eu-west-1"), partition("cn-north-1"), partition("us-gov-west-1")
    ('aws', 'aws-cn', 'aws-us-gov')
    """
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def dns_suffix(region: str) -> str:
    """DNS suffix of service principals and endpoints in a region.

    >>> dns_suffix("eu-west-1"), dns_suffix("cn-north-1")
    ('amazonaws.com', 'amazonaws.com.cn')
    """
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


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
        dns_suffix: DNS suffix of its services.

    >>> Account.literal("111122223333", "eu-west-1").arn("kinesis", "stream/orders")
    'arn:aws:kinesis:eu-west-1:111122223333:stream/orders'
    """

    account_id: str
    region: str
    partition: str
    dns_suffix: str

    @classmethod
    def literal(cls, account_id: str, region: str) -> Account:
        """An account that is known before synthesis."""
        return cls(account_id, region, partition(region), dns_suffix(region))

    def arn(self, service: str, resource: str) -> str:
        """ARN of something in the account and region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account_id}:{resource}"
