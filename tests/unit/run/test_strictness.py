"""Of which streams aggregates may be left out: of none whose records Kinesis distributed itself at any time."""

import logging

import pytest

from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.notes import RunNotes
from kinesis_efo.options import RetrySettings
from kinesis_efo.records.distribution import Distribution
from kinesis_efo.run.strictness import ASK_SECONDS, Strictness
from tests.support.model_stream import ModelStream
from tests.support.shared_runs import manifest
from tests.support.transports import refused
from tests.support.virtual_time import LoopClock


class Leases:
    """The run's lease, held at once; what is noted outlives the strictness that noted it."""

    def __init__(self) -> None:
        self.notes = RunNotes(LoopClock())

    async def wait_held(self, streams: object, at_most: float | None = None) -> None:
        pass


class Asked:
    """A strictness over one model stream."""

    def __init__(self) -> None:
        self.model = ModelStream()
        self.leases = Leases()
        self.begin()

    def begin(self) -> None:
        stream = Stream(
            manifest("orders").streams["orders"], self.model, self.model, RetrySettings(), "m.json", LoopClock()
        )  # type: ignore[arg-type]
        self.strictness = Strictness(Streams({"orders": stream}), self.leases, 60.0, LoopClock())  # type: ignore[arg-type]

    async def __call__(self) -> bool:
        return await self.strictness.of(["orders"]) == {"orders"}


async def pause(seconds: float = ASK_SECONDS) -> None:
    await LoopClock().sleep(seconds)


async def test_nothing_is_omitted_after_automatic_distribution(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    strict = Asked()
    assert await strict()
    strict.model.distributes = Distribution.AUTO
    await pause()
    assert not await strict()
    strict.model.distributes = Distribution.KEYED
    await pause(3600)
    assert not await strict()
    strict.begin()
    assert not await strict(), "after a restart, either"
    assert len(caplog.messages) == 2, "one for each run"
    assert "no KPL aggregate is dropped: Kinesis distributes or distributed its records itself" in caplog.messages[0]


async def test_nothing_is_omitted_with_unknown_distribution(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    strict = Asked()
    strict.model.distributes = refused("AccessDeniedException")
    assert not await strict()
    await pause()
    assert not await strict()
    strict.model.distributes = Distribution.KEYED
    await pause()
    assert await strict(), "it was never AUTO"
    strict.model.distributes = refused("ThrottlingException")
    await pause()
    assert await strict(), "a call that failed takes nothing back"
    strict.model.distributes = Distribution.AUTO
    await pause()
    assert not await strict()
    assert [("it is unknown" in message) for message in caplog.messages] == [True, False]
