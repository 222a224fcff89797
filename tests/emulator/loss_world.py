"""Random worlds in which records can be lost: retention passes unread records, shards split and merge, starts name some of the shards,
sinks are down for hours, processes are killed and frozen, tables and checkpoints are restored, streams come and go.

A stream keeps its records for an hour in most worlds, and the library's limits say so: 26 hours with the sink down take 65 minutes then.
Spark's part is played as Spark 4.0 and 4.3 play it: `StreamPlanner` gets its calls in their order, with an offset log and a commit log.
"""

from __future__ import annotations

import copy
import json
import logging
import random as standard_random
import re
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import md5
from itertools import count
from math import floor, inf
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from kinesis_efo.cluster import remote_fetcher
from kinesis_efo.errors import FetcherUnreachableError, KinesisEfoError
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner import run_link, run_process, shared_run
from kinesis_efo.positions import Mark
from kinesis_efo.records.decoder import decode
from kinesis_efo.run import clients
from kinesis_efo.run.messages import FINISHED, FinishedBatches
from kinesis_efo.spark import stream_planner
from kinesis_efo.spark.partitions import KinesisPartition
from kinesis_efo.spark.stream_planner import START, StreamPlanner
from kinesis_efo.tasks.ranges import RangeReader
from kinesis_efo_local import AwsError, NoFaults, Request, Reset
from kinesis_efo_local.writing import PutRecord, put_record
from kinesis_efo_local.wrong_answers import WrongAnswers
from tests.emulator.loss_oracle import (
    CLOCK_SECONDS,
    TOGETHER_SECONDS,
    Begin,
    Broken,
    Membership,
    QueryOracle,
    Record,
    Report,
    Row,
    Shard,
    StreamFacts,
    single,
)
from tests.emulator.machine import BEGAN, Machine, SimulatedProcess, Threads, Time
from tests.emulator.program import (
    ProgramWorld,
    SparkProgram,
    TaskClient,
    TaskPlanner,
    WatchedClient,
    in_virtual_time,
)
from tests.emulator.remote import Fetchers, with_fetchers
from tests.support.aggregates import aggregated
from tests.support.lease_store import MemoryLeaseStore, Network

HOUR: Final = 3600.0
_AGAIN: Final = 0.08
_REFUSED: Final = 0.15
_CUTS: Final = 0.06
_OUTAGES: Final = 0.15
_STUCK: Final = 0.1
_TRIMMED: Final = 0.15
_UNLISTED: Final = 0.05
_HIDDEN: Final = 0.03
_EXPIRES: Final = 0.1
_OVERTAKEN: Final = 0.03
_LATE_ROWS: Final = 0.03
_EXPIRED: Final = "expired"
_SILENT: Final = 0.02
_MANY: Final = 10_000
_NOTHING_GONE: Final = 0.02
"""How often records may expire where none came for minutes: with a day's retention and records each second, that is rare."""

_KINESIS: Final = ("ListShards", "GetRecords", "GetShardIterator", "SubscribeToShard", "DescribeStreamSummary")
_TABLE: Final = ("create", "update", "scan")
ALL: Final = "*"
_REPLACED: Final = (
    "StreamReplacedError", "StreamNotFoundError", "ConsumerNotFoundError", "RetriesExhaustedError", "InvalidRequestError"
)  # fmt: skip
"""What a query may fail with when its stream was created again."""

_OUT: Final = ("RetriesExhaustedError", "FetcherError", "TableUnavailableError", "LeaseLostError", "SubscriptionError")
"""What a query may fail with if one operation fails, or answers are stuck, for longer than `retryTimeout`."""

_LONGEST_TRIGGER: Final = 600.0

_FURTHER: Final = re.compile(r"checkpoint had been further by (\d+) micro-batch")
_SILENCE: Final = re.compile("no event for|Connection reset")
_BY_OUTAGE: Final = re.compile("an outage|throttled|Rate exceeded|had no records|starting or ending")
_ACCEPT: Final = re.compile(r"option 'acceptDataLoss' to (\{.*?\}\})")


@dataclass
class Outcome:
    """The outcome of a world.

    Attributes:
        records: Number of records that were accepted.
        rows: Number of rows that all queries have committed.
        lost: Number of records that were lost, and reported.
        moves: How often each move happened.
        errors: How often queries failed with each error.
        exceptions: How often a loss was reported where nothing was lost, by reason.
        drawn: The dimensions of the world that are not the usual ones, once each.
    """

    records: int = 0
    rows: int = 0
    lost: int = 0
    moves: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    exceptions: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)


# -- Kinesis


class Faults(NoFaults):
    """Says now and then that a new shard does not exist, and lets subscriptions go silent until the client's read times out."""

    def __init__(self) -> None:
        self.world: LossWorld
        self._silent: dict[Any, float] = {}

    async def before(self, request: Request) -> None:
        """See `NoFaults`."""
        if self.world.refused and request.operation in ("GetShardIterator", "GetRecords"):
            raise AwsError("AccessDeniedException", f"User is not authorized to perform: kinesis:{request.operation}")
        if self.world.fails_from.get(request.operation, inf) <= self.world.now < self.world.fails_until:
            raise AwsError("InternalFailure", "an outage", 500)
        if request.params.get("ShardIterator") == _EXPIRED:
            raise AwsError("ExpiredIteratorException", "Iterator expired")
        if request.operation in ("SubscribeToShard", "GetShardIterator"):
            self.world.check_known(request.params["ShardId"], str(request.params))

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Any]:
        """See `NoFaults`."""
        world = self.world
        if subscription in self._silent or (world.silent is not None and world.silent.random() < _SILENT):
            since = self._silent.setdefault(subscription, world.now)
            return [Reset()] if world.now - since > 36 else []
        young = subscription.shard.parents and world.now - subscription.shard.created_at < 2 * world.unknown_seconds
        return [frame, Reset()] if young and subscription.events and world.random.random() < 0.3 else [frame]


class Client(WatchedClient):
    """A client to which Kinesis lists shards as they were some seconds ago."""

    async def _call(self, operation: str, params: dict[str, Any]) -> Any:
        self._world.operations[operation] += 1  # type: ignore[attr-defined]
        answer = await super()._call(operation, params)
        if operation == "ListShards" and not params.get("ShardFilter"):
            self._world.age(answer, params)  # type: ignore[attr-defined]
        if operation == "GetRecords" and self._world.expires() and (records := json.loads(answer)["Records"]):  # type: ignore[attr-defined]
            # On its way to these records, the iterator expires.
            lag = self._world.now - records[0]["ApproximateArrivalTimestamp"]  # type: ignore[attr-defined]
            body = {"Records": [], "NextShardIterator": _EXPIRED, "MillisBehindLatest": round(lag * 1000) + 1000}
            return json.dumps(body).encode()
        if operation == "GetRecords" and self._world.is_stuck:  # type: ignore[attr-defined]
            body = json.loads(answer)
            if not body["Records"] and body.get("NextShardIterator"):
                body |= {"NextShardIterator": params["ShardIterator"], "MillisBehindLatest": 3000}
                return json.dumps(body).encode()
        return answer


class StuckAnswers(WrongAnswers):
    """Answers that claim that there is more, from the last record on."""

    gives_last_number = True

    def __init__(self) -> None:
        super().__init__((), 0.0, 0, Random(0))

    def lag(self, millis: int) -> int:
        """See `WrongAnswers`."""
        return millis or 3000


class LossRows(MemoryLeaseStore):
    """The lease table. `moved` is called with the key of a shard's row, its position before, and its new one."""

    def __init__(self, moved: Callable[[str, int, int], None]) -> None:
        super().__init__()
        self._moved = moved
        self.moved_by_others: Callable[[], bool] = lambda: False

    def _store(self, key: str, item: Any) -> None:
        before, after = _number_of(self.items.get(key)), _number_of(item)
        record = (item or {}).get("checkpoint", {}).get("S", "")
        # A KCL application goes on behind the record.
        fits = not record.isdecimal() or after is None or int(record) <= after
        assert fits or self.moved_by_others(), f"row {key} is at {after}, behind {record}"
        super()._store(key, item)
        if after is not None and after > (before or 0):
            self._moved(key, before or 0, after)


def _hash_of(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest())


def _number_of(item: Any) -> int | None:
    """The number up to which a shard was processed, as a row says."""
    row = item or {}
    text = row.get("continuation", row.get("checkpoint", {})).get("S", "")
    return int(text) if text.isdecimal() else None


class LossWorld(ProgramWorld):
    """Kinesis, a lease table, and what is true of them."""

    def __init__(self, machine: Machine, directory: Path, random: Random, settings: dict[str, Any]) -> None:
        faults = Faults()
        super().__init__(machine, directory, random, 1, faults, settings)
        faults.world = self
        self.settings = settings
        self.retention = float(settings["retention_seconds"])
        self.limits = replace(self.limits, shortest_retention=min(self.retention, 24 * 3600.0))
        self.row_moved: Callable[[str, int, int], None] = lambda *_: None
        self.table = LossRows(lambda *move: self.row_moved(*move))  # type: ignore[assignment]
        self.kinesis.call("DeleteStream", StreamName="dev-orders", EnforceConsumerDeletion=True)
        self.kinesis.state.settle()
        self.refs: dict[str, StreamRef] = {}
        self.facts: dict[str, StreamFacts] = {}
        self.numbers: Counter[tuple[str, str]] = Counter()
        self.reports: list[Report] = []
        self.operations: Counter[str] = Counter()
        self.lease_table = "leases"
        self.clients: dict[SimulatedProcess, WatchedClient] = {}
        self.hosting: dict[SimulatedProcess, Any] = {}
        self.calls = 0
        self.at_call: dict[int, Callable[[], None]] = {}
        self.list_age = 0.0
        self.unknown_seconds = 0.0
        self.refused = False
        self.fails_from: dict[str, float] = {}
        self.fails_until = 0.0
        self.table_fails: frozenset[str] = frozenset()
        self.is_stuck = False
        self.expires: Callable[[], bool] = lambda: False
        self.silent: Random | None = None
        self._wrong = self.kinesis.state.wrong
        self.aggregates: Random | None = None

    @property
    def now(self) -> float:
        """Epoch seconds."""
        return BEGAN + self.machine.now

    def call(self, *args: Any, **more: Any) -> Any:
        """See `ProgramWorld`; something may happen before or after a message."""
        self.calls += 1
        self.machine.sleep(0.02)
        if (before := self.at_call.pop(self.calls, None)) is not None:
            before()
        answer = super().call(*args, **more)
        if (after := self.at_call.pop(-self.calls, None)) is not None:
            after()
        return answer

    # -- streams

    def recreate(self, name: str, shards: int) -> None:
        """Delete a stream, and create it again."""
        self.kinesis.call("DeleteStream", StreamName=f"dev-{name}", EnforceConsumerDeletion=True)
        self.kinesis.state.settle()
        for key in [key for key in self.numbers if key[0] == name]:
            del self.numbers[key]
        self.create(name, shards)

    def create(self, name: str, shards: int) -> None:
        """Create a stream."""
        stream = f"dev-{name}"
        self.kinesis.call("CreateStream", StreamName=stream, ShardCount=shards)
        self.kinesis.state.settle()
        arn = self.kinesis.call("DescribeStreamSummary", StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
        consumer = self.kinesis.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName="lake")["Consumer"]
        self.refs[name] = StreamRef(name, stream, arn, consumer["ConsumerARN"])
        self.facts[name] = StreamFacts(self.retention, self.now, self.settings.get("wrong_answers_in_a_row", 1) > 2)
        self.learn(name)

    def manifest_of(self, names: Sequence[str], *, polled: bool) -> Manifest:
        """The manifest of a query."""
        refs = {name: self.refs[name] for name in names}
        if polled:
            refs = {name: replace(ref, consumer_arn=None) for name, ref in refs.items()}
        streams = {name: f"dev-{name}" for name in self.refs}
        return Manifest("lake", "dev", "us-east-1", self.lease_table, refs, "m.json", streams)

    def write(self, name: str, key: str, size: int) -> None:
        """Put a record."""
        import base64

        self.kinesis.state.settle()
        number = self.numbers[name, key]
        data = f"{number}:{'x' * size}".encode()
        hash_key = None
        if self.aggregates is not None:
            (parcel,) = aggregated([(key, data)])
            data, hash_key = parcel["Data"], self._put_astray(name, key)  # type: ignore[assignment]
        text = base64.b64encode(data).decode()
        answer = put_record(self.kinesis.state, PutRecord(text, key, hash_key, stream_name=f"dev-{name}"))
        self.numbers[name, key] += 1
        facts = self.facts[name]
        record = Record(
            name, answer["ShardId"], int(answer["SequenceNumber"]), key, number, int(self.now * 1000) / 1000
        )
        facts.shards[record.shard].records.append(record)

    def write_to_all(self, name: str) -> None:
        """Put a record into each open shard."""
        for shard in self.kinesis.state.streams[f"dev-{name}"].open_shards:
            first, last = shard.hash_range
            keys = (f"first{number}" for number in count())
            self.write(name, next(key for key in keys if first <= _hash_of(key) <= last), 10)

    def _put_astray(self, name: str, key: str) -> str:
        """The hash key of an aggregate. Right after a reshard, it goes to a shard that is not its keys' first, as the KPL's do."""
        import base64

        assert self.aggregates is not None
        shards = self.kinesis.state.streams[f"dev-{name}"].open_shards
        own = _hash_of(key)
        others = [shard for shard in shards if not shard.hash_range[0] <= own <= shard.hash_range[1]]
        young = [shard for shard in others if shard.parents and self.now - shard.created_at < 120]
        if young and self.aggregates.random() < 0.7:
            (parcel,) = aggregated([(key, b"-1:astray")])
            text = base64.b64encode(parcel["Data"]).decode()  # type: ignore[arg-type]
            astray = str(self.aggregates.choice(young).hash_range[0])
            put_record(self.kinesis.state, PutRecord(text, key, astray, stream_name=f"dev-{name}"))
        return str(own)

    def reshard(self, name: str, random: Random) -> bool:
        """Split or merge shards."""
        kinesis, stream = self.kinesis, f"dev-{name}"
        shards = kinesis.state.streams[stream].open_shards
        try:
            if len(shards) > 1 and (random.random() < 0.45 or len(shards) > 5):
                index = random.randrange(len(shards) - 1)
                one, other = shards[index : index + 2]
                kinesis.call("MergeShards", StreamName=stream, ShardToMerge=one.id, AdjacentShardToMerge=other.id)
            else:
                shard = random.choice(shards)
                middle = str(sum(shard.hash_range) // 2 + 1)
                kinesis.call("SplitShard", StreamName=stream, ShardToSplit=shard.id, NewStartingHashKey=middle)
        except AwsError as refused:
            if refused.code not in ("ResourceInUseException", "InvalidArgumentException", "LimitExceededException"):
                raise
            return False
        self.learn(name)
        return True

    def reshard_most(self, name: str, random: Random) -> None:
        """Split most shards, or merge most if there are many."""
        kinesis, stream = self.kinesis, f"dev-{name}"
        shards = kinesis.state.streams[stream].open_shards
        if len(shards) > 2:
            for one, other in zip(shards[::2], shards[1::2], strict=False):
                kinesis.call("MergeShards", StreamName=stream, ShardToMerge=one.id, AdjacentShardToMerge=other.id)
        else:
            for shard in shards:
                if random.random() < 0.9:
                    middle = str(sum(shard.hash_range) // 2 + 1)
                    kinesis.call("SplitShard", StreamName=stream, ShardToSplit=shard.id, NewStartingHashKey=middle)
        self.learn(name)

    def learn(self, name: str) -> None:
        """Take over the shards that a stream has now."""
        facts = self.facts[name]
        for shard in self.kinesis.state.streams[f"dev-{name}"].shards.values():
            known = facts.shards.setdefault(shard.id, Shard(shard.parents, self.now))
            known.closed = shard.closed_at

    # -- what Kinesis says

    def client(self, process: SimulatedProcess) -> WatchedClient:
        """See `ProgramWorld`."""
        client = self.clients[process] = Client(self, process)
        return client

    def network(self, process: SimulatedProcess) -> Network:
        """See `ProgramWorld`."""
        network = super().network(process)
        network.refused = self.table_fails
        return network

    def fail_one(self, operation: str, seconds: float) -> None:
        """Let one operation of Kinesis, or of the lease table, fail for some seconds; 0: none any more."""
        self.fails_from, self.fails_until = {operation: self.now}, self.now + seconds
        self.table_fails = frozenset({operation} if seconds else ())
        for network in self.networks:
            network.refused = self.table_fails

    def stick(self, *, yes: bool) -> None:
        """Let answers without records claim that there are some, and not move; or no more."""
        self.is_stuck = yes
        self.kinesis.state.wrong = StuckAnswers() if yes else self._wrong

    def check_may_read(self, process: SimulatedProcess, operation: str) -> None:
        """That is another search's."""

    def check_known(self, shard: str, request: str) -> None:
        """Say that a shard does not exist if it is new."""
        for name, facts in self.facts.items():
            known = facts.shards.get(shard)
            new = known is not None and known.parents and self.now - known.created < self.unknown_seconds
            if f"dev-{name}" in request and new and self.random.random() < 0.7:
                raise AwsError("ResourceNotFoundException", f"Shard {shard} in stream dev-{name} does not exist")

    def age(self, answer: dict[str, Any], params: dict[str, Any]) -> None:
        """Let a list of shards be some seconds old."""
        since = self.now - self.list_age
        name = next((name for name, ref in self.refs.items() if params.get("StreamARN") == ref.stream_arn), None)
        if name is None or not self.list_age:
            return
        facts, shown = self.facts[name], []
        for each in answer["Shards"]:
            known = facts.shards.get(each["ShardId"])
            if known is not None and known.parents and known.created > since:
                continue
            if known is not None and known.closed is not None and known.closed > since:
                begin = {"StartingSequenceNumber": each["SequenceNumberRange"]["StartingSequenceNumber"]}
                shown.append({**each, "SequenceNumberRange": begin})
            else:
                shown.append(each)
        answer["Shards"] = shown

    # -- the lease table

    def rows(self, name: str) -> dict[str, Begin]:
        """Where the rows of a stream say that it was read to, as texts of positions."""
        found = {}
        for key, item in self.table.items.items():
            stream, _, shard = key.partition(":")
            if stream != name or not shard.startswith("shardId"):
                continue
            # The number of the last record is for a KCL application, which may read some records again.
            text = item.get("continuation", item["checkpoint"])["S"]
            if text.isdecimal():
                text = f"AFTER:{text}"
            elif text == "AT_TIMESTAMP":
                text = f"AT_TIMESTAMP:{item['checkpointTimestamp']['N']}"
            found[shard] = Begin(text)
        return found


# -- Spark


@dataclass
class Checkpoint:
    """Spark's offset log and commit log of one query, and the rows in its sink by number of micro-batch."""

    offsets: dict[int, dict[str, Any]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    rows: dict[int, list[Row]] = field(default_factory=dict)


class SparkQuery:
    """A query: its checkpoint and its sink, which outlive the processes that read for it.

    Attributes:
        scans: How often each micro-batch scans the source.
        trigger: Seconds between two triggers.
        slow: Seconds that the sink takes for a micro-batch.
        down_until: The sink is down until then.
        held_until: The query is not started before then.
        over: Whether it has ended for good.
        waits_since: Since when it waits for the library; None while it does not.
        report: What the driver's listener does when Spark has finished a micro-batch.
        known_at: When the run has learned that a row of a shard is committed, at the latest.
        when_added: Called when a stream is in the log for the first time, beside others.
        asked: Its process and that of its run when its last micro-batch was planned, and whether they had planned one before.
        served: Both if they were still there when it was committed.
        known_by: Both when the last micro-batch was planned.
        told: When the run has learned that a micro-batch is committed, and its number.
        ends_first: What ends in the middle of its first micro-batch: its planner, its run, or its program; None if nothing does.
    """

    def __init__(
        self,
        world: LossWorld,
        name: str,
        random: Random,
        streams: Sequence[str],
        options: dict[str, str],
        spark: tuple[int, int],
    ) -> None:
        self.world = world
        self.name = name
        self.random = random
        self.spark = spark
        self.given = {"manifest": "m.json", **options}
        self.names = list(streams)
        self.starts = count(1)
        self.checkpoint = Checkpoint()
        self.accepted: dict[tuple[str, str], str] = {}
        # One warning counts for all queries of a run that go on without what is lost.
        self.oracle = QueryOracle(
            name,
            world.reports,
            lambda *shard: shard in self.accepted or self.given["failOnDataLoss"] == "false",
        )
        self.scans = 1
        self.trigger = self.slow = 0.0
        self.down_until = self.held_until = -inf
        self.running: SimulatedProcess | None = None
        self.stopping = self.over = False
        self.waits_since: float | None = None
        self.moved_at = world.machine.now
        self.begun_at = world.now
        self.error: KinesisEfoError | None = None
        self.program: LossProgram | None = None
        self.ends_at_tips = self.once = False
        self.ends_before = inf
        self.ends_after: dict[tuple[str, str], int] = {}
        self.ends_early = False
        self.busy_until = self.ended_at = -inf
        self.tell: Callable[[str], None] = lambda _: None
        self.beside_others: Callable[[], bool] = lambda: False
        self.report: Callable[[Mark], None] = lambda _: None
        self.unlucky = 0.0
        self.logged: dict[int, float] = {}
        self.spark_run = ""
        self.started: dict[str, str] = {}
        self.rows_at_start: dict[str, dict[str, Begin]] = {}
        self.added: dict[str, float] = {}
        self.expects_word: tuple[float, int] | None = None
        self.commits_since = 0
        self.ends_first: Callable[[], None] | None = None
        self.known_at: dict[tuple[str, str], float] = {}
        self.when_added: Callable[[], None] | None = None
        self.asked: Any = None
        self.served: Any = None
        self.known_by: Any = None
        self.told: list[tuple[float, int]] = []
        self.snapshots: list[tuple[float, Checkpoint, dict[str, Membership]]] = []

    @property
    def options(self) -> SourceOptions:
        """Its options, parsed."""
        return SourceOptions.parse(self.given)

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""
        return self.world.manifest_of(self.names, polled=self.given.get("readMode") == "polling")

    def failed(self, error: KinesisEfoError) -> None:
        """Its process has failed."""
        self.error = error

    # -- what Spark does

    def run(self, planner: StreamPlanner) -> None:
        """What Spark does with one start of the query."""
        log, machine = self.checkpoint, self.world.machine
        self.begun_at = self.world.now
        self.rows_at_start = {name: self.world.rows(name) for name in self.names}
        self.waits_since = machine.now
        old = self.spark < (4, 2)
        batch, committed, planned = 0, None, None
        planner.available_now = self.ends_at_tips
        if log.offsets:
            batch = max(log.offsets)
            if old:
                planner.tasks(_json(log.offsets[batch]), _json(log.offsets[batch]))
            if batch in log.commits:
                batch, committed = batch + 1, log.offsets[batch]
            else:
                committed, planned = log.offsets.get(batch - 1), log.offsets[batch]
        unfinished = planned
        while not self.stopping:
            if planned is None:
                end = self._plan(planner, committed, batch, old=old)
                if batch and end == committed:
                    if self.ends_at_tips or self.once:
                        self._check_tips()
                        return
                    self._pause(1.0)
                    continue
                self._log(batch, end, committed)
                planned = end
                if batch:
                    planner.commit()
            start = _json(START) if committed is None else committed
            self._execute(planner, batch, start, planned)
            log.commits.add(batch)
            if "mark" in planned:
                self.report(Mark.parse(planned["mark"]))
            batch, committed, fresh, planned = batch + 1, planned, planned is not unfinished, None
            if self.once:
                # Spark repeats a micro-batch, or runs a new one.
                if fresh:
                    self._check_tips()
                return
            self._pause(self.trigger)

    def _check_tips(self) -> None:
        now = self.world.now
        if any(member.facts.lies for member in self.oracle.streams.values()):
            return
        for stream, member in self.oracle.streams.items():
            if self.added.get(stream) == self.begun_at:
                continue  # it is read with the next start
            for record in self.oracle.unread(stream, before=self.begun_at - 5):
                named = self.ends_after.get((stream, record.shard), -1)
                owed = record.sequence <= named if self.ends_after else record.arrival < self.ends_before
                if owed and member.facts.trimmed_at(record) > now:
                    raise Broken(
                        f"{self.name} has ended at the tips, and has not read {record.key}:{record.number} of {stream}, {record.shard}, "
                        f"which came {self.begun_at - record.arrival:.0f} s before it began"
                    )
        if not self.beside_others():  # the row of an idle shard has the position of one query
            # Without the driver's reports, only the next run writes what this one has read.
            proven = self.begun_at if "session.listens" in self.given else self.ended_at
            self.oracle.has_ended(self.names, proven, now)
            self.ended_at = self.begun_at

    def _plan(
        self, planner: StreamPlanner, committed: dict[str, Any] | None, batch: int, *, old: bool
    ) -> dict[str, Any]:
        if old:
            return _json(planner.latest(None, once=False))  # Spark 4.0 does not say which trigger it is
        start = _json(START) if committed is None else committed
        return _json(planner.latest(_json(start), once=self.once))

    def _log(self, batch: int, end: dict[str, Any], before: dict[str, Any] | None) -> None:
        for name in end["streams"]:
            if before is None or name not in before["streams"]:
                self.oracle.begins(name, self.membership(name, new=before is not None))
                if before is not None:
                    self.added[name] = self.begun_at
        for name in () if before is None else before["streams"].keys() - end["streams"].keys():
            self.oracle.leaves(name)
        self.oracle.tells(self.world.now)
        for stream, member in self.oracle.streams.items():
            for shard in member.read:
                self.known_at.setdefault((stream, shard), self.world.now)
        self.checkpoint.offsets[batch] = end
        self.logged[batch] = self.world.now
        self.tell(f"{self.name} logs {batch}: {_short(end)}")
        if self.when_added is not None and before is not None and end["streams"].keys() - before["streams"].keys():
            when, self.when_added = self.when_added, None
            when()
        # Before its first poll, a run does not know where a query is.
        if self.known_by != (self.running, self.host):
            self.told = []
        elif self.checkpoint.commits:
            self.told.append((self.world.now, max(self.checkpoint.commits)))
        self.asked = self.running, self.host, self.known_by == (self.running, self.host)
        self.known_by = self.running, self.host

    def membership(self, name: str, *, new: bool) -> Membership:
        """Where a stream that is new to the query starts, as the options say."""
        world = self.world
        given = self.started or self.given
        text = given.get("newStreamPosition", "TRIM_HORIZON") if new else given["startingPosition"]
        times = self.begun_at, world.now
        if text == "LEASES":
            rows = world.rows(name)
            if not rows and not self.rows_at_start[name] and new:
                return Membership(world.facts[name], Begin("TRIM_HORIZON"), {}, *times)
            return Membership(world.facts[name], Begin("MAY"), self.rows_at_start[name], *times, later=rows)
        others, named = text, {}
        if text.startswith("{"):
            each = json.loads(text)
            mine = each.get(name, each.get(ALL, "LATEST"))
            others = mine.get(ALL, each.get(ALL, "LATEST")) if isinstance(mine, dict) else mine
            named = {shard: Begin(at) for shard, at in mine.items() if shard != ALL} if isinstance(mine, dict) else {}
        early = TOGETHER_SECONDS if self.beside_others() else CLOCK_SECONDS
        return Membership(world.facts[name], Begin(others), named, *times, early=early)

    def _execute(self, planner: StreamPlanner, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        log, machine, random = self.checkpoint, self.world.machine, self.random
        if random.random() < self.unlucky:
            self.kill_run()
        plans = [planner.tasks(_json(start), _json(end)) for _ in range(self.scans)]
        if random.random() < 0.5:
            self._sink(0.0)
        if random.random() < self.unlucky:
            self.kill_run()
        again = [plan for plan in plans if random.random() < 0.1]
        results = [self._read(plan) for plan in plans]
        if batch == 0 and self.ends_first is not None:
            ends_first, self.ends_first = self.ends_first, None
            self.tell(f"{self.name} is in the middle of its first micro-batch")
            ends_first()
            machine.sleep(1.0)
        rows = log.rows.get(batch, results[0])
        for result in results:
            self._compare(rows, result)
        self._sink(self.slow)
        for plan in again:
            self._compare(rows, self._read(plan))
        log.rows[batch] = rows
        self.oracle.committed(rows, self.world.now)
        self.served = (self.running, self.host) if self.asked == (self.running, self.host, True) else None
        if rows:
            self.moved_at = machine.now
        self.tell(f"{self.name} commits {batch}: {len(rows)} rows")
        self._check_word()

    def _check_word(self) -> None:
        """Check that it was said at the start that the checkpoint went back."""
        self.commits_since += 1
        if self.expects_word is None or self.commits_since < 2:
            return
        (since, was), self.expects_word = self.expects_word, None
        least = was - max(self.checkpoint.offsets)
        if least <= 0:
            return  # by now it is further than before
        said = [_FURTHER.search(report.text) for report in self.world.reports if report.at >= since]
        if not any(each is not None and int(each[1]) >= least for each in said):
            raise Broken(
                f"{self.name}: it was not said that its checkpoint, which was restored {self.world.now - since:.0f} s ago, had been further "
                f"by {least} micro-batches"
            )

    def _sink(self, seconds: float) -> None:
        machine, began = self.world.machine, self.world.machine.now
        self._pause(max(seconds, self.down_until - machine.now))
        if machine.now - began > 150:
            self.busy_until = machine.now
        self.moved_at += machine.now - began  # time in the sink is not the library's

    def _pause(self, seconds: float) -> None:
        self.waits_since = None
        if seconds > 0:
            self.world.machine.sleep(seconds)
        self.waits_since = self.world.machine.now

    def _compare(self, rows: list[Row], others: list[Row]) -> None:
        if [row[:5] for row in rows] == [row[:5] for row in others]:
            return
        apart = {row[:5] for row in rows} ^ {row[:5] for row in others}
        now = self.world.now
        for stream, shard, sequence, key, number in apart:
            facts = self.world.facts[stream]
            record = next(each for each in facts.shards[shard].records if each.sequence == sequence)
            if facts.trimmed_at(record) > now:
                raise Broken(
                    f"{self.name}: record {key}:{number} of {stream}, {shard}, {sequence}, is in one scan of a micro-batch and not in another"
                )

    def _read(self, plan: Sequence[KinesisPartition]) -> list[Row]:
        rows: list[Row] = []
        for number, partition in enumerate(plan):
            if self.random.random() < 0.05:
                self._attempt(partition, number, stop_after=self.random.randrange(3))
            for _ in range(3):
                # Spark tries a failed task again.
                with suppress(FetcherUnreachableError):
                    rows += self._attempt(partition, number)
                    break
                self.world.machine.sleep(10.0)
            else:
                rows += self._attempt(partition, number)
        return rows

    def _attempt(self, partition: KinesisPartition, number: int, stop_after: int | None = None) -> list[Row]:
        world, machine = self.world, self.world.machine
        reader = RangeReader(
            partition.secret, partition.planner, self.options.patience, query=partition.query,
            fetcher_at=partial(TaskClient, world, partition.query), planner_at=partial(TaskPlanner, world),
            now=lambda: machine.now, sleep=machine.sleep,
        )  # fmt: skip
        rows: list[Row] = []
        events = 0

        def seen(payloads: Iterator[memoryview]) -> Iterator[memoryview]:
            nonlocal events
            for payload in payloads:
                events += 1
                if stop_after is not None and events > stop_after:
                    raise _Stopped
                yield payload

        try:
            for (key, after, through, _), payloads in reader.read(partition.ranges, partition.address):
                hashes = partition.hash_ranges.get(key)
                for batch in decode(
                    seen(payloads), key, after, through, deaggregate=partition.deaggregate, hash_range=hashes
                ):
                    rows += [
                        Row(
                            row["stream"], row["shardId"], int(row["sequenceNumber"]), row["partitionKey"],
                            int(row["data"].split(b":", 1)[0]), number,
                        )
                        for row in batch.to_pylist()
                    ]  # fmt: skip
        except _Stopped:
            pass
        return rows

    @property
    def host(self) -> SimulatedProcess | None:
        """The process that has the run of its program; a run that has failed moves no rows."""
        running = (
            process for process, runtime in self.world.hosting.items() if runtime.whole.run.failure.error is None
        )
        return next((process for process in running if process.lives), None)

    def reached(self, stream: str, shard: str) -> tuple[int, int] | None:
        """The numbers up to which it has committed a shard: that of which its run has known for a minute, and that of now. None if the run
        does not know one."""
        log = self.checkpoint
        told = [batch for at, batch in self.told if at < self.world.now - 60]
        if self.served is None or self.served != (self.running, self.host) or not log.commits or not told:
            return None
        found = [log.offsets.get(batch, {"streams": {}}) for batch in (told[-1], max(log.commits))]
        known, now = (each["streams"].get(stream, {}).get(shard, "") for each in found)
        if not (known.startswith("AFTER:") and now.startswith("AFTER:")):
            return None
        return int(known.removeprefix("AFTER:")), int(now.removeprefix("AFTER:"))

    def kill_run(self) -> None:
        """Kill the run of its program."""
        for process in list(self.world.hosting):
            self.world.machine.kill(process)

    # -- what an operator does

    def keep(self) -> None:
        """Copy the checkpoint and what its sink has."""
        if self.checkpoint.offsets:
            known = {name: copy.copy(member) for name, member in self.oracle.streams.items()}
            for member in known.values():
                member.read, member.next = dict(member.read), copy.copy(member.next)
                member.numbers, member.missed = dict(member.numbers), list(member.missed)
                member.read_at, member.read_untold = list(member.read_at), list(member.read_untold)
            log = self.checkpoint
            self.snapshots.append(
                (self.world.now, Checkpoint(dict(log.offsets), set(log.commits), dict(log.rows)), known)
            )

    def accept(self, positions: dict[str, dict[str, str]]) -> None:
        """Accept one loss."""
        for stream, shards in positions.items():
            for shard, at in shards.items():
                self.accepted[stream, shard] = at
        known: dict[str, dict[str, str]] = {}
        for (stream, shard), at in self.accepted.items():
            known.setdefault(stream, {})[shard] = at
        self.given["acceptDataLoss"] = json.dumps(known)

    def copied(self, name: str) -> SparkQuery:
        """A query with a copy of the checkpoint and of the sink."""
        other = SparkQuery(self.world, name, Random(self.random.random()), self.names, dict(self.given), self.spark)
        other.accepted.update(self.accepted)
        self.keep()
        _, other.checkpoint, other.oracle.streams = self.snapshots.pop()
        for name in ("catchUp", "endingPosition"):
            other.given.pop(name, None)
        other.scans, other.trigger, other.slow = self.scans, self.trigger, self.slow
        return other

    @property
    def is_unfinished(self) -> bool:
        """Whether the last micro-batch in the log is not committed."""
        log = self.checkpoint
        return bool(log.offsets) and max(log.offsets) not in log.commits

    @property
    def repeats_what_it_wrote(self) -> bool:
        """Whether the rows of its unfinished micro-batch are in its sink, which Spark does not know."""
        return self.is_unfinished and max(self.checkpoint.offsets) in self.checkpoint.rows

    def restore(self, *, certain: bool = False) -> None:
        """Go back to a copy of the checkpoint, with a sink that has as much. `certain`: it has to be noticed."""
        _, log, known = self.snapshots[0]
        self.snapshots = []
        was, now = max(self.checkpoint.offsets), max(log.offsets)
        apart = self.checkpoint.offsets[was]["streams"] != log.offsets[now]["streams"]
        # What was planned in the last minute before a kill may not have been noted.
        noted = [
            batch for batch in self.checkpoint.offsets if batch > now and self.logged[batch] < self.world.now - 200
        ]
        # A start that fails at once may have planned before the one that says it.
        self.expects_word = (self.world.now, now + len(noted)) if noted and apart and certain else None
        self.commits_since = 0
        self.checkpoint, self.oracle.streams = log, known


def _short(end: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {shard[-3:]} {at[:6]}{at[-6:]}"
        for name, shards in end["streams"].items()
        for shard, at in shards.items()
    )


class _Stopped(Exception):
    """A task is given up."""


def _json(data: dict[str, Any]) -> dict[str, Any]:
    """As Spark passes it."""
    return json.loads(json.dumps(data))  # type: ignore[no-any-return]


class _Started(NamedTuple):
    """A query as it was started; a run is started for that."""

    name: str
    options: SourceOptions
    manifest: Manifest


class LossProgram(SparkProgram):
    """A driver whose queries are planned by `StreamPlanner`s, with a number of fetchers in other processes (0: none)."""

    def __init__(self, world: LossWorld, name: str, host: str, fetchers: int = 0) -> None:
        super().__init__(world, name, host)
        self._fetchers = fetchers

    def start_fetchers(self, _: Any) -> Any:
        """See `SparkProgram`."""
        return partial(Fetchers, self, self._fetchers) if self._fetchers else None

    def _be_run(self, *args: Any) -> None:
        self.world.hosting = self.hosting  # type: ignore[attr-defined]
        super()._be_run(*args)

    def report(self, query: SparkQuery, mark: Mark) -> None:
        """Tell the runs that Spark has finished a micro-batch, as the driver's listener does."""
        told = msgspec.json.encode(FinishedBatches([mark], query.name, alone=query.scans == 1, run=query.spark_run))

        def tell() -> None:
            self.world.machine.sleep(query.random.random())
            for process, runtime in list(self.hosting.items()):
                if process.lives:
                    with suppress(KinesisEfoError):
                        self.world.call(
                            runtime.address, runtime.secret, lambda service: service.more(FINISHED, told), 5.0
                        )

        self.world.machine.run(self.jvm, tell)

    def _run(self, job: Any, process: SimulatedProcess) -> None:
        started = _Started(job.name, job.options, job.manifest)
        job.started, job.spark_run = dict(job.given), process.name
        planner = StreamPlanner(started.options, started.manifest, partial(self.shared, started))  # type: ignore[arg-type]
        try:
            job.run(planner)
        except KinesisEfoError as error:
            if self.lives:
                job.failed(error)
        finally:
            job.waits_since = None
            job.running = None if job.running is process else job.running
        planner.stop()
        self.world.machine.exit()


# -- scenarios


class Scenario:
    """One scenario.

    Args:
        seed: Determines everything that happens.
        machine: Runs it.
        directory: Where the processes of programs find each other.
    """

    def __init__(self, seed: int, machine: Machine, directory: Path) -> None:
        self.seed = seed
        self.machine = machine
        self.random = random = Random(f"{seed}: losses")
        self.outcome = Outcome()
        self.retention = HOUR
        settings: dict[str, Any] = {
            "retention_seconds": self.retention,
            "idle_event_seconds": random.choice((5.0, 20.0)),
            "subscription_seconds": random.choice((300.0, 900.0)),
            "max_event_records": random.choice((1, 3, 500)),
        }
        if random.random() < 0.2:
            settings |= {
                "wrong_answers": random.choice(("quiet", "quiet", "behind", "last-number", "empty")),
                "wrong_answers_rate": random.choice((0.3, 0.9)),
                "wrong_answers_in_a_row": random.choice((1, 8)),
            }
        if settings.get("wrong_answers") == "quiet":
            # One such answer lets a reader believe that it is at the tip, also at the horizon.
            settings |= {"retention_seconds": 24 * HOUR, "idle_event_seconds": 5.0, "max_event_records": 500}
            if settings["wrong_answers_in_a_row"] > 2:
                settings["wrong_answers_rate"] = 0.9
        if Random(f"{seed} ends within an event").random() < _CUTS:
            settings |= {
                "retention_seconds": 24 * HOUR, "wrong_answers": "quiet", "wrong_answers_rate": 0.9, "wrong_answers_in_a_row": 8,
                "max_event_records": 500, "idle_event_seconds": 5.0,
            }  # fmt: skip
        refused = Random(f"{seed} GetRecords refused")
        if refused.random() < _REFUSED:
            settings["idle_event_seconds"] = 5.0  # as with AWS: a tip is proven within a minute
            if "wrong_answers" not in settings and refused.random() < 0.5:
                settings |= {"retention_seconds": 24 * HOUR, "wrong_answers": "quiet", "wrong_answers_in_a_row": 1}
        # The page says that three such answers count at the tips.
        self.sees_tips = settings.get("wrong_answers_in_a_row", 1) < 3
        self.world = world = LossWorld(machine, directory, Random(random.random()), settings)
        self.names = ["orders", "events"][: random.choice((1, 1, 2))]
        if Random(f"{seed} re-created at once").random() < _AGAIN:
            self.names = ["orders", "events"]
        self.sizes = random.choice(((1, 50), (1, 50), (15_000, 25_000)))
        self.gap = random.choice((20.0, 45.0, 90.0)) if self.sizes[1] < 1_000 else 30.0
        self.keys = [f"key{number}" for number in range(random.randint(1, 8))]
        for name in self.names:
            world.create(name, random.randint(1, 3))
        # Where Kinesis lies, a query should end in the middle of what is buffered, which only newer versions of Spark let it do.
        self.spark = random.choice(((4, 0) if self.sees_tips else (4, 3), (4, 3)))
        stream_planner.SPARK_VERSION = self.spark  # type: ignore[attr-defined]
        self.drawn: set[str] = set()
        self.history()
        self.live = random.choice((1.1, 1.2, 1.7)) * self.retention
        # A task gives a known record up after this time; several readers of a shard share the wrong answers in a row.
        self.retry = 120.0 if self.sees_tips else 600.0
        self.shared = {
            "bufferBytes": "1m" if self.sizes[1] > 1_000 else random.choice(("1m", "8m")),
            "leaseTimeout": "180s",
            "checkpointWritesPerSecond": "1",
            "retryTimeout": f"{self.retry:g}s",
            "readMode": random.choice(("efo", "efo", "polling")),
            "failOnDataLoss": random.choice(("true", "true", "false")),
            "pollingInterval": "10s",
            "metricsExport": "none",
        }
        world.list_age = random.choice((0.0, 0.0, 5.0, 60.0))
        world.unknown_seconds = random.choice((0.0, 0.0, 3.0, 20.0))
        self.drawn |= {f"new shards unknown for {world.unknown_seconds:g} s"} if world.unknown_seconds else set()
        if random.random() < 0.3:
            self.shared["maxShardSkew"] = random.choice(("10s", "60s", "600s"))
        self._widen(seed)
        self.program = LossProgram(world, "program", "here", self.fetchers)
        self.queries = [self._query(f"q{number}") for number in range(random.choice((1, 1, 1, 2, 3)))]
        if self.joins_late is not None:
            if len(self.queries) < 2:
                self.queries.append(self._query("q1"))
            since = world.now - self.joins_late.uniform(0.2, 0.9) * self.retention
            self.queries[0].given["startingPosition"] = f"AT_TIMESTAMP:{int(since * 1000)}"
            self.queries[1].given["startingPosition"] = "LATEST"
        if self.unlisted is not None and len(self.queries) < 2:
            self.queries.append(self._query("q1"))
        if self.begun_again is not None:
            for query in self.queries:
                query.names = [self.names[0]]
        if self.overtaken is not None:
            # While the sink writes a micro-batch, twice as many records come.
            self.queries, query = self.queries[:1], self.queries[0]
            query.scans, query.trigger, query.unlucky = 1, 1.0, 0.0
            query.given.pop("minBytesPerTrigger", None)
            query.given |= {"startingPosition": "TRIM_HORIZON", "maxRecordsPerTrigger": "5"}
            query.held_until, query.slow = (
                machine.now + 1.02 * self.retention,
                self.overtaken.uniform(6.0, 9.0) * self.gap,
            )
        if self.late_rows is not None:
            while len(self.queries) < 2:
                self.queries.append(self._query("q1"))
            self.queries[0].given["maxRecordsPerTrigger"], self.queries[0].trigger = "1", 10.0
            self.queries[1].trigger, self.queries[1].slow = 1.0, 0.0
        world.row_moved = self._check_row
        world.table.moved_by_others = lambda: self.touched  # type: ignore[attr-defined]
        if world.refused:
            # A query that ends asks for the tips beside one that reads.
            if len(self.queries) < 2:
                self.queries.append(self._query("q1"))
            if not (self.queries[1].ends_at_tips or self.queries[1].once):
                self._let_end(self.queries[1])
        for drawn in (self.sticks, self.trims):
            if drawn is not None and not any(query.ends_at_tips or query.once for query in self.queries):
                self._let_end(drawn.choice(self.queries))
        if self.children_expire is not None and self.children_expire.random() < 0.7:
            for query in self.queries:
                query.given["startingPosition"] = self.children_expire.choice(("LATEST", self._timestamp()))
        self.writing = self.disturbing = True
        self.ending = self.is_calm = False
        self.rivals = False
        self.recreated: set[str] = set()
        self.touched = self.failed = False
        self.frozen_until = -inf
        self.outages: list[tuple[float, float]] = []
        self.frozen_since: dict[SimulatedProcess, float] = {}
        self.tables: list[dict[str, Any]] = []
        self.excused = machine.now
        self.checked = 0
        self.story: list[str] = []

    def _widen(self, seed: int) -> None:
        """Draw further dimensions, each from a generator of its own, so that a new one changes only the worlds that have it."""

        def drawn(name: str, probability: float) -> Random | None:
            random = Random(f"{seed} {name}")
            if random.random() >= probability or self.overtaken is not None:
                return None
            self.drawn.add(name)
            return random

        world, shared = self.world, self.shared
        self.overtaken: Random | None = None
        if world.retention == HOUR:
            self.overtaken = drawn("overtaken by the horizon", _OVERTAKEN)
        if self.overtaken is not None:
            world.list_age = world.unknown_seconds = 0.0
            self.sizes, self.gap, self.live = (15_000, 25_000), 20.0, 2.6 * self.retention
            shared |= {"failOnDataLoss": "true", "bufferBytes": "1m"}
        fetchers = drawn("fetchers", 0.15)
        self.fetchers = fetchers.choice((1, 2, 3)) if fetchers is not None else 0
        self.fetchers_end = fetchers
        self.out_of_reach = drawn("fetchers out of reach", 0.4) if fetchers is not None else None
        if shared["readMode"] == "efo" and self.sees_tips and drawn("GetRecords refused", _REFUSED) is not None:
            world.refused = True
        world.aggregates = drawn("strict aggregates", 0.15)
        if world.aggregates is not None:
            shared["deaggregate"] = "strict"
            world.list_age = world.aggregates.choice((5.0, 60.0, 60.0))
        self.first_ends = drawn("first micro-batch ends", 0.25)
        self.waits = drawn("waits for bytes", 0.15)
        self.listens = drawn("driver reports", 0.3) is not None
        self.copied_ahead = drawn("a copy goes ahead", 0.1)
        self.listens |= self.copied_ahead is not None
        self.goes_one_back = drawn("one micro-batch back", 0.12)
        self.table_ahead = drawn("table ahead", 0.1)
        self.joins_late = drawn("LATEST beside a time", 0.1)
        self.begun_again = drawn("re-created at once", _AGAIN)
        self.starts_frozen = drawn("frozen at the start", 0.08)
        self.starts_before = drawn("starts before the retention", 0.08)
        drawn("ends within an event", _CUTS)
        self.children_expire = drawn("children expire", 0.12)
        if self.children_expire is not None:
            self.live = 1.7 * self.retention
        self.fails = drawn("one operation is out", _OUTAGES)
        self.sticks = drawn("iterators are stuck", _STUCK)
        self.trims = drawn("generations trimmed", _TRIMMED)
        if self.trims is not None:
            self.live = 2.2 * self.retention
        self.unlisted = drawn("unlisted generations", _UNLISTED)
        self.hidden = None if world.refused else drawn("expired before another began", _HIDDEN)
        if self.hidden is not None:
            shared["readMode"] = "polling"
        if self.unlisted or self.hidden:
            self.live = 2.2 * self.retention
        expires = drawn("iterators expire", _EXPIRES)
        if expires is not None:
            world.expires = lambda: expires.random() < 0.5
        self.late_rows = drawn("rows are late", _LATE_ROWS)
        self.ends_resharded = drawn("ends after a reshard", 0.05)
        world.silent = drawn("subscriptions go silent", 0.1)
        self.losing = drawn("answers are lost", 0.1)
        self.kin = drawn("named with parents", 0.08)
        self.jobs = drawn("jobs beside idle shards", 0.06)
        if self.jobs is not None:
            self.keys, self.live = self.keys[:1], 2.2 * self.retention
        if world.list_age:
            self.drawn.add(f"lists {world.list_age:g} s old")

    def told(self) -> str:
        """What has happened, for whoever looks into a seed."""
        lines = [
            f"Spark {self.spark[0]}.{self.spark[1]}, streams {self.names}, records of {self.sizes} bytes each {self.gap} s"
        ]
        seen = f"lists {self.world.list_age} s old, shards unknown for {self.world.unknown_seconds} s"
        lines.append(f"{self.world.settings}, {seen}")
        for query in self.queries:
            about = {name: text for name, text in query.given.items() if name != "manifest"}
            lines.append(f"{query.name}: {query.scans} scans, trigger {query.trigger} s, sink {query.slow} s, {about}")
        for name, facts in self.world.facts.items():
            for shard, known in facts.shards.items():
                until = "" if known.closed is None else f" to {self._at(known.closed)}"
                lines.append(
                    f"{name} {shard[-3:]} of {[each[-3:] for each in known.parents]}: {self._at(known.created)}{until}, "
                    f"{len(known.records)} records"
                )
        reports = [f"{self._at(report.at)}: {report.text[:300]}" for report in self.world.reports]
        return "\n".join([*lines, *self.story[-300:], *reports[-12:]])

    def _tell(self, what: str) -> None:
        self.story.append(f"{self.machine.now - self.began:.0f} s: {what}")

    def history(self) -> None:
        """Let the streams have a past."""
        random, machine = self.random, self.machine
        until = machine.now + random.choice((0.1, 0.5, 1.0, 1.8)) * self.retention
        reshards = sorted(random.uniform(machine.now, until) for _ in range(random.choice((0, 1, 3, 5))))
        while machine.now < until:
            machine.sleep(self.gap * random.uniform(0.5, 1.5))
            self._write_some()
            while reshards and reshards[0] <= machine.now:
                reshards.pop(0)
                self.world.reshard(random.choice(self.names), random)

    def _write_some(self) -> None:
        for name in self.names:
            for _ in range(self.random.choice((1, 1, 2))):
                self.world.write(name, self.random.choice(self.keys), self.random.randint(*self.sizes))

    def _write_to_all(self, name: str) -> None:
        """Let each shard have a record, as those of a busy stream have right after a reshard."""
        if not self.is_calm and Random(f"{self.seed} {self.machine.now} nothing gone").random() >= _NOTHING_GONE:
            self.world.write_to_all(name)

    # -- queries

    def _query(self, name: str) -> SparkQuery:
        random = self.random
        options = {
            **self.shared,
            "startingPosition": self._start(),
            "pollTimeout": "60s",
            "idleCheckpointInterval": random.choice(("20s", "50s", "600s")),
        }
        if random.random() < 0.5:
            options["maxRecordsPerTrigger"] = random.choice(("1", "5", "20"))
        if random.random() < 0.2:
            options |= {"minBytesPerTrigger": "1m", "maxTriggerDelay": "60s"}
        query = SparkQuery(self.world, name, Random(random.random()), self.names, options, self.spark)
        query.scans = random.choice((1, 1, 1, 2, 3))
        query.unlucky = random.choice((0.0, 0.0, 0.02, 0.1) if self.sees_tips else (0.1, 0.3))
        if random.random() < (0.12 if self.sees_tips else 0.8):
            self._let_end(query)
        query.trigger = random.choice((1.0, 10.0, 60.0, _LONGEST_TRIGGER))
        # A sink that is always slower than the producer, or only slow.
        query.slow = random.choice((0.0, 0.0, 5.0, 1.2 * self.gap))
        rare = Random(f"{self.seed} {name} nothing gone").random() < _NOTHING_GONE
        most = int(query.given.get("maxRecordsPerTrigger", _MANY))
        if most / (query.trigger + query.slow) < 2 * len(self.names) / self.gap and not rare:
            # It would be behind for good, until a record at a time expires.
            del query.given["maxRecordsPerTrigger"]
        if self.waits is not None:
            query.given |= {
                "minBytesPerTrigger": "1m",
                "maxTriggerDelay": self.waits.choice(("30s", "60s")),
                "idleCheckpointInterval": self.waits.choice(("20s", "50s")),
            }
            query.trigger = min(query.trigger, 10.0)
        if "ends within an event" in self.drawn:
            # A range that ends there is read again from Kinesis, which lies.
            query.unlucky, query.given["startingPosition"] = 0.5, "TRIM_HORIZON"
        if self.jobs is not None and not (query.ends_at_tips or query.once):
            self._let_end(query)
        # The gap is as short as the stream is older than its retention.
        age = self.world.now - self.world.facts[self.names[0]].created
        short = self.retention < age < 1.1 * self.retention and not rare
        if self.starts_before is not None and self.starts_before.random() < 0.7 and not short:
            before = self.world.now - self.starts_before.uniform(1.0, 1.5) * self.retention
            query.given["startingPosition"] = f"AT_TIMESTAMP:{int(before * 1000)}"
        if self.first_ends is not None and self.first_ends.random() < 0.7:
            what = self.first_ends.choice(("planner", "run", "program", "table"))
            query.ends_first = partial(self._end_first, query, what)
        return query

    def _start(self) -> str:
        random = self.random
        kind = random.choice(("TRIM_HORIZON", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "JSON", "JSON"))
        if kind == "AT_TIMESTAMP":
            return self._timestamp()
        if kind != "JSON":
            return kind
        given: dict[str, Any] = {}
        for name in self.names:
            facts = self.world.facts[name]
            there = [
                shard
                for shard, known in facts.shards.items()
                if known.closed is None or known.closed > self.world.now - 0.8 * self.retention
            ]
            named: list[str] = []
            for shard in random.sample(there, random.randint(1, min(2, len(there)))):
                if not any(shard in facts.ancestors(each) or each in facts.ancestors(shard) for each in named):
                    named.append(shard)
            if self.kin is not None:
                # A start may name a shard and its parents, too.
                named += [shard for shard in there if shard not in named and self.kin.random() < 0.5]
            given[name] = {shard: self._position(facts.shards[shard]) for shard in named}
            if random.random() < 0.7:
                given[name][ALL] = random.choice(("TRIM_HORIZON", "LATEST", self._timestamp()))
        return json.dumps(given)

    def _timestamp(self) -> str:
        return f"AT_TIMESTAMP:{int((self.world.now - self.random.random() * 0.9 * self.retention) * 1000)}"

    def _position(self, shard: Shard) -> str:
        kept = [record for record in shard.records if record.arrival > self.world.now - 0.9 * self.retention]
        if kept and self.random.random() < 0.6:
            return f"AFTER:{self.random.choice(kept).sequence}"
        return self.random.choice(("TRIM_HORIZON", self._timestamp()))

    # -- playing

    def play(self) -> Outcome:
        """Play the scenario, and check its outcome.

        Raises:
            AssertionError: A promise was broken.
        """
        machine, outcome = self.machine, self.outcome
        run = partial(machine.run, machine.main.process)
        self.began = machine.now
        for query in self.queries:
            self._begin(query)
        run(self._write)
        run(self._disturb)
        for move, random in (
            (self._end_fetchers, self.fetchers_end),
            (self._cut_fetchers_off, self.out_of_reach),
            (self._go_one_back, self.goes_one_back),
            (self._put_table_ahead, self.table_ahead),
            (self._begin_again, self.begun_again),
            (self._freeze_first, self.starts_frozen),
            (self._reshard_often, self.world.aggregates),
            (self._let_children_expire, self.children_expire),
            (self._copy_and_go_ahead, self.copied_ahead),
            (self._let_fail, self.fails),
            (self._let_stick, self.sticks),
            (self._let_generations_go, self.trims),
            (self._let_lists_fail, self.unlisted),
            (self._begin_where_records_expired, self.hidden),
            (self._let_rows_be_late, self.late_rows),
            (self._end_resharded, self.ends_resharded),
            (self._lose_answers, self.losing),
        ):
            if random is not None:
                run(partial(move, random))
        while self.writing or self.disturbing or not all(map(self._is_done, self.queries)):
            machine.sleep(30.0)
            self._raise_failures()
            self._watch()
        # What is buffered may be trimmed, and come with the next trigger.
        until = machine.now + _LONGEST_TRIGGER + self.retry + 300 + self.retention * (self.jobs is not None)
        while machine.now < until and any(
            not each.over and (each.error is not None or each.oracle.misses(self.world.now)) for each in self.queries
        ):
            machine.sleep(30.0)
        self.ending = True
        for query in self.queries:
            query.stopping = True
        machine.sleep(60.0)
        self._raise_failures()
        for query in self.queries:
            if not query.over:
                query.oracle.check_end(self.world.now)
            outcome.rows += query.oracle.rows
            outcome.lost += sum(len(member.missed) for member in query.oracle.streams.values())
        outcome.records = sum(self.world.numbers.values())
        outcome.drawn = self._drawn()
        return outcome

    def _drawn(self) -> Counter[str]:
        """What is particular about this world, for the table of what the search draws."""
        world, given = self.world, self.shared
        seen = {
            given["readMode"]: True,
            "failOnDataLoss=false": given["failOnDataLoss"] == "false",
            "Spark 4.0": self.spark < (4, 2),
            "two streams": len(self.names) > 1,
            "wrong answers": "wrong_answers" in world.settings,
            "maxShardSkew": "maxShardSkew" in given,
            "several queries": len(self.queries) > 1,
            "several scans": any(query.scans > 1 for query in self.queries),
            "minBytesPerTrigger": any("minBytesPerTrigger" in query.given for query in self.queries),
            "a query that ends": any(query.ends_at_tips or query.once for query in self.queries),
            "named shards": any(query.started.get("startingPosition", "").startswith("{") for query in self.queries),
            "four generations": any(
                len(facts.ancestors(shard)) > 2 for facts in world.facts.values() for shard in facts.shards
            ),
            "records lost": bool(self.outcome.lost),
        }
        return Counter([*(name for name, there in seen.items() if there), *self.drawn, *self.outcome.moves])

    def _is_done(self, query: SparkQuery) -> bool:
        if query.over:
            return True
        return bool(query.checkpoint.commits) and query.oracle.oldest_unread(self.world.now) is None

    def _raise_failures(self) -> None:
        if self.machine.failures:
            raise self.machine.failures[0]
        reports = self.world.reports
        for report in reports[self.checked :]:
            self._check_tolerated(report)
            oracles = self._oracles
            if report.is_loss and not any(each.has_lost(report) for each in oracles):
                self._exception(report, oracles)
        self.checked = len(reports)

    @property
    def _oracles(self) -> list[QueryOracle]:
        """The oracles of all queries. A run looks for losses before the log of a new query says where it begins."""
        found = []
        for query in self.queries:
            oracle = query.oracle
            if not oracle.streams:
                oracle = QueryOracle(query.name, self.world.reports)
                for name in query.rows_at_start:
                    oracle.begins(name, query.membership(name, new=False))
            found.append(oracle)
        return found

    def _check_tolerated(self, report: Report) -> None:
        """Check that a loss is tolerated only until the first range of its shard is committed."""
        query = self.queries[0]
        if "before the first records there were committed" not in report.text or len(self.queries) > 1 or self.failed:
            return
        if query.given["failOnDataLoss"] == "false" or query.accepted:
            return
        for (stream, shard), known_at in query.known_at.items():
            if repr(stream) in report.text and shard in report.text and report.at > known_at + 60:
                raise Broken(
                    f"records of it are committed since {self._at(known_at)}, and it is only said: {report.text}"
                )

    def _exception(self, report: Report, oracles: Sequence[QueryOracle]) -> None:
        """Count a loss that was reported although nothing was lost, if failures.md allows for it."""
        kind = "warning" if report.query is None else "error"
        if "was deleted and created again since" in report.text and self.recreated:
            return
        # The lease table proves what was read of idle shards, unless somebody has changed it.
        if "between" in report.text and not self.touched and not any(each.has_gap(report) for each in oracles):
            raise Broken(f"there is no such gap at {self._at(report.at)}: {report.text}")
        # The error for a shard that is trimmed as a whole names the beginnings of its children, too.
        if "between" in report.text and "does not exist any more" not in report.text:
            # The records of a world come further apart than those of a busy stream, and a query at the horizon is checked again and again.
            soon = any(each.has_lost(report, 4 * self.gap) for each in oracles)
            why = (
                ", and the lease table was changed"
                if self.touched
                else ", just before a record was lost"
                if soon
                else ""
            )
            self.outcome.exceptions[f"{kind}: nothing in the gap{why}"] += 1
        elif "has not come again" in report.text and any(query.repeats_what_it_wrote for query in self.queries):
            self.outcome.exceptions[f"{kind}: a micro-batch that was written is repeated"] += 1
        elif "does not exist any more" in report.text:
            self.outcome.exceptions[f"{kind}: nothing left in the shard"] += 1
        else:
            raise Broken(f"nothing is lost that had to be read, but it is said at {self._at(report.at)}: {report.text}")
        self._tell(f"nothing is lost, but it is said: {report.text[:300]}")

    def _at(self, epoch: float) -> str:
        return f"{epoch - BEGAN - self.began:.0f} s"

    def _watch(self) -> None:
        now = self.machine.now
        assert now - self.began < self.live + 10 * HOUR, "it is not over"
        for query in self.queries:
            if query.over or query.waits_since is None or query.running is None:
                continue
            # A buffer may be full of what another query reads with its next trigger.
            limit = max(each.trigger for each in self.queries) + self.retry + 300
            if not self.sees_tips:
                limit += self.retry  # those that are killed have to find their end again
            if self.world.refused and len(self.queries) > 1:
                limit *= 3  # queries that may not catch up with GetRecords wait for the slowest
            # They also wait while the sink of another one is down.
            others = self.queries if self.world.refused else []
            if any(each.waits_since is None and each.is_unfinished for each in others):
                continue
            busy_until = max(query.busy_until, *(each.busy_until for each in others), -inf)
            since = max(query.moved_at, busy_until, self.excused)
            self._check_frozen(query)
            if now - since < limit:
                continue
            record = query.oracle.oldest_unread(self.world.now)
            if record is None:
                continue
            since = max(since, record.arrival - BEGAN)
            if now - since < limit:
                continue
            told = any(report.at - BEGAN >= since for report in self.world.reports)
            if told and (now - since < 3 * limit or self._is_out):
                continue
            raise Broken(
                f"{query.name} has stood still for {now - since:.0f} s, and has {record.key}:{record.number} of {record.stream}, "
                f"{record.shard} to read, without a word"
            )

    def _check_frozen(self, query: SparkQuery) -> None:
        """Check that a query that waits for a frozen run says so in time."""
        program, now = query.program or self.program, self.machine.now
        for process in () if now < self.excused else program.processes:
            if not (process.frozen and process.lives and process.name.startswith("run")) or query.waits_since is None:
                continue
            since = max(query.waits_since, self.frozen_since.get(process, now))
            if now - since > self.retry + 400 and process in self.program.hosting:
                raise Broken(f"{query.name} has not failed, although {process.name} is frozen for {now - since:.0f} s")
            if now - since > 160 and not any(report.at - BEGAN >= since for report in self.world.reports):
                raise Broken(
                    f"{query.name} has waited for {process.name}, which is frozen, for {now - since:.0f} s without a word"
                )

    def _begin(self, query: SparkQuery) -> None:
        query.tell = self._tell
        query.beside_others = lambda: len(self.queries) > 1
        if self.listens:
            query.given["session.listens"] = "true"
            query.report = lambda mark: (query.program or self.program).report(query, mark)
        self.machine.run(self.machine.main.process, partial(self._supervise, query))

    def _supervise(self, query: SparkQuery) -> None:
        machine, random = self.machine, Random(f"{self.seed}: {query.name}")
        while not self.ending and not query.over:
            machine.sleep(random.choice((1.0, 5.0)))
            program = query.program or self.program
            if self.ending or not program.lives or machine.now < query.held_until:
                continue
            query.moved_at = machine.now
            query.error, query.stopping = None, False
            if query.ends_early:
                self._set_end(query)
            self._tell(f"{query.name} starts")
            query.running = process = program.start(query)  # type: ignore[arg-type]
            while process.lives and query.running is process:
                machine.sleep(2.0)
            if self.jobs is None and (query.ends_at_tips or query.once):
                machine.sleep(random.choice((10.0, 300.0)))
            if query.error is not None:
                self._judge(query, query.error)
            if self.jobs is not None and self.disturbing:
                machine.sleep(self.jobs.choice((0.1, 0.3, 0.8)) * self.retention)

    def _judge(self, query: SparkQuery, error: KinesisEfoError) -> None:
        kind = type(error).__name__
        self.outcome.errors[kind] += 1
        self._tell(f"{query.name} fails: {kind}: {str(error)[:200]}")
        report = Report(self.world.now, str(error), query.name)
        self.failed = True
        match kind:
            case "DataLossError":
                # Queries that share a run share its losses.
                oracles = self._oracles
                if not any(each.has_lost(report) for each in oracles):
                    self._exception(report, oracles)
                self._after_loss(query, str(error))
            case "ConfigurationError" | "ManifestError" if "startingPosition" in str(error) and query.given[
                "startingPosition"
            ].startswith("{"):
                query.over = True
            case "ConfigurationError" if "the list may be a minute old" in str(error) and self.world.list_age:
                pass
            case "ConfigurationError" if "share one run" in str(error):
                # As the error says: the query that reads the most streams comes first.
                for each in self.queries:
                    each.held_until = max(each.held_until, self.machine.now + 30 * (each is not query))
                self._restart()
            case "ConfigurationError" if "removedStreams" in str(error) and query.is_unfinished:
                query.names = list(self.names)
            case _ if kind in _REPLACED and self.recreated:
                # An error in the shared run fails all queries. Those that do not read the stream go on.
                query.over = not self.recreated.isdisjoint(query.names)
            case "FetcherError" | "OptionsError" if self.recreated and "the same manifest" in str(error):
                pass
            case "ConsumerTakenOverError" if self.world.refused:
                pass  # what looks for a tip and what reads the shard take it over from each other
            case "LeaseTableError" if query.given["startingPosition"] == "LEASES":
                query.over = True
            case "RetriesExhaustedError" if self.world.silent is not None and _SILENCE.search(str(error)):
                pass  # three subscriptions in a row went silent
            case "RetriesExhaustedError" if not self.sees_tips and "has sent neither records nor the end" in str(error):
                pass  # several readers share the answers, so that one may get more wrong ones in a row
            case "AlreadyRunningError" | "LeaseLostError" if self.rivals:
                query.over = query.program is not None
            case "RetriesExhaustedError" if not self.sees_tips:
                pass  # Kinesis says for longer than retryTimeout that nothing is there
            case "FetcherError" | "LeaseLostError" | "RetriesExhaustedError" | "FetcherUnreachableError" if (
                self.machine.now < self.frozen_until
            ):
                pass
            case _ if kind in _OUT and self._was_out(_BY_OUTAGE.search(str(error)) is not None):
                pass
            case _:
                raise Broken(f"{query.name} failed: {error!r}") from error

    def _after_loss(self, query: SparkQuery, error: str) -> None:
        if query.given["failOnDataLoss"] == "false":
            return
        accepted = _ACCEPT.search(error)
        choice = self.random.random()
        if accepted is not None and choice < 0.6 and len(query.accepted) < 20:
            # The error says what to set, so that this loss is accepted, and no other one.
            query.accept(json.loads(accepted[1]))
            return
        if choice < 0.8:
            query.over = True
            return
        for each in self.queries:
            each.given["failOnDataLoss"] = "false"
        self._restart()

    def _restart(self, between: Callable[[], None] = lambda: None) -> None:
        self.program.kill()
        between()
        self.program.kill()  # another restart may have been faster
        self.program = LossProgram(self.world, "program", "here", self.fetchers)
        for query in self.queries:
            if query.program is None:
                query.running = None
        # The next run may have to wait for the lease of the one before.
        self.excused = self.machine.now

    # -- what happens

    def _write(self) -> None:
        until = self.began + self.live
        while self.machine.now < until:
            self.machine.sleep(self.gap * self.random.uniform(0.5, 1.5))
            if not self.is_calm:
                self._write_some()
        self.writing = False

    def _disturb(self) -> None:
        random, machine = self.random, self.machine
        moves: list[Callable[[], None]] = random.sample(
            [
                self._reshard, self._reshard, self._sink_down, self._sink_down, self._stop, self._kill_run,
                self._kill_planner, self._kill_program, self._restore, self._restore, self._freeze_run, self._freeze_planner,
                self._empty_table, self._restore_table, self._come, self._come, self._copy, self._rival, self._change_mode,
                self._drop, self._drop_and_add, self._drop_and_add, self._recreate, self._end_at_tips, self._kill_at_message, self._kill_at_message,
            ],
            random.randint(2, 6),
        )  # fmt: skip
        if self.overtaken is not None:
            machine.sleep(self.live)
        if random.random() < 0.3:
            self._kill_at_message()
        if random.random() < 0.2:
            self._sink_down()
        while machine.now < self.began + self.live:
            machine.sleep(random.expovariate(4 / self.retention))
            if machine.now < self.began + self.live and not self.is_calm:
                move = random.choice(moves)
                self._tell(move.__name__.removeprefix("_"))
                move()
                self.outcome.moves[move.__name__.removeprefix("_")] += 1
        self.world.at_call.clear()
        for query in self.queries:
            query.slow, query.trigger, query.down_until, query.held_until = 0.0, 1.0, -inf, -inf
            query.unlucky = 0.0
            if query.ends_at_tips or query.once:
                self._kill_planner_of(query)
                self._let_end(query)
            if query.program is not None:
                query.over = True
                query.program.kill()
                self.machine.kill(query.program.jvm)
        self.world.list_age = self.world.unknown_seconds = self.world.lossy = 0.0
        self.world.silent = self.world.losing = None
        self.world.cut_off.clear()
        self._end_outage()
        for process in machine.processes.values():
            process.frozen = False
        self.excused = machine.now + 60
        self.disturbing = False

    # -- what happens in some worlds only

    def _check_row(self, key: str, before: int, after: int) -> None:
        """Check that a row of the lease table does not pass a query that has reached it."""
        name, _, shard = key.partition(":")
        # A query that was behind the table counts once it has reached it, and somebody else may have moved the table.
        for query in () if self.rivals or self.touched or name in self.recreated else self.queries:
            at = query.reached(name, shard)
            if at is not None and before <= at[0] and at[1] < after:
                self.world.fail(
                    f"the lease table says that {key} is processed up to {after}, and {query.name} is at {at[1]}"
                )

    def _end_first(self, query: SparkQuery, what: str) -> None:
        """End a process while the first micro-batch of a query is not finished."""
        match what:
            case "planner":
                self._kill_planner_of(query)
            case "run":
                query.kill_run()
            case _:
                self.touched |= what == "table"
                items = self.world.table.items
                between = items.clear if what == "table" else lambda: None
                self.machine.run(self.machine.main.process, partial(self._restart, between))

    def _end_fetchers(self, random: Random) -> None:
        """Kill or freeze fetchers that are processes of their own."""
        while self.machine.now < self.began + self.live:
            self.machine.sleep(random.expovariate(4 / self.retention))
            living = [process for process in self.program.fetching if process.lives]
            if not living or not self.disturbing:
                continue
            process, seconds = random.choice(living), random.choice((0.0, 0.0, 5.0, 60.0, 900.0))
            self.outcome.moves["kill or freeze a fetcher"] += 1
            self._tell(f"{process.name} is {f'frozen for {seconds:.0f} s' if seconds else 'killed'}")
            if seconds:
                self.frozen_until = max(self.frozen_until, self.machine.now + seconds + 300)
                if len(living) == 1:
                    self.excused = max(self.excused, self.machine.now + seconds)
                self.machine.freeze(process, seconds)
            else:
                self.machine.kill(process)

    def _cut_fetchers_off(self, random: Random) -> None:
        """Let fetchers not reach their run for some time. Some outlive it."""
        while self.machine.now < self.began + self.live:
            self.machine.sleep(random.expovariate(4 / self.retention))
            if not self.disturbing:
                return
            hosts = {f"host{number}" for number in range(self.fetchers) if random.random() < 0.6}
            seconds, killed_after = random.choice((5.0, 60.0, 300.0, 600.0)), random.choice((0.0, 1.0, 4.0))
            self.outcome.moves["cut fetchers off"] += 1
            self._tell(f"fetchers on {sorted(hosts)} do not reach their run for {seconds:.0f} s")
            self.frozen_until = max(self.frozen_until, self.machine.now + seconds + 300)
            self.world.cut_off |= hosts
            self.machine.sleep(killed_after)
            if random.random() < 0.5:
                self._kill_run()
            self.machine.sleep(seconds)
            self.world.cut_off -= hosts
            self.excused = max(self.excused, self.machine.now)

    def _go_one_back(self, random: Random) -> None:
        """Go back by the one micro-batch that a query has planned since its last start."""
        machine = self.machine
        machine.sleep(random.uniform(0.05, 0.5) * self.live)
        query = random.choice(self.queries)
        give_up_at = machine.now + 600
        while machine.now < give_up_at and (query.is_unfinished or not query.checkpoint.commits):
            machine.sleep(0.5)
        if query.over or query.is_unfinished or not query.checkpoint.commits or query.program is not None:
            return
        query.snapshots = []
        query.keep()
        last = max(query.checkpoint.offsets)
        query.down_until = machine.now + 900
        self._kill_planner_of(query)
        while machine.now < give_up_at + 600 and max(query.checkpoint.offsets) == last:
            machine.sleep(5.0)
        machine.sleep(230.0)
        certain = not (self.rivals or self.recreated or self.touched) and machine.now > self.frozen_until
        query.down_until = -inf
        if self.disturbing and query.snapshots and not query.over and max(query.checkpoint.offsets) > last:
            self._tell(f"{query.name} goes back by {max(query.checkpoint.offsets) - last} micro-batches")
            self._restart(partial(query.restore, certain=certain))

    def _put_table_ahead(self, random: Random) -> None:
        """Let the lease table say that everything is read."""
        self.machine.sleep(random.uniform(0.1, 0.9) * self.live)
        self.touched = True

        def move() -> None:
            items = self.world.table.items
            for name, facts in self.world.facts.items():
                for shard, known in facts.shards.items():
                    item = items.get(f"{name}:{shard}")
                    if item is not None and item["checkpoint"]["S"].isdecimal() and known.records:
                        kept = {attribute: value for attribute, value in item.items() if attribute != "continuation"}
                        items[f"{name}:{shard}"] = {**kept, "checkpoint": {"S": str(known.records[-1].sequence)}}

        if not self.disturbing:
            return
        self._tell("the lease table is put ahead")
        if random.random() < 0.5:
            move()
        else:
            self._restart(move)

    def _begin_again(self, random: Random) -> None:
        """Create a stream again as soon as a query's log says at which time it begins with it."""
        self.machine.sleep(random.uniform(0.05, 0.3) * self.live)
        query, name = random.choice(self.queries), self.names[1]
        if query.over or not query.checkpoint.commits:
            return

        def create() -> None:
            self._tell(f"{name} is created again")
            self.recreated.add(name)
            self.world.recreate(name, random.randint(1, 3))

        def when_added() -> None:
            self.machine.run(self.machine.main.process, partial(self._restart, create))
            self.machine.sleep(1.0)

        query.when_added = when_added
        query.given["newStreamPosition"] = random.choice(("TRIM_HORIZON", "LATEST"))
        self._kill_planner_of(query)
        query.names = list(self.names)

    def _reshard_often(self, random: Random) -> None:
        """Split and merge shards while aggregates for their parents are still on their way."""
        while self.machine.now < self.began + self.live:
            self.machine.sleep(random.expovariate(6 / self.retention))
            if self.ending:
                return
            self.world.reshard(name := random.choice(self.names), random)
            self._write_to_all(name)

    def _let_children_expire(self, random: Random) -> None:
        """Let the sinks be down from right after a reshard until the beginning of the children has expired."""
        machine = self.machine
        machine.sleep(random.uniform(0.02, 0.15) * self.live)
        for name in self.names:
            for _ in range(random.choice((1, 2))):
                self.world.reshard(name, random)
            self._write_to_all(name)
        # Some queries have read the parents to their end by then.
        machine.sleep(random.choice((0.0, 20.0, 60.0)))
        until = machine.now + random.uniform(1.02, 1.4) * self.retention
        self._tell(f"the sinks are down for {until - machine.now:.0f} s, so that the beginning of children expires")
        for query in self.queries:
            query.down_until = until
        if random.random() < 0.5:
            machine.sleep(0.9 * (until - machine.now))
            if self.disturbing:
                self.touched = True
                self._restart(self.world.table.items.clear)

    def _let_fail(self, random: Random) -> None:
        """Let one operation fail for some time: at any moment, right after a reshard, or at a start."""
        machine, world = self.machine, self.world
        while machine.now < self.began + self.live:
            machine.sleep(random.expovariate(5 / self.retention))
            if not self.disturbing:
                return
            # Without DescribeStreamSummary, `strict` leaves nothing out, with a warning.
            kinesis = _KINESIS if world.aggregates is None else _KINESIS[:-1]
            operation, when = random.choice((*kinesis, *_TABLE)), random.choice(("now", "at a reshard", "at a start"))
            if when == "at a reshard":
                world.reshard(random.choice(self.names), random)
            self._fail(operation, random.choice((5.0, 60.0, 0.8 * self.retry, 300.0, 1200.0)), when)
            if when == "at a start" and random.random() < 0.5:
                self._restart()
            elif when == "at a start":
                self._kill_planner_of(random.choice(self.queries))
            machine.sleep(self.outages[-1][1] - machine.now)

    def _fail(self, operation: str, seconds: float, when: str) -> None:
        self._tell(f"{operation} fails for {seconds:.0f} s, {when}")
        self.outcome.moves[f"{operation} fails"] += 1
        self.world.fail_one(operation, seconds)
        self._outage(seconds)

    def _outage(self, seconds: float) -> None:
        machine = self.machine
        self.outages.append(this := (machine.now, machine.now + seconds))

        def end() -> None:
            machine.sleep(seconds)
            if self.outages[-1] == this:
                self._end_outage()

        machine.run(machine.main.process, end)

    def _end_outage(self) -> None:
        now = self.machine.now
        self.world.fail_one("", 0.0)
        self.world.stick(yes=False)
        self.outages = [(since, min(until, now)) for since, until in self.outages]
        self.excused = max(self.excused, now)

    @property
    def _is_out(self) -> bool:
        return bool(self.outages) and self.machine.now < self.outages[-1][1]

    def _was_out(self, is_named: bool) -> bool:
        """Whether there was an outage for so long that a query may fail; it learns of it with its next trigger. An error may name it."""
        least, late = 0.9 * self.retry, inf if is_named else 60.0
        return any(
            until - since > least and since + least < self.machine.now < until + late for since, until in self.outages
        )

    def _let_stick(self, random: Random) -> None:
        """Let answers without records be stuck for some time."""
        machine = self.machine
        while machine.now < self.began + self.live:
            machine.sleep(random.uniform(0.02, 0.4) * self.retention)
            if not self.disturbing:
                return
            seconds = random.choice((60.0, 0.2 * self.retention, 0.6 * self.retention, 0.6 * self.retention))
            self._tell(f"answers are stuck for {seconds:.0f} s")
            self.world.stick(yes=True)
            self._outage(seconds)
            if random.random() < 0.5:
                self._kill_planner_of(random.choice(self.queries))
            machine.sleep(seconds + 60)

    def _let_generations_go(self, random: Random) -> None:
        """Let a query stand still until a shard that it reads was trimmed as a whole, and perhaps its children, too."""
        machine = self.machine
        machine.sleep(random.uniform(0.05, 0.2) * self.retention)
        query = random.choice(self.queries)
        give_up_at = machine.now + 0.2 * self.retention
        while machine.now < give_up_at and not query.checkpoint.commits:
            machine.sleep(5.0)
        if query.over or not query.checkpoint.commits:
            return
        until = machine.now + random.uniform(1.1, 1.5) * self.retention
        if random.random() < 0.7:
            self._tell(f"{query.name} does not run for {until - machine.now:.0f} s")
            query.held_until, query.stopping = until, True
            give_up_at = machine.now + 120
            while query.running is not None and machine.now < give_up_at:
                machine.sleep(2.0)
            self._kill_planner_of(query)
        else:
            self._tell(f"the sink of {query.name} is down for {until - machine.now:.0f} s")
            query.down_until = until
        name = random.choice(query.names)
        for _ in range(random.choice((2, 2, 3))):
            machine.sleep(random.choice((self.gap, 2 * self.gap, 0.2 * self.retention)))
            self.world.reshard_most(name, random)
            self._write_to_all(name)
        machine.sleep(until - machine.now - random.choice((0.0, 30.0)))
        is_down = query.down_until == until
        if self.disturbing and (is_down or random.random() < 0.5):
            operation = "ListShards" if is_down else random.choice(("ListShards", *_KINESIS[:-1]))
            self._fail(operation, random.choice((60.0, 300.0)), "as generations are gone")

    def _let_lists_fail(self, random: Random) -> None:
        """Let a sink be down until generations of shards are gone, and then ListShards. Another query reads on; the last shards are idle."""
        machine, query, name = self.machine, self.queries[0], self.names[0]
        machine.sleep(random.uniform(0.05, 0.4) * self.retention)
        if query.over or not query.checkpoint.commits or not self.disturbing:
            return
        self.is_calm = True
        query.down_until = until = machine.now + random.uniform(1.2, 1.5) * self.retention
        self._tell(f"the sink of {query.name} is down for {until - machine.now:.0f} s")
        for _ in range(random.choice((2, 2, 3))):
            self._write_some()
            machine.sleep(random.choice((20.0, 60.0, 120.0)))
            self.world.reshard_most(name, random)
        machine.sleep(until - machine.now - random.choice((30.0, 150.0, 300.0)))
        self._fail("ListShards", 600.0, "as generations are gone")
        machine.sleep(600.0)
        self.is_calm = False

    def _begin_where_records_expired(self, random: Random) -> None:
        """Stop a query at idle children until records of theirs have expired, and let another query begin before it starts again."""
        machine, query = self.machine, self.queries[0]
        machine.sleep(random.uniform(0.05, 0.4) * self.retention)
        if query.over or not query.checkpoint.commits or not self.disturbing:
            return
        self.is_calm = True
        self.world.reshard_most(self.names[0], random)
        machine.sleep(random.choice((120.0, 300.0)))
        self._tell(f"{query.name} does not run")
        query.held_until, query.stopping = machine.now + random.uniform(1.15, 1.4) * self.retention, True
        machine.sleep(60.0)
        self._kill_planner_of(query)
        self._write_some()
        machine.sleep(query.held_until - machine.now - random.choice((60.0, 200.0)))
        self._come_at("TRIM_HORIZON")
        machine.sleep(600.0)
        self.is_calm = False

    def _let_rows_be_late(self, random: Random) -> None:
        """Let rows of new shards not be written until two queries read them, one of them slowly."""
        self.machine.sleep(random.uniform(0.05, 0.6) * self.live)
        if self.disturbing:
            for name in self.names:
                self.world.reshard_most(name, random)
            self._fail("create", random.choice((300.0, 500.0)), "after a reshard")

    def _lose_answers(self, random: Random) -> None:
        """Lose answers of the run to queries and fetchers for some time: it has done what it was asked for."""
        while self.machine.now < self.began + self.live:
            self.machine.sleep(random.expovariate(4 / self.retention))
            if not self.disturbing:
                return
            self._tell("answers are lost")
            self.world.lossy, self.world.losing = 0.2, random
            self.machine.sleep(random.choice((5.0, 60.0, 300.0)))
            self.world.lossy, self.world.losing = 0.0, None
            self.excused = max(self.excused, self.machine.now)

    def _end_resharded(self, random: Random) -> None:
        """Let queries end at the tips when their checkpoints have shards that ListShards does not show yet."""
        self.machine.sleep(random.uniform(0.1, 0.8) * self.live)
        self.world.list_age = 60.0
        for name in self.names:
            self.world.reshard_most(name, random)
        self.machine.sleep(random.uniform(20.0, 50.0))
        for query in self.queries if self.disturbing else ():
            if not (query.over or query.ends_at_tips or query.once):
                self._kill_planner_of(query)
                self._let_end(query)

    def _copy_and_go_ahead(self, random: Random) -> None:
        """Let a copy of a checkpoint be planned further than the original in the same program, and then wait for its sink."""
        machine, query = self.machine, self.queries[0]
        machine.sleep(random.uniform(0.05, 0.4) * self.live)
        if not query.checkpoint.commits or query.over or query.program is not None:
            return
        self._tell(f"{query.name} is copied")
        self.queries.append(other := query.copied(f"q{len(self.queries)}"))
        for each in (query, other):
            each.moved_at = machine.now + each.trigger  # it may be waiting for the trigger that it had
            each.trigger = min(each.trigger, 10.0)
        self._begin(other)
        machine.sleep(60.0)
        query.down_until = machine.now + 160
        machine.sleep(150.0)
        other.down_until = machine.now + 800

    def _freeze_first(self, random: Random) -> None:
        """Freeze the first run while it starts."""
        machine = self.machine
        give_up_at = machine.now + 60
        while machine.now < give_up_at:
            machine.sleep(0.05)
            starting = [process for process in self.program.processes if process.name.startswith("run")]
            if starting:
                seconds = random.choice((60.0, 600.0, 1.1 * self.retention))
                self._tell(f"{starting[0].name} is frozen at the start for {seconds:.0f} s")
                self.frozen_until = max(self.frozen_until, machine.now + seconds + 900)
                self.frozen_since[starting[0]] = machine.now
                machine.freeze(starting[0], seconds)
                return

    def _span(self) -> float:
        """A pause: short, at the edge of retention, or longer."""
        return self.random.choice((0.01, 0.1, 0.5, 0.97, 1.02, 1.1)) * self.retention

    def _reshard(self) -> None:
        name = self.random.choice(self.names)
        for _ in range(self.random.choice((1, 1, 2, 4))):
            self.world.reshard(name, self.random)
            self.machine.sleep(self.random.choice((0.0, 1.0, 30.0)))

    def _sink_down(self) -> None:
        self.random.choice(self.queries).down_until = self.machine.now + self._span()

    def _stop(self) -> None:
        query = self.random.choice(self.queries)
        query.held_until = self.machine.now + self._span()
        query.stopping = True
        while query.running is not None and query.waits_since is not None:
            self.machine.sleep(2.0)
        if query.running is not None:
            self.machine.kill(query.running)
            query.running = None
        query.stopping = False

    def _kill_run(self) -> None:
        for process in list(self.program.hosting):
            self.machine.kill(process)

    def _kill_planner(self) -> None:
        query = self.random.choice(self.queries)
        if query.running is not None:
            self.machine.kill(query.running)
            query.running = None

    def _restore(self) -> None:
        """Go back to the checkpoint of a query as it was when this was called before."""
        kept = [query for query in self.queries if query.snapshots]
        if not kept:
            for query in self.queries:
                query.keep()
            return
        query = self.random.choice(kept)
        certain = not self.rivals and not self.recreated and not self.touched and self.machine.now > self.frozen_until
        if self.random.random() < 0.5 or query.program is not None:
            self._kill_planner_of(query)
            query.restore(certain=certain)
        else:
            self._restart(partial(query.restore, certain=certain))

    def _kill_program(self) -> None:
        self._restart(lambda: self.machine.sleep(self.random.choice((0.0, 5.0, self._span()))))

    def _kill_at_message(self) -> None:
        """Kill something right before or after a message."""
        random, world = self.random, self.world
        number = world.calls + random.choice((random.randint(1, 30), random.randint(1, 300)))

        def kill() -> None:
            query = random.choice(self.queries)
            processes = [*self.program.hosting, *self.program.hosting, query.running]
            if not (living := [each for each in processes if each is not None]):
                return
            process = random.choice(living)
            self._tell(f"{process.name} is killed at message {number}")
            self.machine.kill(process)
            if process is query.running:
                query.running = None

        world.at_call[number * random.choice((1, -1))] = kill

    def _freeze_run(self) -> None:
        living = [process for process in self.program.hosting if process.lives]
        if living:
            self._freeze(living[-1])

    def _freeze_planner(self) -> None:
        query = self.random.choice(self.queries)
        if query.running is not None:
            self._freeze(query.running)
            self.excused = self.frozen_until

    def _freeze(self, process: SimulatedProcess) -> None:
        machine, seconds = self.machine, self.random.choice((5.0, 60.0, 200.0, 900.0, self._span()))
        self._tell(f"{process.name} is frozen for {seconds:.0f} s")
        # Long enough for what comes of it.
        self.frozen_until = max(self.frozen_until, machine.now + seconds + 900)
        self.frozen_since[process] = machine.now
        machine.run(machine.main.process, partial(machine.freeze, process, seconds))

    def _empty_table(self) -> None:
        self.touched = True
        if self.random.random() < 0.5:
            self.world.table.items.clear()
        else:
            self._restart(self.world.table.items.clear)

    def _restore_table(self) -> None:
        """Restore the lease table as it was when this was called last."""
        self.touched = True
        items = self.world.table.items
        before, self.tables = self.tables, [copy.deepcopy(items)]
        if before:
            self._restart(lambda: (items.clear(), items.update(before[0]))[0])  # type: ignore[func-returns-value]

    def _come(self) -> None:
        """Let another query come, such as one that starts from the leases."""
        if len(self.queries) < 3:
            self._come_at("LEASES", 0.4)

    def _come_at(self, start: str, probability: float = 1.0) -> None:
        query = self._query(f"q{len(self.queries)}")
        query.given |= {name: self.queries[0].given[name] for name in self.shared if name in self.queries[0].given}
        if self.random.random() < probability:
            query.given["startingPosition"] = start
        self.queries.append(query)
        self._begin(query)

    def _copy(self) -> None:
        """Let a query go on from the copy of a checkpoint, beside the one that has it."""
        query = self.random.choice(self.queries)
        if len(self.queries) < 3 and query.checkpoint.commits and not query.over:
            self.queries.append(other := query.copied(f"q{len(self.queries)}"))
            self._begin(other)

    def _rival(self) -> None:
        """Let a query go on from the copy of a checkpoint in another program."""
        query = self.random.choice(self.queries)
        if len(self.queries) < 3 and query.checkpoint.commits and not query.over:
            self.rivals = True
            self.queries.append(other := query.copied(f"q{len(self.queries)}"))
            other.program = LossProgram(self.world, "rival", self.random.choice(("here", "there")), self.fetchers)
            self._begin(other)

    def _change_mode(self) -> None:
        if self.world.refused:
            return
        mode = "efo" if self.queries[0].given["readMode"] == "polling" else "polling"

        def change() -> None:
            for query in self.queries:
                query.given["readMode"] = mode

        self._restart(change)

    def _set_end(self, query: SparkQuery) -> None:
        """Let a query end in the middle of what is buffered, and of its events."""
        # In whole milliseconds, as the option has it.
        query.ends_before = floor(1000 * (self.world.now - self.random.choice((5.0, 60.0, 600.0)))) / 1000
        query.given["endingPosition"] = end = self._end_before(query.ends_before, query.names)
        query.ends_after = {}
        if end.startswith("{"):
            query.ends_after = {
                (stream, shard): int(at.partition(":")[2])
                for stream, shards in json.loads(end).items()
                for shard, at in shards.items()
            }

    def _end_before(self, until: float, names: Sequence[str]) -> str:
        """An option `endingPosition`: a time, or the last number before it of each open shard."""
        if self.random.random() < 0.3:
            return f"AT_TIMESTAMP:{int(until * 1000)}"
        ends: dict[str, dict[str, str]] = {}
        for name in names:
            for shard, known in self.world.facts[name].shards.items():
                before = [record.sequence for record in known.records if record.arrival < until]
                if known.closed is None and before:
                    ends.setdefault(name, {})[shard] = f"AFTER:{before[-1]}"
        return json.dumps(ends) if ends else f"AT_TIMESTAMP:{int(until * 1000)}"

    def _drop(self) -> None:
        """Let a query read a stream no more, or again."""
        query = self.random.choice(self.queries)
        if len(self.names) < 2 or query.over:
            return
        query.given["removedStreams"] = "drop"
        query.given["newStreamPosition"] = self.random.choice(("TRIM_HORIZON", "LATEST", "LEASES"))
        if self.random.random() < 0.5:
            self._kill_planner_of(query)
        else:
            query.stopping = True
        query.names = list(self.names) if query.names != self.names else [self.random.choice(self.names)]
        self._tell(f"{query.name} reads {query.names}")

    def _drop_and_add(self) -> None:
        """Read a stream no more while a micro-batch is not finished, and read it again."""
        query, machine = self.random.choice(self.queries), self.machine
        if len(self.names) < 2 or query.over or query.names != self.names:
            return
        query.down_until = machine.now + 300
        while not query.is_unfinished and machine.now < query.down_until - 100:
            machine.sleep(5.0)
        query.given["removedStreams"] = "drop"
        query.names = [self.random.choice(self.names)]
        self._kill_planner_of(query)
        self._tell(
            f"{query.name} reads {query.names}, and its last micro-batch is {'not ' * query.is_unfinished}finished"
        )
        query.down_until = -inf
        machine.sleep(self.random.choice((5.0, 20.0, 100.0)))
        query.names = list(self.names)
        self._kill_planner_of(query)
        self._tell(f"{query.name} reads {query.names}")

    def _recreate(self) -> None:
        name = self.random.choice(self.names)
        if self.random.random() < 0.3 and all(query.checkpoint.commits for query in self.queries):
            self._tell(f"{name} is created again")
            self.recreated.add(name)
            self.world.recreate(name, self.random.randint(1, 3))

    def _end_at_tips(self) -> None:
        """Let a query end at the tips, and start again."""
        query = self.random.choice(self.queries)
        if not query.over:
            self._kill_planner_of(query)
            self._let_end(query)

    def _let_end(self, query: SparkQuery) -> None:
        """Let a query end with each start, or go on."""
        if query.ends_at_tips or query.once:
            query.ends_at_tips = query.once = False
            query.ends_before, query.ends_after, query.ends_early = inf, {}, False
            query.given.pop("catchUp", None)
            query.given.pop("endingPosition", None)
            return
        if self.fetchers and not self.sees_tips:
            # A run does not have the events, so it does not know the last record before an end within one; see docs/why-it-holds.md.
            return
        # What looks for tips does not wait until a new shard is known.
        self.world.unknown_seconds = 0.0
        if self.spark < (4, 2):
            query.once = True
            query.given["catchUp"] = "true"
        elif self.sees_tips and self.random.random() < 0.5:
            query.once = True
        else:
            query.ends_at_tips = True
            if not self.sees_tips or self.random.random() < 0.5:
                query.ends_early = True

    def _kill_planner_of(self, query: SparkQuery) -> None:
        if query.running is not None:
            self.machine.kill(query.running)
            query.running = None


class _Reports(logging.Handler):
    def __init__(self, world: Callable[[], LossWorld | None]) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world()
        if world is not None and world.machine.current.process.lives:  # what a killed process logs nobody sees
            world.reports += [Report(world.now, text) for text in single(record.getMessage())]


@contextmanager
def _quick(seed: int, machine: Machine, directory: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # So that the same seed plays the same world, the order of files included.
        names = Random(f"{seed}: names")
        patch.setattr(secrets, "token_hex", lambda size=32: names.randbytes(size).hex())
        patch.setattr(secrets, "token_urlsafe", lambda size=32: names.randbytes(size).hex())
        patch.setattr(clients, "uuid4", lambda: SimpleNamespace(hex=names.randbytes(16).hex()))
        patch.setattr(stream_planner, "threading", Threads(machine))
        patch.setattr(stream_planner, "time", Time(machine))
        patch.setattr(stream_planner, "notes_directory", lambda: directory)
        patch.setattr(stream_planner, "SPARK_VERSION", (4, 3))
        # How often it is looked whether a process lives; most of the time of a world would go into that.
        for module, name in (
            (shared_run, "_LOOK_SECONDS"), (run_process, "_JVM_SECONDS"), (clients, "_LOOK_SECONDS"), (remote_fetcher, "_WAIT_SECONDS"),
        ):  # fmt: skip
            patch.setattr(module, name, 5.0)
        patch.setattr(run_link, "_STEP_SECONDS", 5.0)
        yield


@contextmanager
def simulated(seed: int, machine: Machine) -> Iterator[tuple[Path, list[LossWorld]]]:
    """Let the library's processes be those of a machine, until it is closed. Gives a directory for programs, and a list for the world:
    what the library warns of is added to its reports."""
    standard_random.seed(f"{seed}: backoffs")
    world: list[LossWorld] = []
    library = logging.getLogger("kinesis_efo")
    handler = _Reports(lambda: world[0] if world else None)
    library.addHandler(handler)
    propagates, library.propagate = library.propagate, False
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            in_virtual_time(machine),
            with_fetchers(),
            _quick(seed, machine, Path(directory)),
        ):
            yield Path(directory), world
    finally:
        library.removeHandler(handler)
        library.propagate = propagates


def play(seed: int) -> Outcome:
    """Play the scenario of a seed.

    Args:
        seed: The seed.

    Raises:
        AssertionError: A promise was broken.
    """
    machine = Machine()
    with simulated(seed, machine) as (directory, world):
        scenario = Scenario(seed, machine, directory)
        world.append(scenario.world)
        try:
            return scenario.play()
        except AssertionError as broken:
            broken.add_note(scenario.told())
            raise


def first_broken(seeds: Iterable[int]) -> int | None:
    """Play seeds until a promise is broken; returns that seed, or None."""
    for seed in seeds:
        try:
            play(seed)
        except Exception:
            # Without a line of its own, the library may break more than a promise.
            return seed
    return None
