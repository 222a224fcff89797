"""The real command line against a local AWS: what it prints, what it says on stderr, and its exit code."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_local import LocalAws, NoFaults, Request, Settings
from kinesis_efo_local.fault_injection import Step
from kinesis_efo_tools.cli import main
from tests.support.world import World, make_world

QUICK: dict[str, Any] = {
    "consumer_creating_seconds": 0.0,
    "consumer_deleting_seconds": 0.0,
    "idle_event_seconds": 0.2,
    "resubscribe_seconds": 0.0,
    "subscribe_interval_seconds": 0.0,
    "read_limit": False,
}


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON that was printed."""
        return json.loads(self.out)


class Switch(NoFaults):
    """Misbehaves as the test that runs just now says."""

    faults: Any = NoFaults()

    async def before(self, request: Request) -> None:
        await self.faults.before(request)

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Step]:
        return self.faults.frame(subscription, frame)  # type: ignore[no-any-return]


class _Typed(io.TextIOWrapper):
    """Standard input that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="package")
def switched_aws() -> Iterator[tuple[LocalAws, Switch]]:
    switch = Switch()
    with LocalAws(settings=Settings(**QUICK), faults=switch) as aws:
        yield aws, switch


@pytest.fixture
def aws(switched_aws: tuple[LocalAws, Switch], monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    """The local AWS, and this process pointed at it."""
    aws, switch = switched_aws
    for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_CA_BUNDLE"]:
        monkeypatch.delenv(name)
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    # `doctor` looks at the Python that Spark would start from here.
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    yield aws
    switch.faults = NoFaults()


@pytest.fixture
def switch(switched_aws: tuple[LocalAws, Switch]) -> Switch:
    """Makes the local AWS misbehave until the test ends."""
    return switched_aws[1]


@pytest.fixture
def world(aws: LocalAws, tmp_path: Path) -> Callable[..., World]:
    """Makes a world; arguments as `make_world`."""

    def make(streams: Any = ("orders",), **create: Any) -> World:
        return make_world(aws, tmp_path, streams, **create)

    return make


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command line in this process, with a text as standard input, typed by a person or not."""

    def run(*arguments: object, stdin: str | bytes = "", typed: bool = False) -> Result:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", (_Typed if typed else io.TextIOWrapper)(io.BytesIO(raw)))
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Result(int(ended.value.code or 0), out, err)

    return run
