"""Orders as the examples read them, and what they write."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from demo.output import committed


def order(customer: str, amount: str, placed: str) -> tuple[str, bytes]:
    """A record with an order."""
    return customer, json.dumps(
        {"id": f"{customer}-{placed}", "customer": customer, "amount": amount, "placed": placed}
    ).encode()


def rows(directory: Path) -> list[dict[str, Any]]:
    """What is in the committed files of a directory."""
    return [row for file in committed(directory) for row in pq.ParquetFile(file).read().to_pylist()]
