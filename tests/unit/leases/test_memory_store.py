"""The model of the lease table that other tests rely on keeps the same contract as the real one."""

from typing import cast

from kinesis_efo.leases.row import Item
from kinesis_efo.leases.store import LeaseStore
from tests.support.lease_contract import LeaseStoreContract, Scenario
from tests.support.lease_store import MemoryLeaseStore
from tests.support.virtual_time import run


class TestMemoryLeaseStore(LeaseStoreContract):
    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            await scenario(MemoryLeaseStore())

        run(main())

    async def put_item(self, store: LeaseStore, item: Item) -> None:
        cast(MemoryLeaseStore, store).items[item["leaseKey"]["S"]] = item

    async def get_item(self, store: LeaseStore, key: str) -> Item:
        return cast(MemoryLeaseStore, store).items[key]
