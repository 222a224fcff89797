"""Who decides on the shard of a record, as DescribeStreamSummary tells it to SDKs of any age."""

import copy
from types import SimpleNamespace
from typing import Any

import botocore.loaders
import pytest
from botocore.model import ServiceModel

from kinesis_efo.records.distribution import Distribution, distribution_of, lenient

ON_DEMAND = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
PROVISIONED = {"StreamModeDetails": {"StreamMode": "PROVISIONED"}}


def client(*, old: bool) -> Any:
    """A client, as far as it is asked. An old one has the service's description from before there were strategies."""
    model = copy.deepcopy(botocore.loaders.create_loader().load_service_model("kinesis", "service-2"))
    members = model["shapes"]["StreamDescriptionSummary"]["members"]
    members.pop("RecordDistributionStrategy", None)
    if not old:
        members["RecordDistributionStrategy"] = {"shape": "StreamName"}
    return SimpleNamespace(meta=SimpleNamespace(service_model=ServiceModel(model, "kinesis")))


@pytest.mark.parametrize(
    ("summary", "old", "found"),
    [
        ({**ON_DEMAND, "RecordDistributionStrategy": "AUTO"}, False, Distribution.AUTO),
        ({**ON_DEMAND, "RecordDistributionStrategy": "USER_PARTITION_KEY"}, False, Distribution.KEYED),
        ({**ON_DEMAND, "RecordDistributionStrategy": "SOMETHING_NEW"}, False, Distribution.UNKNOWN),
        (PROVISIONED, False, Distribution.KEYED),
        (ON_DEMAND, False, Distribution.KEYED),
        # An old SDK drops what it does not know: only a stream on demand may have a strategy.
        (ON_DEMAND, True, Distribution.UNKNOWN),
        (PROVISIONED, True, Distribution.KEYED),
        # Kinesis of others, and very old SDKs.
        ({}, False, Distribution.KEYED),
        ({}, True, Distribution.KEYED),
    ],
)
def test_the_distribution_is_read_from_the_summary(summary: dict[str, Any], old: bool, found: Distribution) -> None:
    assert distribution_of(client(old=old), summary) is found


def test_each_reason_for_leniency_is_named() -> None:
    assert "AUTO" in lenient("orders", Distribution.AUTO)
    assert "kinesis:DescribeStreamSummary is denied, or botocore is too old" in lenient("orders", Distribution.UNKNOWN)
