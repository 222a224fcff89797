"""Which address the fetcher binds to: loopback, unless Spark's tasks may run on other hosts. Relies on nothing.

The process that Spark keeps for a stream reader knows no Spark configuration; what it inherits from a cluster manager is
its environment. `kinesis_efo.read_stream` knows the session and passes `fetcherHost` itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

_CLUSTER_VARIABLES: Final = ("CONTAINER_ID", "KUBERNETES_SERVICE_HOST", "SPARK_EXECUTOR_DIRS")


def fetcher_host(wanted: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The address to bind to and to be reached at.

    Args:
        wanted: The option `fetcherHost`.
        environment: Of this process; YARN and Kubernetes leave their marks in it.
    """
    if wanted:
        return wanted
    if environment.get("SPARK_LOCAL_IP"):
        return environment["SPARK_LOCAL_IP"]
    if any(name in environment for name in _CLUSTER_VARIABLES):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"
