"""Leases to import: which rows of a KCL application can be told apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.row import Lease
from kinesis_efo_tools.operate.lease_source import read_file, require_one_form
from kinesis_efo_tools.operate.manifest_search import StreamSpec
from tests.support.messages import raises

KEYS = LeaseKeys({"orders": "dev-orders"})
SEVERAL = "123456789012:dev-orders:1700000000:shardId-000000000000"
RECREATED = "123456789012:dev-orders:1800000000:shardId-000000000001"
OTHER = "123456789012:elsewhere:1800000000:shardId-000000000000"


@pytest.mark.parametrize("more", [{"LastEvaluatedKey": {"leaseKey": {"S": "x"}}}, {"NextToken": "abc"}])
def test_one_page_of_a_scan_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    rows = [Lease("orders:shardId-1").to_item()]
    file.write_text(json.dumps({"Items": rows, "LastEvaluatedKey": None}))
    assert set(read_file(file)) == {"orders:shardId-1"}
    file.write_text(json.dumps({"Items": rows, **more}))
    said = (
        f"--from-file {file} is one page of a scan, and the table has more rows: run `aws dynamodb scan` without "
        "--no-paginate and --max-items"
    )
    with raises(ConfigurationError, said):
        read_file(file)


def test_rows_of_a_recreated_stream_are_refused() -> None:
    with raises(
        ConfigurationError,
        "OrdersKcl names the shards of stream orders in 2 ways: '123456789012:dev-orders:1700000000:shardId-000000000000' "
        "(as one with several streams does), '123456789012:dev-orders:1800000000:shardId-000000000001' (as one with "
        "several streams does). Only one of them has the positions of the KCL application as it is now. Delete the rows of "
        "the other, or import a file without them: save the output of `aws dynamodb scan`, take them out, and name it with "
        "--from-file",
    ):
        require_one_form([RECREATED, SEVERAL], KEYS, "OrdersKcl")


def test_file_without_rows_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    with raises(ConfigurationError, "--from-file .../rows.json cannot be read: No such file or directory"):
        read_file(file)
    file.write_text("[]")
    with raises(
        ConfigurationError,
        "--from-file .../rows.json is neither an export nor the output of `aws dynamodb scan`: Expected `object`, got `array`",
    ):
        read_file(file)


@pytest.mark.parametrize("text", ["a=b=c", "orders=", "arn:aws:sqs:us-east-1:111122223333:orders"])
def test_stream_of_another_form_is_refused(text: str) -> None:
    said = (
        "--stream must be NAME or NAME=STREAM, where STREAM is a name in Kinesis, or the ARN of a stream or of one of its "
        "consumers; got '...'"
    )
    with raises(ConfigurationError, said.replace("...", text)):
        StreamSpec.parse(text)
