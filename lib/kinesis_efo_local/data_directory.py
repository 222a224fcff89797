"""Stores streams, consumers and DynamoDB tables in a directory when a local AWS stops, and loads them at the next start."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from .state import KeptKinesis

T = TypeVar("T")
Table = dict[str, Any]
_FORM: Final = 1
_KINESIS, _TABLES = "kinesis.msgpack", "tables.msgpack"


class KeptAccount(msgspec.Struct):
    """The Kinesis data of an account by region, as stored in a data directory."""

    account_id: str
    last_tick: int
    regions: dict[str, KeptKinesis]
    form: int = _FORM


class DataError(Exception):
    """Raised if a data directory cannot be used. The message contains the reason."""


class DataDirectory:
    """A directory that keeps the data of a local AWS between runs. Only one local AWS may use it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: Any = None

    def open(self) -> None:
        """Create the directory if it is missing, and lock it. Raises DataError if another local AWS uses it, or if it is not usable."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            for path in (
                self._path,
                *(self._path / f"{dot}{name}" for name in (_KINESIS, _TABLES, "lock") for dot in ("", ".")),
            ):
                if path.is_symlink():
                    raise DataError(
                        f"data directory {self._path}: {path} is a link, which is not followed; give the directory itself"
                    )
            self._lock = os.fdopen(os.open(self._path / "lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w")
        except OSError as error:
            raise DataError(f"data directory {self._path} cannot be used: {error}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise DataError(
                f"data directory {self._path}: another local AWS uses it; end that, or take another"
            ) from None

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def account(self, account_id: str) -> KeptAccount:
        """Read the stored Kinesis data. Raises DataError if it belongs to another account, or cannot be read."""
        kept = self._read(_KINESIS, KeptAccount) or KeptAccount(account_id, 0, {})
        if kept.form != _FORM:
            raise DataError(f"data directory {self._path} is of another version of kinesis-efo; take another directory")
        if kept.account_id != account_id:
            raise DataError(
                f"data directory {self._path} has streams of account {kept.account_id}, not of {account_id}; take another directory"
            )
        return kept

    def tables(self) -> list[Table]:
        """Read the stored DynamoDB tables, in the form that `read_tables` returns. Raises DataError if they cannot be read."""
        return self._read(_TABLES, list[Table]) or []

    def keep_account(self, kept: KeptAccount) -> None:
        """Write the Kinesis data."""
        self._write(_KINESIS, kept)

    def keep_tables(self, tables: Sequence[Table]) -> None:
        """Write the DynamoDB tables."""
        self._write(_TABLES, tables)

    def _read(self, name: str, kind: type[T]) -> T | None:
        path = self._path / name
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                return msgspec.msgpack.decode(file.read(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            raise DataError(
                f"data directory {self._path}: {name} cannot be read: {wrong}; take another directory"
            ) from None

    def _write(self, name: str, content: Any) -> None:
        # The file is replaced in one step: if the process is killed while writing, the previous data remains.
        partial = self._path / f".{name}"
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666), "wb") as file:
            file.write(msgspec.msgpack.encode(content))
        partial.replace(self._path / name)


def read_tables(dynamodb: Any) -> list[Table]:
    """Read every DynamoDB table, with its keys, indexes and items."""
    return [
        {"declared": _declaration(dynamodb.describe_table(TableName=name)["Table"]), "items": _items(dynamodb, name)}
        for page in dynamodb.get_paginator("list_tables").paginate()
        for name in page["TableNames"]
    ]


def write_tables(dynamodb: Any, tables: Sequence[Table]) -> None:
    """Create DynamoDB tables with their items, in the form that `read_tables` returns."""
    for table in tables:
        dynamodb.create_table(BillingMode="PAY_PER_REQUEST", **table["declared"])
        for item in table["items"]:
            dynamodb.put_item(TableName=table["declared"]["TableName"], Item=item)


def _declaration(described: Mapping[str, Any]) -> dict[str, Any]:
    declared = {key: described[key] for key in ("TableName", "KeySchema", "AttributeDefinitions")}
    for kind in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes"):
        if indexes := described.get(kind):
            declared[kind] = [
                {key: index[key] for key in ("IndexName", "KeySchema", "Projection")} for index in indexes
            ]
    return declared


def _items(dynamodb: Any, name: str) -> list[Any]:
    pages = dynamodb.get_paginator("scan").paginate(TableName=name, ConsistentRead=True)
    return [item for page in pages for item in page["Items"]]
