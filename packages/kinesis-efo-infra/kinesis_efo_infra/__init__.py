"""Constructs of CDK for Terraform for Amazon Kinesis with Enhanced Fan-Out, in the style of the CDK's L2 constructs.

What is here is public; modules below are not. Names that need CDKTF are loaded when they are first used, so that what needs
only names, statements and documents does without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kinesis_efo_infra.errors import ArgumentError, InfraError, MissingError
from kinesis_efo_infra.iam import Policy, Statement
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.trust import EmrOnEc2, EmrServerless, Glue, PodIdentity, ServiceAccount

if TYPE_CHECKING:
    from kinesis_efo_infra.access import BatchAccess, ReaderAccess
    from kinesis_efo_infra.alarms import ConsumerAlarms
    from kinesis_efo_infra.application import StreamingApplication
    from kinesis_efo_infra.base import pin_account
    from kinesis_efo_infra.consumer import StreamConsumer
    from kinesis_efo_infra.dashboard import Dashboard
    from kinesis_efo_infra.glue import StreamingGlueJob
    from kinesis_efo_infra.grants import policy_for
    from kinesis_efo_infra.key import CustomerKey
    from kinesis_efo_infra.manifest import Manifest
    from kinesis_efo_infra.stream import Stream
    from kinesis_efo_infra.table import LeaseTable

__version__ = "0.2.0"
__all__ = [
    "ArgumentError",
    "BatchAccess",
    "ConsumerAlarms",
    "CustomerKey",
    "Dashboard",
    "EmrOnEc2",
    "EmrServerless",
    "Glue",
    "InfraError",
    "LeaseTable",
    "Manifest",
    "MissingError",
    "Place",
    "PodIdentity",
    "Policy",
    "ReaderAccess",
    "ServiceAccount",
    "Statement",
    "Stream",
    "StreamConsumer",
    "StreamingApplication",
    "StreamingGlueJob",
    "__version__",
    "pin_account",
    "policy_for",
]

_HOMES: Final = {
    "BatchAccess": "kinesis_efo_infra.access",
    "ConsumerAlarms": "kinesis_efo_infra.alarms",
    "CustomerKey": "kinesis_efo_infra.key",
    "Dashboard": "kinesis_efo_infra.dashboard",
    "LeaseTable": "kinesis_efo_infra.table",
    "Manifest": "kinesis_efo_infra.manifest",
    "ReaderAccess": "kinesis_efo_infra.access",
    "Stream": "kinesis_efo_infra.stream",
    "StreamConsumer": "kinesis_efo_infra.consumer",
    "StreamingApplication": "kinesis_efo_infra.application",
    "StreamingGlueJob": "kinesis_efo_infra.glue",
    "pin_account": "kinesis_efo_infra.base",
    "policy_for": "kinesis_efo_infra.grants",
}
"""Where the names are that are loaded when they are first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
