"""The lease table of an application: KCL's key schema, on-demand capacity, point-in-time recovery, a customer key."""

from __future__ import annotations

from infra import iam, names
from infra.cdk import (
    Construct,
    DynamodbTable,
    DynamodbTableAttribute,
    DynamodbTablePointInTimeRecovery,
    DynamodbTableServerSideEncryption,
)
from infra.constructs.base import keep, put
from infra.settings import Environment

LEASE_KEY = "leaseKey"


class LeaseTable(Construct):
    """A DynamoDB table that holds an application's leases.

    Args:
        scope: The parent construct.
        environment: The environment.
        application: Key of the application.
        key_arn: Customer key that encrypts it.
    """

    def __init__(self, scope: Construct, environment: Environment, application: str, key_arn: str) -> None:
        super().__init__(scope, f"leases-{application}")
        settings = environment.applications[application]
        table = DynamodbTable(
            self,
            "table",
            name=names.lease_table_name(environment, application),
            billing_mode="PAY_PER_REQUEST",
            hash_key=LEASE_KEY,
            attribute=[DynamodbTableAttribute(name=LEASE_KEY, type="S")],
            point_in_time_recovery=DynamodbTablePointInTimeRecovery(enabled=True),
            server_side_encryption=DynamodbTableServerSideEncryption(enabled=True, kms_key_arn=key_arn),
            deletion_protection_enabled=environment.protected,
            lifecycle=keep(environment),
        )
        put(table, names.place(application, settings))
        if settings.adopt_lease_table:
            table.import_from(names.lease_table_name(environment, application))
        self._name, self._arn, self._key_arn = table.name, table.arn, key_arn

    @property
    def name(self) -> str:
        """Name of the table."""
        return self._name

    @property
    def arn(self) -> str:
        """ARN of the table."""
        return self._arn

    def grant_read_write(self, policy: iam.Policy) -> None:
        """Let a runtime keep its leases in the table."""
        policy.read_write_leases(self.arn, self._key_arn)
