"""A local AWS for demos and tests: Kinesis with Enhanced Fan-Out in memory, moto for every other service.

Stands alone: nothing else of this library is imported here. Needs the extra ``local``.
"""

from .aws import LocalAws
from .errors import AwsError
from .faults import Close, Faults, Finish, NoFaults, Pause, Request, Reset
from .settings import Settings
from .state import Call, Kinesis

__all__ = [
    "AwsError",
    "Call",
    "Close",
    "Faults",
    "Finish",
    "Kinesis",
    "LocalAws",
    "NoFaults",
    "Pause",
    "Request",
    "Reset",
    "Settings",
]
