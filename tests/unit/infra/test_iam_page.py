"""The policies in docs/how-to/iam.md are made of the statements that the declared ones are made of."""

import json
from collections.abc import Callable
from typing import Any, Final

from kinesis_efo_infra.iam import Policy
from tests.support.pages import blocks

REGION: Final = "us-east-1"
STREAM: Final = f"arn:aws:kinesis:{REGION}:123456789012:stream/dev-orders"
CONSUMER: Final = f"{STREAM}/consumer/lake:1700000000"
STREAM_KEY: Final = f"arn:aws:kms:{REGION}:123456789012:key/1b2c3d4e-0000-0000-0000-000000000001"
STATE_KEY: Final = f"arn:aws:kms:{REGION}:123456789012:key/1b2c3d4e-0000-0000-0000-000000000002"
TABLE: Final = f"arn:aws:dynamodb:{REGION}:123456789012:table/kinesis-efo-dev-lake"
PARAMETER: Final = f"arn:aws:ssm:{REGION}:123456789012:parameter/kinesis-efo/dev/lake"


POLICIES: Final = {
    "reader": lambda policy: policy.read_stream(STREAM, CONSUMER, STREAM_KEY),
    "state": lambda policy: (policy.read_write_leases(TABLE, STATE_KEY), policy.read_manifest(PARAMETER, STATE_KEY)),
    "writer": lambda policy: policy.write_stream(STREAM, STREAM_KEY),
}


def documents() -> list[Any]:
    return [json.loads(block.text) for block in blocks("json") if block.page == "docs/how-to/iam.md"]


def declared(grants: Callable[[Policy], object]) -> Any:
    policy = Policy(REGION)
    grants(policy)
    return json.loads(policy.json())


# Shows 81.
def test_page_has_the_declared_policies() -> None:
    found = documents()
    for document, (name, grants) in zip(found, POLICIES.items(), strict=True):
        assert document == declared(grants), (
            f"the page is to have for a {name}:\n{json.dumps(declared(grants), indent=2)}"
        )
    found[0]["Statement"] = [each for each in found[0]["Statement"] if each["Sid"] != "SubscribeToConsumers"]
    assert found[0] == declared(lambda policy: policy.poll_stream(STREAM, STREAM_KEY)), "without a consumer"
