"""CDK for Terraform (CDKTF) constructs for Amazon Kinesis Enhanced Fan-Out, in the style of the AWS CDK's L2 constructs.

The names in this package are public; its modules are not. Names that need CDKTF are imported on first use, so that IAM statements and
policies can be used without CDKTF.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kinesis_efo_infra.errors import ArgumentError, InfraError, MissingError
from kinesis_efo_infra.iam import ArnPrincipal, Policy, Polling, ServicePrincipal, Statement
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.trust import EmrOnEc2, EmrServerless, Glue, PodIdentity, ServiceAccount

if TYPE_CHECKING:
    from kinesis_efo_infra.access import BatchAccess, ReaderAccess
    from kinesis_efo_infra.alarms import ConsumerAlarms, Metric
    from kinesis_efo_infra.application import StreamingApplication
    from kinesis_efo_infra.base import pin_account
    from kinesis_efo_infra.consumer import StreamConsumer
    from kinesis_efo_infra.dashboard import Dashboard
    from kinesis_efo_infra.glue import StreamingGlueJob
    from kinesis_efo_infra.grants import Grant, policy_for
    from kinesis_efo_infra.key import CustomerKey
    from kinesis_efo_infra.manifest import Manifest
    from kinesis_efo_infra.stream import Stream
    from kinesis_efo_infra.table import LeaseTable

__version__ = "0.2.0"
__all__ = [
    "ArgumentError",
    "ArnPrincipal",
    "BatchAccess",
    "ConsumerAlarms",
    "CustomerKey",
    "Dashboard",
    "EmrOnEc2",
    "EmrServerless",
    "Glue",
    "Grant",
    "InfraError",
    "LeaseTable",
    "Manifest",
    "Metric",
    "MissingError",
    "Place",
    "PodIdentity",
    "Policy",
    "Polling",
    "ReaderAccess",
    "ServiceAccount",
    "ServicePrincipal",
    "Statement",
    "Stream",
    "StreamConsumer",
    "StreamingApplication",
    "StreamingGlueJob",
    "__version__",
    "pin_account",
    "policy_for",
]

_MODULES: Final = (
    "access", "alarms", "application", "base", "consumer", "dashboard", "glue", "grants", "key", "manifest", "stream", "table",
)  # fmt: skip
"""Modules that define the public names that need CDKTF. They are imported when such a name is first used."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (import_module(f"{__name__}.{each}") for each in _MODULES)
    value = globals()[name] = next(vars(each)[name] for each in modules if name in vars(each))
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
