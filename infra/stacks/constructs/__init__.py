"""The constructs of an environment's stack: those of `kinesis_efo_infra` with values from the settings, and additional ones."""

from infra.stacks.constructs.access import RolesBoundary, batch_access, reader_access
from infra.stacks.constructs.alarms import Alarms
from infra.stacks.constructs.bucket import PrivateBucket
from infra.stacks.constructs.dashboard import Dashboard
from infra.stacks.constructs.jobs import Jobs
from infra.stacks.constructs.schedules import Schedules
from infra.stacks.constructs.stream import FanOutStream

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
