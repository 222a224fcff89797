"""Constructs in the style of CDK's L2 constructs: small, opinionated, with grants as methods."""

from infra.constructs.access import BatchAccess, ReaderAccess, RolesBoundary
from infra.constructs.alarms import Alarms
from infra.constructs.bucket import PrivateBucket
from infra.constructs.dashboard import Dashboard
from infra.constructs.jobs import Jobs
from infra.constructs.key import CustomerKey
from infra.constructs.manifest_parameter import ManifestParameter
from infra.constructs.stream import FanOutStream
from infra.constructs.table import LeaseTable

__all__ = [
    "Alarms",
    "BatchAccess",
    "CustomerKey",
    "Dashboard",
    "FanOutStream",
    "Jobs",
    "LeaseTable",
    "ManifestParameter",
    "PrivateBucket",
    "ReaderAccess",
    "RolesBoundary",
]
