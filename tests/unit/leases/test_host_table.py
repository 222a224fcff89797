"""The lease files of one host keep the contract of a lease table, also between two processes and after a crash."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path

import msgspec
import pytest

from kinesis_efo.errors import LeaseTableError, TableUnavailableError
from kinesis_efo.leases.host_table import HostTable
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

    async def put_item(self, store: LeaseStore, item: Item) -> None:
        await store.create(Lease.new(key := item["leaseKey"]["S"], LeaseInfo()))
        (file,) = self.directory.glob(f"lease.*.{key}")
        file.write_bytes(msgspec.json.encode(item))

    async def get_item(self, store: LeaseStore, key: str) -> Item:
        (file,) = self.directory.glob(f"lease.*.{key}")
        return msgspec.json.decode(file.read_bytes(), type=Item)

    def test_programs_share_the_rows_of_one_reader(self) -> None:
        async def scenario(_: LeaseStore) -> None:
            one, other = self.table(orders="consumer x"), self.table(orders="consumer x")
            taken = RUN.taken("a", "", 1)
            assert await one.create(taken) == taken
            assert await other.create(RUN.taken("b", "", 1)) == Conflict(taken)
            assert (await other.scan()).leases == {RUN.key: taken}
            assert (await self.table(orders="consumer y").scan()).leases == {}

        self.run(scenario)

    @pytest.mark.parametrize(("left", "unreadable"), [(b"", False), (b"[1", True)])
    def test_interrupted_write_leaves_no_row(self, left: bytes, unreadable: bool) -> None:
        async def scenario(store: LeaseStore) -> None:
            assert await store.create(RUN) == RUN
            (file,) = self.directory.iterdir()
            file.write_bytes(left)
            scan = await store.scan()
            assert (dict(scan.leases), RUN.key in scan.unreadable) == ({}, unreadable)
            if unreadable:
                with raises(LeaseTableError, "there is a file that is no lease, ..., in the lease files in ..."):
                    await store.delete(RUN)
            else:
                assert await store.create(RUN) == RUN

        self.run(scenario)

    def test_directory_of_others_is_refused(self) -> None:
        self.directory.mkdir(mode=0o755)
        with raises(
            TableUnavailableError,
            "the lease files in ... cannot be used for now: ... is not a directory of this user alone: ...",
        ):
            asyncio.run(self.table().check())

    def test_row_locked_by_a_suspended_process_is_an_error(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            await store.create(RUN)
            (file,) = self.directory.iterdir()
            with file.open() as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                with pytest.raises(TableUnavailableError, match="perhaps because it is suspended"):
                    await store.scan()
            assert (await store.scan()).leases == {RUN.key: RUN}

        self.run(scenario)

    def test_row_deleted_while_another_process_waits_is_created_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario(store: LeaseStore) -> None:
            await store.create(RUN)
            (file,) = self.directory.iterdir()
            with file.open() as held:
                fcntl.flock(held, fcntl.LOCK_EX)

                def delete(_: float) -> None:
                    file.unlink()
                    fcntl.flock(held, fcntl.LOCK_UN)

                monkeypatch.setattr("time.sleep", delete)
                taken = RUN.taken("b", "", 1)
                assert await store.create(taken) == taken
            assert (await store.scan()).leases == {RUN.key: taken}

        self.run(scenario)
