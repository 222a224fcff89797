"""Chooses the address that the fetcher binds to: loopback, unless Spark's tasks may run on other hosts.

The process that Spark keeps for a stream reader sees no Spark configuration, only the environment that it inherits from a
cluster manager. `kinesis_efo.read_stream` knows the session and sets the option `fetcherHost`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

_CLUSTER_VARIABLES: Final = ("CONTAINER_ID", "KUBERNETES_SERVICE_HOST", "SPARK_EXECUTOR_DIRS")


def fetcher_host(wanted: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The address that the fetcher binds to and that tasks connect to.

    Args:
        wanted: The option `fetcherHost`; it wins over everything else.
        environment: Variables of this process; those of YARN, Kubernetes and Spark's executors show a cluster.
    """
    if wanted:
        return wanted
    if environment.get("SPARK_LOCAL_IP"):
        return environment["SPARK_LOCAL_IP"]
    if any(name in environment for name in _CLUSTER_VARIABLES):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"
