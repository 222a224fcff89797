"""The lease table of an application: KCL's key schema, on-demand capacity, point-in-time recovery, a customer key."""

from __future__ import annotations

from typing import Final

from kinesis_efo_infra import checks
from kinesis_efo_infra.base import Part, keep, put
from kinesis_efo_infra.cdk import (
    Construct,
    DynamodbTable,
    DynamodbTableAttribute,
    DynamodbTablePointInTimeRecovery,
    DynamodbTableServerSideEncryption,
)
from kinesis_efo_infra.grants import Grantee, grant
from kinesis_efo_infra.key import OWN, EncryptionKey, check_key, key_arn
from kinesis_efo_infra.places import Place

LEASE_KEY: Final = "leaseKey"


class LeaseTable(Part):
    """A DynamoDB table that holds an application's leases.

    Args:
        scope: The parent construct.
        id: Its id there.
        name: Its name: 3 to 255 letters, digits, `_`, `.` and `-`.
        encryption_key: `own` (a customer key is declared), `aws-managed`, a `CustomerKey`, or the ARN of one.
        protected: Neither Terraform nor anybody else may delete it, nor Terraform its key.
        import_existing: A table of this name exists, as one restored from a backup does: Terraform takes it over. Never a KCL's.
        place: Its Terraform name.

    Raises:
        ArgumentError: The name is none (DynamoDB API reference, CreateTable), or the key.

    >>> table = LeaseTable(stack, "leases", name="lake-leases")
    >>> table.grant_read_write("lake-job")
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        encryption_key: EncryptionKey = OWN,
        protected: bool = False,
        import_existing: bool = False,
        place: Place | None = None,
    ) -> None:
        owner = f"LeaseTable {id!r}"
        checks.text(owner, "name", name, checks.TABLE_NAME, "choose another name")
        check_key(owner, encryption_key)
        super().__init__(scope, id)
        self._key_arn = key_arn(
            self,
            encryption_key,
            alias=f"kinesis-efo/table/{name}",
            description=f"Leases in DynamoDB table {name}",
            protected=protected,
            place=place,
        )
        table = DynamodbTable(
            self,
            "table",
            name=name,
            billing_mode="PAY_PER_REQUEST",
            hash_key=LEASE_KEY,
            attribute=[DynamodbTableAttribute(name=LEASE_KEY, type="S")],
            point_in_time_recovery=DynamodbTablePointInTimeRecovery(enabled=True),
            server_side_encryption=DynamodbTableServerSideEncryption(enabled=True, kms_key_arn=self._key_arn),
            deletion_protection_enabled=protected,
            lifecycle=keep(protected),
        )
        put(table, place)
        if import_existing:
            table.import_from(name)
        self._name, self._arn = table.name, table.arn
        self._declared_name = name

    @property
    def name(self) -> str:
        """Name of the table."""
        return self._name

    @property
    def declared_name(self) -> str | None:
        """The same as text that is known before Terraform asks AWS; None where it is not."""
        return None if checks.is_token(self._declared_name) else self._declared_name

    @property
    def arn(self) -> str:
        """ARN of the table."""
        return self._arn

    def grant_read_write(self, grantee: Grantee) -> None:
        """Let a runtime keep its leases in the table."""
        grant(self, "leases", grantee, lambda to: to.read_write_leases(self.arn, self._key_arn))
