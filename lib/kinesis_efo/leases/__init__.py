"""Leases: which worker reads which shard, kept in DynamoDB in KCL's form. See `LeaseLoop` and `LeaseTable`."""

from kinesis_efo.leases.election import Worker
from kinesis_efo.leases.keeper import Timing
from kinesis_efo.leases.listener import LeaseListener, SilentListener
from kinesis_efo.leases.loop import LeaseLoop
from kinesis_efo.leases.owner import owner_id, provably_gone, readable
from kinesis_efo.leases.row import Lease, LeaseInfo, LeaseKeys
from kinesis_efo.leases.store import Behind, LeaseStore, Lost, Scan, Written
from kinesis_efo.leases.table import LeaseTable, client_config

__all__ = [
    "Behind",
    "Lease",
    "LeaseInfo",
    "LeaseKeys",
    "LeaseListener",
    "LeaseLoop",
    "LeaseStore",
    "LeaseTable",
    "Lost",
    "Scan",
    "SilentListener",
    "Timing",
    "Worker",
    "Written",
    "client_config",
    "owner_id",
    "provably_gone",
    "readable",
]
