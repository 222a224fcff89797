"""What environment files are made of: the constructs of `kinesis_efo_infra` as the settings say, and what only goes with them."""

from infra.constructs.access import RolesBoundary, batch_access, reader_access
from infra.constructs.alarms import Alarms
from infra.constructs.bucket import PrivateBucket
from infra.constructs.dashboard import Dashboard
from infra.constructs.jobs import Jobs
from infra.constructs.schedules import Schedules
from infra.constructs.stream import FanOutStream

__all__ = [
    "Alarms",
    "Dashboard",
    "FanOutStream",
    "Jobs",
    "PrivateBucket",
    "RolesBoundary",
    "Schedules",
    "batch_access",
    "reader_access",
]
