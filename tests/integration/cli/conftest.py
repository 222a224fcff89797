"""The real command line against a local AWS: what it prints, what it says on stderr, and its exit code."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.leases.row import Lease
from kinesis_efo_local import AwsError, LocalAws, NoFaults, Request, Settings
from kinesis_efo_local.fault_injection import Step
from kinesis_efo_tools.cli import main
from tests.support.world import QUICK, World, make_world

MAIN = (sys.executable, "-c", "from kinesis_efo_tools.cli import main; main()")
AN_HOUR_FAST = [
    sys.executable,
    "-c",
    "import time; now = time.time; time.time = lambda: now() + 3600; from kinesis_efo_tools.cli import main; main()",
]


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

    def ends(self, code: int, *texts: str, out: str | None = None) -> None:
        """Check how it ended, texts on stderr, and what it printed if that is given."""
        missing = [text for text in texts if text not in self.err]
        assert (self.code, missing, self.out if out is not None else None) == (code, [], out), self.err


class Switch(NoFaults):
    """Misbehaves as the test that runs just now says."""

    faults: Any = NoFaults()

    async def before(self, request: Request) -> None:
        await self.faults.before(request)

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Step]:
        return self.faults.frame(subscription, frame)  # type: ignore[no-any-return]


class Failing(NoFaults):
    """Answers some operations with an error, whose code is given by operation."""

    def __init__(self, **codes: str) -> None:
        self.codes = codes

    async def before(self, request: Request) -> None:
        if (code := self.codes.get(request.operation)) is not None:
            raise AwsError(code, f"User is not authorized to perform: {request.operation}")


@dataclass
class Here(World):
    """A world whose manifest each command gets."""

    command: Callable[..., Result] = field(repr=False, kw_only=True)

    def run(self, name: str, *arguments: object, **options: Any) -> Result:
        """Run a command, such as `leases list`."""
        return self.command(*name.split(), "--manifest", self.manifest, *arguments, **options)

    def arn(self, stream: str = "orders") -> str:
        return self.consumers[stream].partition("/consumer/")[0]

    def rows(self, *leases: Lease, table: str | None = None) -> None:
        """Write rows of the lease table."""
        for lease in leases:
            self.dynamodb.put_item(TableName=table or self.lease_table, Item=lease.to_item())

    def change(self, change: Callable[[Any], object]) -> None:
        """Change the streams of the manifest."""
        document = json.loads(self.manifest.read_text())
        change(document["streams"])
        self.manifest.write_text(json.dumps(document))

    def consumer(self, name: str, stream: str = "orders") -> str:
        """Register another consumer of a stream."""
        made = self.kinesis.register_stream_consumer(StreamARN=self.arn(stream), ConsumerName=name)
        return str(made["Consumer"]["ConsumerARN"])

    def split(self) -> None:
        """Split the first shard of `orders` in two halves of the hash keys."""
        first = self.shards()[0]["ShardId"]
        self.kinesis.split_shard(StreamName=self.streams["orders"], ShardToSplit=first, NewStartingHashKey=str(2**127))
        self.wait_active()

    def measured(self, metric: str, value: float, consumer: str = "lake") -> None:
        """Have CloudWatch show a metric of a consumer of `orders`."""
        dimensions = {"StreamName": self.streams["orders"], "ConsumerName": consumer}
        named = [{"Name": name, "Value": each} for name, each in dimensions.items()]
        self.aws.client("cloudwatch").put_metric_data(
            Namespace="AWS/Kinesis", MetricData=[{"MetricName": metric, "Dimensions": named, "Value": value}]
        )

    def calls(self, since: int = 0) -> list[Any]:
        """The calls of Kinesis, from one of them on."""
        return list(self.aws.kinesis.trace)[since:]


@dataclass
class Cli:
    """The command line, and worlds to run it in."""

    run: Callable[..., Result]
    switch: Switch
    world: Callable[..., Here]

    def refuse(self, *operations: str) -> None:
        """Take the permission for some operations, instead of those before."""
        self.switch.faults = Failing(**dict.fromkeys(operations, "AccessDeniedException"))


@contextmanager
def process(*arguments: object, program: Iterable[str] = MAIN, **options: Any) -> Iterator[Any]:
    """The command line in a process of its own, with pipes for its output, which is gone afterwards."""
    command = [*program, *map(str, arguments)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": os.environ}
    with subprocess.Popen(command, **{**pipes, **options}) as running:
        try:
            yield running
        finally:
            running.kill()


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
def world(aws: LocalAws, tmp_path: Path, run: Callable[..., Result]) -> Callable[..., Here]:
    """Makes a world; arguments as `make_world`."""

    def make(streams: Any = ("orders",), **create: Any) -> Here:
        return Here(**vars(make_world(aws, tmp_path, streams, **create)), command=run)

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


@pytest.fixture
def here(world: Callable[..., Here]) -> Here:
    """A world with one stream of one shard."""
    return world()


@pytest.fixture
def cli(run: Callable[..., Result], world: Callable[..., Here], switch: Switch) -> Cli:
    return Cli(run, switch, world)
