"""A stream that is handed over is forgotten by Terraform, and nothing of it is destroyed."""

from typing import Any

import pytest

from kinesis_efo_infra.pipeline.limits import notes
from tests.integration.infra.conftest import Deploy

ORDERS: dict[str, Any] = {"mode": "provisioned", "shards": 2, "name": "shop-orders"}
PARTNER = {"kind": "other-account", "principals": ["arn:aws:iam::777788889999:root"]}
THEIRS = {
    "existing_arn": "arn:aws:kinesis:eu-west-1:111122223333:stream/shop-orders",
    "key": "arn:aws:kms:eu-west-1:111122223333:key/0123abcd",
}


@pytest.mark.long
def test_handed_over_stream_is_forgotten(deploy: Deploy) -> None:
    before = {
        "streams": {"orders": ORDERS, "clicks": {}},
        "applications": {
            "lake": {"streams": ["orders", "clicks"]},
            "partner": {"streams": ["orders"], "access": PARTNER},
        },
    }
    first = deploy(protected=True, **before)
    first.apply()
    held = first.state()
    of_stream = {
        "aws_kinesis_stream.orders",
        "aws_kms_key.orders",
        "aws_kms_alias.orders",
        "aws_kinesis_resource_policy.orders",
    }
    assert of_stream < held.keys()
    consumer = held["aws_kinesis_stream_consumer.orders_lake"]["arn"]
    after = {"streams": {"orders": THEIRS, "clicks": {}}, "applications": before["applications"]}
    second = deploy(protected=True, handed_over=["orders"], **after)
    plan = second.plan()
    actions = {each["address"]: each["change"]["actions"] for each in plan["resource_changes"]}
    assert {address for address, action in actions.items() if action == ["forget"]} == of_stream
    destroyed = {address for address, action in actions.items() if "delete" in action}
    assert not [each for each in destroyed if "cloudwatch" not in each], "nothing but its alarm goes"
    told = [note for note in notes(plan) if "is handed over" in note]
    assert len(told) == len(of_stream)
    assert "aws_kinesis_stream.orders: is handed over: Terraform forgets it; it stays as it is, and is billed" in told
    second.apply()
    state = second.state()
    assert not of_stream & state.keys()
    assert state["aws_kinesis_stream_consumer.orders_lake"]["arn"] == consumer
    # Once it is deployed, the line may go.
    assert deploy(protected=True, **after).changes() == {}
