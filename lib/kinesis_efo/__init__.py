"""Read Amazon Kinesis with Enhanced Fan-Out from PySpark; streams, consumers and leases are declared as code.

`read_stream` needs PySpark and is loaded when it is first used, so that producers and tools work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinesis_efo.spark.facade import read_stream

__version__ = "0.1.0"
__all__ = ["__version__", "read_stream"]


def __getattr__(name: str) -> Any:
    if name == "read_stream":
        from kinesis_efo.spark.facade import read_stream

        return read_stream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
