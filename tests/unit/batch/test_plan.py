"""The plan of all streams, in virtual time: what is asked of which client, what is waited for, and what time it is."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from kinesis_efo.batch import planning
from kinesis_efo.batch.planning import plan, tip_at
from kinesis_efo.batch.ranges import BatchRange
from kinesis_efo.options import AwsSettings, BatchOptions
from tests.support.fake_clients import FakeClients
from tests.support.shared_runs import manifest
from tests.support.virtual_time import LoopClock, run

START = 1_700_001_000.0
"""The epoch time at which virtual time begins."""

MANIFEST = manifest("orders", "clicks")


class Kinesis:
    """Streams of one shard each."""

    def __init__(self) -> None:
        self.faults: list[Exception] = []

    def __call__(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self.faults:
            raise self.faults.pop(0)
        if operation == "describe_stream_summary":
            created = datetime.fromtimestamp(START - 10**6, UTC)
            return {"StreamDescriptionSummary": {"RetentionPeriodHours": 24, "StreamCreationTimestamp": created}}
        assert operation == "list_shards"
        shard = {
            "ShardId": f"shardId-{len(arguments['StreamARN']):012}",
            "SequenceNumberRange": {"StartingSequenceNumber": "1"},
            "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
        }
        return {"Shards": [shard]}


class Planned:
    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *faults: Exception,
        ahead: float = 0.0,
        loaded: float = START,
        here: bool = True,
        **options: str,
    ) -> None:
        kinesis = Kinesis()
        kinesis.faults = list(faults)
        clock = LoopClock()
        self.clients = FakeClients(clock, kinesis, ahead)
        monkeypatch.setattr(planning, "AsyncClients", self.clients)
        self.options = BatchOptions.parse({"manifest": "m.json", **options})

        async def main() -> tuple[list[BatchRange], float]:
            began = clock.monotonic()
            found = await plan(MANIFEST, self.options, tip_at(loaded), clock, here=here)
            return found, clock.monotonic() - began

        self.found, self.seconds = run(main())


def test_streams_are_listed_again_once_the_end_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = Planned(monkeypatch)
    assert [part.key.stream for part in planned.found] == ["orders", "clicks"]
    assert [call["StreamARN"] for call in planned.clients.calls("list_shards")] == [
        ref.stream_arn for ref in [*MANIFEST.streams.values()] * 2
    ]
    assert planned.clients.made == [(AwsSettings(role_session_name="kinesis-efo-lake"), "us-east-1")]
    assert [(client.service, client.open) for client in planned.clients.clients] == [("kinesis", False)]
    assert planned.seconds == 1, "the tip is a second after the call"


@pytest.mark.parametrize(("ahead", "seconds"), [(0.0, 3.0), (1.0, 4.0), (-2.0, 5.0), (10.0, 4.0)])
def test_start_and_end_in_kinesis_future_are_waited_for(
    ahead: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = {"orders": f"AT_TIMESTAMP:{round((START + 2) * 1000)}"}
    planned = Planned(monkeypatch, ahead=ahead, loaded=START + 2, startingPosition=json.dumps(starts))
    assert planned.seconds == pytest.approx(seconds)
