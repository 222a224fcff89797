"""A KMS customer key with its alias, and the choice between such a key, an existing key and the AWS managed key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kinesis_efo_infra import checks, iam
from kinesis_efo_infra.base import account_of, keep, put
from kinesis_efo_infra.cdk import Construct, KmsAlias, KmsKey, TerraformResource
from kinesis_efo_infra.grants import Shareable
from kinesis_efo_infra.places import Place

OWN: Final = "own"
"""A customer key that is declared with what it encrypts."""
AWS_MANAGED: Final = "aws-managed"
"""The key that AWS manages for the service: free, but unusable from other accounts."""


class CustomerKey(Shareable):
    """A rotated customer key, whose policy may let readers of other accounts decrypt through Kinesis.

    Args:
        scope: The parent construct.
        id: Its id within the parent.
        alias: Alias without `alias/`; dots in it become slashes.
        description: What it encrypts.
        foreign_readers: Principals of other accounts that may decrypt, through Kinesis only.
        protected: Terraform refuses to destroy it.
        tags: Its tags, in addition to the provider's.
        place: Its Terraform name.

    >>> key = CustomerKey(stack, "key", alias="shop/orders", description="Records of orders")
    >>> orders = Stream(stack, "orders", name="orders", encryption_key=key)
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        alias: str,
        description: str,
        foreign_readers: Sequence[str] = (),
        protected: bool = False,
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(scope, id, tags)
        account = account_of(self)
        root = f"arn:{account.partition}:iam::{account.account_id}:root"
        self._policy = iam.Policy(account.region, account.dns_suffix)
        self._policy.add(iam.Statement("Account", ("kms:*",), ("*",), principals={"AWS": (root,)}))
        if foreign_readers:
            self._policy.add(
                iam.decrypt_through(
                    account.region, "kinesis", principals=foreign_readers, dns_suffix=account.dns_suffix
                )
            )
        # Do not use a data source: in a key's policy, the resource * is the key itself, but linters interpret it as all keys.
        self._key = KmsKey(
            self,
            "key",
            description=description,
            enable_key_rotation=True,
            deletion_window_in_days=30,
            policy=self._policy.json(),
            lifecycle=keep(protected),
        )
        self._declare(self._key, place)
        # A stream's name may contain dots, an alias may not. Using '/' instead keeps names distinct.
        name = f"alias/{alias if checks.is_token(alias) else alias.replace('.', '/')}"
        put(KmsAlias(self, "alias", name=name, target_key_id=self._key.key_id), place)

    def add_to_resource_policy(self, statement: iam.Statement) -> TerraformResource:
        """Add a statement to the key's policy, in which the key itself is the resource."""
        self._policy.add(replace(statement, resources=("*",)))
        self._key.policy = self._policy.json()
        return self._key


EncryptionKey = CustomerKey | str
"""A customer key, the ARN of one, `own` (one is declared), or `aws-managed`."""


def check_key(owner: str, key: EncryptionKey) -> None:
    """Reject an invalid choice of key.

    Raises:
        ArgumentError: It is neither a key nor the ARN of one, nor `own` or `aws-managed`.
    """
    if not isinstance(key, CustomerKey) and key not in (OWN, AWS_MANAGED):
        remedy = f"give {OWN!r}, {AWS_MANAGED!r}, a CustomerKey or the ARN of a key, not of an alias"
        checks.text(owner, "encryption_key", key, checks.KEY_ARN, remedy)


def key_arn(
    scope: Construct, key: EncryptionKey, *, alias: str, description: str, protected: bool, place: Place | None
) -> str | None:
    """Return the ARN of the chosen customer key, which is declared in the scope for `own`; None for the AWS managed key."""
    if key == AWS_MANAGED:
        return None
    if key == OWN:
        key = CustomerKey(scope, "key", alias=alias, description=description, protected=protected, place=place)
    return key.arn if isinstance(key, CustomerKey) else key
