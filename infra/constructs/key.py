"""A customer key of KMS with its alias."""

from __future__ import annotations

from collections.abc import Sequence

from infra import iam, names
from infra.cdk import Construct, KmsAlias, KmsKey, TerraformResourceLifecycle
from infra.constructs.base import keep, put
from infra.settings import Environment


class CustomerKey(Construct):
    """A rotated customer key, whose policy may let readers of other accounts decrypt through Kinesis.

    Args:
        scope: The parent construct.
        environment: The environment.
        place: Its Terraform name.
        alias: Alias without `alias/` and the project.
        description: What it encrypts.
        foreign_readers: Principals of other accounts that may decrypt, through Kinesis only.
        lifecycle: Whether Terraform may destroy it; default: not where the environment is protected.
    """

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        place: names.Place,
        *,
        alias: str,
        description: str,
        foreign_readers: Sequence[str] = (),
        lifecycle: TerraformResourceLifecycle | None = None,
    ) -> None:
        super().__init__(scope, "key")
        root = f"arn:{names.partition(environment.region)}:iam::{environment.account_id}:root"
        statements = [iam.Statement("Account", ("kms:*",), ("*",), principals={"AWS": (root,)})]
        if foreign_readers:
            statements.append(iam.decrypt_through(environment.region, "kinesis", principals=foreign_readers))
        # Not a data source: in a key's policy the resource * is the key itself, but linters take it for all keys.
        key = KmsKey(
            self,
            "key",
            description=description,
            enable_key_rotation=True,
            deletion_window_in_days=30,
            policy=iam.policy_json(statements),
            lifecycle=lifecycle or keep(environment),
        )
        put(key, place)
        # A stream's name may hold dots, an alias may not. A '/' instead keeps names distinct.
        name = f"alias/{environment.project}/{alias.replace('.', '/')}"
        put(KmsAlias(self, "alias", name=name, target_key_id=key.key_id), place)
        self._arn = key.arn

    @property
    def arn(self) -> str:
        """ARN of the key."""
        return self._arn
