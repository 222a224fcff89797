"""A local AWS for demos and tests: Kinesis with Enhanced Fan-Out in memory, moto for every other service.

Needs the extra `local`.
"""

from .aws import LocalAws
from .data_directory import DataError
from .declaring import LocalApplication, LocalStream, declare, declare_stream
from .errors import AwsError
from .fault_injection import (
    Close,
    FaultInjection,
    Finish,
    Freeze,
    GoAway,
    NoFaults,
    Pause,
    Request,
    Reset,
    ResetStream,
)
from .settings import Settings
from .state import Call, Kinesis

__all__ = [
    "AwsError",
    "Call",
    "Close",
    "DataError",
    "FaultInjection",
    "Finish",
    "Freeze",
    "GoAway",
    "Kinesis",
    "LocalApplication",
    "LocalAws",
    "LocalStream",
    "NoFaults",
    "Pause",
    "Request",
    "Reset",
    "ResetStream",
    "Settings",
    "declare",
    "declare_stream",
]
