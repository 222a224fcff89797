"""What `top` and `lag` say of a query without a lease table if its run is not on this host."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from kinesis_efo import ConfigurationError
from kinesis_efo_tools.cli.lag import lag
from tests.support.messages import raises

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


@pytest.mark.parametrize("arn", [STREAM, f"{STREAM}/consumer/lake:1700000000"])
def test_run_of_another_host_is_not_found(arn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with raises(
        ConfigurationError,
        f"no run of this user on this host reads with {arn} and without a lease table; run this on the driver's host, or give the query "
        "kinesis-efo option 'leaseTable' or a manifest",
    ):
        lag(arn)
