"""The lease table of an application: KCL's key schema, on-demand capacity, point-in-time recovery, a customer key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kinesis_efo_infra import checks
from kinesis_efo_infra.base import account_of, keep
from kinesis_efo_infra.cdk import (
    Construct,
    DynamodbTable,
    DynamodbTableAttribute,
    DynamodbTablePointInTimeRecovery,
    DynamodbTableServerSideEncryption,
)
from kinesis_efo_infra.grants import Grant, Grantee, Resource, grant
from kinesis_efo_infra.key import OWN, CustomerKey, EncryptionKey, check_key, key_arn
from kinesis_efo_infra.places import Place

LEASE_KEY: Final = "leaseKey"


class LeaseTable(Resource):
    """A DynamoDB table that holds an application's leases.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        name: Name of the table: 3 to 255 letters, digits, `_`, `.` and `-`.
        encryption_key: `own` (a customer key is declared), `aws-managed`, a `CustomerKey`, or the ARN of one.
        protected: Whether DynamoDB refuses to delete the table, and Terraform refuses to destroy the table and its key.
        import_existing: Whether Terraform imports an existing table, such as one restored from a backup. Never import a KCL lease table.
        tags: Tags of the table and its key, in addition to the provider's default tags.
        place: Terraform name of the resources; default: derived by CDKTF.

    Raises:
        ArgumentError: The name (DynamoDB API reference, CreateTable) or the key is invalid.

    >>> table = LeaseTable(stack, "leases", name="lake-leases")
    >>> grant = table.grant_read_write("lake-job")
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
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        owner = f"LeaseTable {id!r}"
        checks.text(owner, "name", name, checks.TABLE_NAME, "choose another name")
        check_key(owner, encryption_key)
        super().__init__(scope, id, tags)
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
        self._declare(table, place)
        if import_existing:
            table.import_from(name)
        self._name, self._declared_name = table.name, name

    @staticmethod
    def from_name(
        scope: Construct, id: str, name: str, *, encryption_key: CustomerKey | str | None = None
    ) -> LeaseTable:
        """Return a lease table of this account and region that is declared elsewhere.

        Args:
            scope: The parent construct.
            id: Construct id, unique within `scope`.
            name: Name of the table; may be a Terraform reference.
            encryption_key: The customer key that encrypts the table, or its ARN; grants then include its use. Default: none.

        Raises:
            ArgumentError: The name or the key is invalid.

        >>> leases = LeaseTable.from_name(stack, "leases", "lake-leases")
        """
        owner = f"LeaseTable.from_name {id!r}"
        checks.text(owner, "name", name, checks.TABLE_NAME, "give the name of a table, not its ARN")
        if isinstance(encryption_key, str):
            checks.text(owner, "encryption_key", encryption_key, checks.KEY_ARN, "give the ARN of its key, or nothing")
        return _GivenTable(scope, id, name, encryption_key)

    @property
    def name(self) -> str:
        """Name of the table."""
        return self._name

    @property
    def declared_name(self) -> str | None:
        """Name of the table, if it is known before Terraform calls AWS; otherwise None."""
        return None if checks.is_token(self._declared_name) else self._declared_name

    def grant_read_write(self, grantee: Grantee) -> Grant:
        """Allow a grantee to read and write the leases in the table."""
        return grant(self, "leases", grantee, lambda to: to.read_write_leases(self.arn, self._key_arn))


class _GivenTable(LeaseTable):
    def __init__(self, scope: Construct, id: str, name: str, key: CustomerKey | str | None) -> None:
        super(LeaseTable, self).__init__(scope, id)
        self._name = self._declared_name = name
        self._arn = account_of(self).arn("dynamodb", f"table/{name}")
        self._key_arn = key.arn if isinstance(key, CustomerKey) else key
