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
"""Value of `encryption_key` that declares a customer key together with the resource that it encrypts."""
AWS_MANAGED: Final = "aws-managed"
"""Value of `encryption_key` that uses the AWS managed key of the service. It is free, but other accounts cannot use it."""


class CustomerKey(Shareable):
    """A KMS customer key with rotation. Its policy can let readers in other accounts decrypt through Kinesis.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        alias: Alias, without the prefix `alias/`; dots in it become slashes.
        description: Description of what the key encrypts.
        foreign_readers: Principals of other accounts that may decrypt, through Kinesis only.
        protected: Whether Terraform refuses to destroy the key.
        tags: Tags of the key, in addition to the provider's default tags.
        place: Terraform name of the resources; default: derived by CDKTF.

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
        # Do not use a policy document data source: in a key policy, the resource * is the key itself, but linters interpret it as all keys.
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
        # A stream's name may contain dots but no '/'; an alias may contain '/' but no dots. Replacing dots with '/' keeps names distinct.
        name = f"alias/{alias if checks.is_token(alias) else alias.replace('.', '/')}"
        put(KmsAlias(self, "alias", name=name, target_key_id=self._key.key_id), place)

    def add_to_resource_policy(self, statement: iam.Statement) -> TerraformResource:
        """Add a statement to the key's policy, with the key itself as its resource."""
        self._policy.add(replace(statement, resources=("*",)))
        self._key.policy = self._policy.json()
        return self._key


EncryptionKey = CustomerKey | str
"""Value of `encryption_key`: a `CustomerKey`, the ARN of a customer key, `own` (a customer key is declared), or `aws-managed`."""


def check_key(owner: str, key: EncryptionKey) -> None:
    """Reject an invalid choice of key.

    Raises:
        ArgumentError: `key` is not a customer key, the ARN of one, `own` or `aws-managed`.
    """
    if not isinstance(key, CustomerKey) and key not in (OWN, AWS_MANAGED):
        remedy = f"give {OWN!r}, {AWS_MANAGED!r}, a CustomerKey or the ARN of a key, not of an alias"
        checks.text(owner, "encryption_key", key, checks.KEY_ARN, remedy)


def key_arn(
    scope: Construct, key: EncryptionKey, *, alias: str, description: str, protected: bool, place: Place | None
) -> str | None:
    """Return the ARN of the chosen customer key; None for the AWS managed key. For `own`, the key is declared in `scope`."""
    if key == AWS_MANAGED:
        return None
    if key == OWN:
        key = CustomerKey(scope, "key", alias=alias, description=description, protected=protected, place=place)
    return key.arn if isinstance(key, CustomerKey) else key
