"""The policies in docs/how-to/iam.md are made of the statements that the declared ones are made of."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from kinesis_efo_infra.iam import Policy
from tests.support.pages import blocks

REGION: Final = "us-east-1"
STREAM: Final = f"arn:aws:kinesis:{REGION}:123456789012:stream/dev-orders"
CONSUMER: Final = f"{STREAM}/consumer/lake:1700000000"
STREAM_KEY: Final = f"arn:aws:kms:{REGION}:123456789012:key/1b2c3d4e-0000-0000-0000-000000000001"
STATE_KEY: Final = f"arn:aws:kms:{REGION}:123456789012:key/1b2c3d4e-0000-0000-0000-000000000002"
TABLE: Final = f"arn:aws:dynamodb:{REGION}:123456789012:table/kinesis-efo-dev-lake"
PARAMETER: Final = f"arn:aws:ssm:{REGION}:123456789012:parameter/kinesis-efo/dev/lake"


def reader() -> Policy:
    policy = Policy(REGION)
    policy.read_stream(STREAM, CONSUMER, STREAM_KEY)
    return policy


def without_a_consumer() -> Policy:
    policy = Policy(REGION)
    policy.poll_stream(STREAM, STREAM_KEY)
    return policy


def writer() -> Policy:
    policy = Policy(REGION)
    policy.write_stream(STREAM, STREAM_KEY)
    return policy


def state() -> Policy:
    policy = Policy(REGION)
    policy.read_write_leases(TABLE, STATE_KEY)
    policy.read_manifest(PARAMETER, STATE_KEY)
    return policy


POLICIES: Final = [reader, state, writer]


def documents() -> list[Any]:
    return [json.loads(block.text) for block in blocks("json") if block.page == "docs/how-to/iam.md"]


@pytest.mark.parametrize(("place", "policy"), list(enumerate(POLICIES)), ids=[each.__name__ for each in POLICIES])
def test_page_has_the_declared_policies(place: int, policy: Any) -> None:
    expected = json.loads(policy().json())
    assert documents()[place] == expected, f"the page is to have:\n{json.dumps(expected, indent=2)}"


def test_policy_without_a_consumer_lacks_one_statement() -> None:
    document = documents()[0]
    document["Statement"] = [each for each in document["Statement"] if each["Sid"] != "SubscribeToConsumers"]
    assert document == json.loads(without_a_consumer().json())


def test_page_has_no_other_policy() -> None:
    assert len(documents()) == len(POLICIES)
