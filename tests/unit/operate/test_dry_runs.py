"""A dry run beside a live query: at AWS' own endpoint it takes nothing of the query's limits; elsewhere it may be no dry run."""

import asyncio
from types import SimpleNamespace
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from kinesis_efo_tools.operate import dry_runs
from kinesis_efo_tools.operate.findings import Status
from tests.unit.operate.test_measurement import ORDERS

MODEL = botocore.session.get_session().get_service_model("kinesis")
EVENTS = SimpleNamespace(register=lambda *_: None, unregister=lambda *_: None)


class Kinesis:
    """AWS, as it answers dry runs. It cannot be asked here."""

    def __init__(self, endpoint: str) -> None:
        self.meta = SimpleNamespace(endpoint_url=endpoint, service_model=MODEL, events=EVENTS)
        self.subscribed: list[dict[str, Any]] = []

    async def client(self, service: str) -> Any:
        return self

    async def list_shards(self, **_: Any) -> Any:
        return {"Shards": [{"ShardId": "shardId-000000000000"}]}

    async def subscribe_to_shard(self, **asked: Any) -> Any:
        self.subscribed.append(asked)
        error = {"Code": "DryRunOperationException", "Message": "Request would have succeeded"}
        raise ClientError({"Error": error}, "SubscribeToShard")


@pytest.mark.parametrize(
    ("endpoint", "tries"),
    [
        ("https://kinesis.eu-west-1.amazonaws.com", [True]),
        ("https://kinesis.cn-north-1.amazonaws.com.cn", [True]),
        ("https://111122223333.control-kinesis.eu-west-1.api.aws", [True]),
        ("https://kinesis.eusc-de-east-1.amazonaws.eu", [True]),
        ("https://amazonaws.com.example", []),
        ("https://fakeamazonaws.com", []),
    ],
)
def test_dry_run_during_a_query_goes_only_to_aws(endpoint: str, tries: list[bool]) -> None:
    kinesis = Kinesis(endpoint)
    found = asyncio.run(dry_runs.subscribing(kinesis, ORDERS, ["host:1:a"], anyway=False))
    assert found.status is (Status.PASSED if tries else Status.UNKNOWN)
    assert [each["DryRun"] for each in kinesis.subscribed] == tries


def test_key_of_an_unreachable_stream_is_unknown() -> None:
    class Unreachable(Kinesis):
        async def describe_stream_summary(self, **_: Any) -> Any:
            raise EndpointConnectionError(endpoint_url=self.meta.endpoint_url)

    found = asyncio.run(dry_runs.key(Unreachable("https://kinesis.eu-west-1.amazonaws.com"), ORDERS))
    assert (found.subject, found.status, found.fix) == ("key of orders", Status.UNKNOWN, "see stream orders")
    assert "Could not connect to the endpoint" in found.detail
