"""The lease file of one host keeps the contract of a lease table, also between two processes and after a crash."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kinesis_efo.errors import LeaseTableError, TableUnavailableError
from kinesis_efo.leases.host_table import FILE, HostTable
from kinesis_efo.leases.row import Item, Lease, LeaseInfo
from kinesis_efo.leases.store import Conflict, LeaseStore
from tests.support.lease_contract import KEY, LeaseStoreContract, Scenario
from tests.support.messages import raises

READERS = {"orders": "consumer orders", KEY: "consumer x", "bad": "y", "Leader": "z", "shardId-000000000001": "t"}
RUN = Lease("#run:orders", checkpoint=None)


class TestHostTable(LeaseStoreContract):
    directory: Path

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "leases"

    def table(self, **readers: str) -> HostTable:
        return HostTable(readers or READERS, self.directory)

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            await scenario(self.table())

        asyncio.run(main())

    def opened(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self.directory / FILE, isolation_level=None))

    async def put_item(self, store: LeaseStore, item: Item) -> None:
        await store.create(Lease.new(key := item["leaseKey"]["S"], LeaseInfo()))
        with self.opened() as rows:
            rows.execute("UPDATE leases SET item = ? WHERE key = ?", (msgspec.json.encode(item), key))

    async def get_item(self, store: LeaseStore, key: str) -> Item:
        with self.opened() as rows:
            (text,) = rows.execute("SELECT item FROM leases WHERE key = ?", (key,)).fetchone()
        return msgspec.json.decode(text, type=Item)

    async def test_programs_share_the_rows_of_one_reader(self, store: LeaseStore) -> None:
        one, other = self.table(orders="consumer x"), self.table(orders="consumer x")
        taken = RUN.taken("a", "", 1)
        assert await one.create(taken) == taken
        assert await other.create(RUN.taken("b", "", 1)) == Conflict(taken)
        assert (await other.scan()).leases == {RUN.key: taken}
        assert (await self.table(orders="consumer y").scan()).leases == {}

    def test_damaged_file_is_an_error(self) -> None:
        self.directory.mkdir(mode=0o700)
        (self.directory / FILE).write_bytes(b"no database" * 100)
        with raises(LeaseTableError, "the lease file ... is damaged: ...; delete it"):
            asyncio.run(self.table().check())

    def test_directory_of_others_is_refused(self) -> None:
        self.directory.mkdir(mode=0o755)
        with raises(
            TableUnavailableError,
            "the lease file ... cannot be used now: ... is not a directory of this user alone: ...",
        ):
            asyncio.run(self.table().check())

    async def test_file_locked_by_a_suspended_process_is_an_error(self, store: LeaseStore) -> None:
        await store.create(RUN)
        with self.opened() as rows:
            rows.execute("BEGIN IMMEDIATE")
            with pytest.raises(TableUnavailableError, match="locked"):
                await store.scan()
        assert (await store.scan()).leases == {RUN.key: RUN}

    async def test_interrupted_write_leaves_the_row(self, store: LeaseStore) -> None:
        await store.create(RUN)
        with self.opened() as rows:
            rows.execute("BEGIN IMMEDIATE")
            rows.execute("UPDATE leases SET item = '{}'")
        assert (await store.scan()).leases == {RUN.key: RUN}
