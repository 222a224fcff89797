"""Fixtures for the examples in docstrings: a stack, a stream, and the consumer and lease table that an application needs to read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinesis_efo_infra

# Do not collect these files: they import checkov, which is installed only in a separate virtual environment.
collect_ignore = ["kinesis_efo_infra/gate/checks"]


@pytest.fixture(autouse=True)
def _examples(doctest_namespace: dict[str, Any], tmp_path: Path) -> None:
    from kinesis_efo_infra import LeaseTable, Stream, StreamConsumer, policy_for
    from kinesis_efo_infra.cdk import Construct, TerraformStack

    # isort: split

    from cdktf import App

    stack = TerraformStack(App(outdir=str(tmp_path)), "streaming")
    given = Construct(stack, "given")
    orders = Stream.from_arn(given, "orders", "arn:aws:kinesis:eu-west-1:111122223333:stream/orders")
    doctest_namespace.update(
        {name: getattr(kinesis_efo_infra, name) for name in kinesis_efo_infra.__all__},
        stack=stack,
        orders=orders,
        lake=StreamConsumer(given, "lake", stream=orders, name="lake"),
        table=LeaseTable(given, "table", name="lake-leases"),
        policy_for=policy_for,
    )
