"""A run's lease on each stream (`RunLease`) and the checkpoints of shards (`Checkpoints`), stored in DynamoDB (`LeaseTable`)."""

from kinesis_efo.leases.checkpoints import Checkpoints, Pace
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.listener import LeaseListener, SilentListener
from kinesis_efo.leases.owner import owner_id, provably_gone, readable
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.run import RunLease
from kinesis_efo.leases.run_lag import Lag
from kinesis_efo.leases.store import Conflict, EarlierWrite, LeaseStore, Scan, Success
from kinesis_efo.leases.table import LeaseTable, client_config

__all__ = [
    "Checkpoints",
    "Conflict",
    "EarlierWrite",
    "Lag",
    "Lease",
    "LeaseInfo",
    "LeaseKeys",
    "LeaseListener",
    "LeaseStore",
    "LeaseTable",
    "Pace",
    "RunLease",
    "Scan",
    "SilentListener",
    "Success",
    "Timing",
    "client_config",
    "owner_id",
    "provably_gone",
    "readable",
    "run_key",
]
