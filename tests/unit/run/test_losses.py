"""What a query looks for once, and again if Kinesis did not answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kinesis_efo.decisions.losses import Known
from kinesis_efo.errors import StreamError
from kinesis_efo.positions import Offset, Position, ShardKey
from kinesis_efo.run.losses import Losses
from tests.support.virtual_time import run

OFFSET = Offset({ShardKey("orders", "shardId-000000000000"): Position.after(5)})


class Streams:
    """One stream, which cannot be listed the first time."""

    listings = 1

    def __init__(self) -> None:
        self.looked: list[list[str]] = []
        self.lineage = self
        self.streams: dict[str, Any] = {}

    def stream(self, _: str) -> Any:
        return self

    def appeared(self, _: object) -> list[str]:
        return []

    async def check_loss(self, positions: Mapping[str, Position], *_: object) -> None:
        self.looked.append(list(positions))
        if len(self.looked) == 1:
            raise StreamError("throttled")

    async def check_position(self, *_: object, **__: object) -> None:
        """Nothing is lost."""


def test_a_check_that_kinesis_did_not_answer_is_made_again_as_the_first_one(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        streams: Any = Streams()
        losses = Losses(streams, lambda *_: Known())
        for _ in range(3):
            await losses.check(OFFSET, rows=True)
        assert streams.looked == [["shardId-000000000000"]] * 2

    run(main())
    assert "cannot tell for now whether records were lost: throttled" in caplog.text
