"""A local AWS for demos and tests: Kinesis with Enhanced Fan-Out in memory, moto for every other service.

Requires the extra `local`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

# Import these modules only when they are used: pytest imports this package, for its plugin, in every session.
_HOMES: Final = {
    "AwsError": "errors",
    "Call": "state",
    "Close": "fault_injection",
    "DataError": "data_directory",
    "FaultInjection": "fault_injection",
    "Finish": "fault_injection",
    "Freeze": "fault_injection",
    "GoAway": "fault_injection",
    "Kinesis": "state",
    "LocalApplication": "declaring",
    "LocalAws": "aws",
    "LocalStream": "declaring",
    "NoFaults": "fault_injection",
    "Pause": "fault_injection",
    "Request": "fault_injection",
    "Reset": "fault_injection",
    "ResetStream": "fault_injection",
    "Settings": "settings",
    "declare": "declaring",
    "declare_stream": "declaring",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
