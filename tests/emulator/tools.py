"""`leases import-kcl`, `export-kcl`, `reset` and `release` in virtual time, beside models of a query and of a KCL application.

Both models may run, stop and start at any time while a command waits, reads and writes. What the command confirms is then checked by
starting what it prepared: the other application reads each record that its promise names, once.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random
from typing import Any, cast

import msgspec
import pybase64
from aws_kinesis_agg.aggregator import RecordAggregator
from botocore.exceptions import ClientError

from kinesis_efo.errors import ConfigurationError, KinesisEfoError
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.store import Conflict, LeaseStore
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import AwsSettings, RetrySettings, Start
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Position, PositionKind, ShardKey
from kinesis_efo.raw_bodies import RAW_BODY
from kinesis_efo.run.start import start_offset
from kinesis_efo_local import Settings
from kinesis_efo_local.writing import PutRecord, put_record
from kinesis_efo_tools.cli.change_mode import ChangeMode
from kinesis_efo_tools.cli.commands.leases import ExportKcl, ImportKcl, Release, Reset
from kinesis_efo_tools.cli.failing import CommandExit
from kinesis_efo_tools.cli.lease_access import Leases
from kinesis_efo_tools.cli.lease_transfer import export_from, import_into
from kinesis_efo_tools.cli.leases import release_of, reset_of
from tests.emulator.memory import MemoryClient, MemoryKinesis
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.virtual_time import LoopClock, run

STREAM = "dev-orders"
LEASE_TIMEOUT = 6.0
RENEWAL = 2.0


@dataclass(frozen=True)
class Written:
    """A record of a shard: its number, its arrival in epoch milliseconds, and the numbers of the user records in it."""

    number: int
    arrival: int
    users: tuple[int, ...]


class Stage:
    """A stream with its records, and the lease tables of a query and of a KCL application."""

    def __init__(self, random: Random) -> None:
        self.random, self.clock = random, LoopClock()
        self.kinesis = MemoryKinesis(Settings(write_limit=False, read_limit=False), self.clock)
        self.kinesis.call("CreateStream", StreamName=STREAM, ShardCount=random.randint(1, 3))
        self.ref = StreamRef("orders", STREAM, self.kinesis.state.streams[STREAM].arn, None)
        self.client = ParsingClient(self.kinesis)
        self.keys = LeaseKeys({"orders": STREAM})
        self.ours, self.kcls = MemoryLeaseStore(), MemoryLeaseStore()
        self.records: dict[str, list[Written]] = defaultdict(list)
        self.users = 0
        self.pace = random.choice([1, 5])
        self.reshards = random.choice([0.05, 0.3])

    def put(self) -> None:
        count = self.random.choice([1, 1, 3])
        users = tuple(range(self.users, self.users + count))
        self.users += count
        data = b"%d" % users[0]
        if count > 1:
            aggregator = RecordAggregator()
            for user in users:
                aggregator.add_user_record("k", b"%d" % user)
            data = aggregator.clear_and_get().get_contents()[2]
        key = str(self.random.random())
        self.kinesis.state.settle()
        put = put_record(self.kinesis.state, PutRecord(pybase64.b64encode(data).decode(), key, stream_name=STREAM))
        # Kinesis has the arrival in milliseconds.
        arrival = int(self.clock.time() * 1000)
        self.records[put["ShardId"]].append(Written(int(put["SequenceNumber"]), arrival, users))

    def reshard(self) -> None:
        state = self.kinesis.state.streams[STREAM]
        index = self.random.randrange(len(state.open_shards))
        shard = state.open_shards[index]
        if len(state.open_shards) > 1 and self.random.random() < 0.4:
            one, other = state.open_shards[max(0, index - 1) :][:2]
            self.kinesis.call("MergeShards", StreamName=STREAM, ShardToMerge=one.id, AdjacentShardToMerge=other.id)
        elif len(state.open_shards) < 6:
            middle = str(sum(shard.hash_range) // 2 + 1)
            self.kinesis.call("SplitShard", StreamName=STREAM, ShardToSplit=shard.id, NewStartingHashKey=middle)

    @property
    def shards(self) -> dict[str, Any]:
        return self.kinesis.state.streams[STREAM].shards

    def after(self, shard: str, position: Position) -> Iterator[tuple[Written, tuple[int, ...]]]:
        """The records of a shard from a position on, each with its user records that are not done."""
        for record in self.records[shard]:
            match position.kind:
                case PositionKind.SHARD_END:
                    continue
                case PositionKind.AT_TIMESTAMP if record.arrival < position.value:
                    continue
                case PositionKind.AFTER if record.number <= position.value:
                    continue
                case PositionKind.INSIDE if record.number <= position.value:
                    if record.number == position.value and record.users[position.sub + 1 :]:
                        yield record, record.users[position.sub + 1 :]
                    continue
            yield record, record.users


class ParsingClient(MemoryClient):
    """A client whose GetRecords is parsed, as botocore does. ListShards refuses times before retention, as Kinesis may."""

    async def list_shards(self, **params: Any) -> Any:
        at = params.get("ShardFilter", {}).get("Timestamp")
        if at is not None and at.timestamp() < self._kinesis.state.now().wall - 86_400:
            raise ClientError({"Error": {"Code": "InvalidArgumentException", "Message": "x"}}, "ListShards")
        return await super().list_shards(**params)

    async def get_records(self, **params: Any) -> Any:
        answer = msgspec.json.decode((await super().get_records(**params))[RAW_BODY])
        for record in answer["Records"]:
            record["Data"] = pybase64.b64decode(record["Data"])
            record["ApproximateArrivalTimestamp"] = datetime.fromtimestamp(record["ApproximateArrivalTimestamp"], UTC)
        return answer


class Query:
    """A model of a query's run: holds the run's lease, reads shards in the order of their lineage, and writes their rows."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.name = stage, name
        self.table = Network(stage.ours, stage.random, latency=0.2)
        self.positions: dict[str, Position] = {}
        self.read: list[int] = []
        self.marks: dict[str, LastRecord] = {}
        self.live = False

    async def start(self, start: Start) -> bool:
        """Take the lease, and find the start positions; False if the lease is held."""
        key = run_key("orders")
        row = (await self.table.scan()).leases.get(key)
        if row is not None and row.owner is not None:
            return False
        taken = (row or Lease(key, checkpoint=None)).taken(self.name, "", (row.epoch if row else 0) + 1)
        outcome = await (self.table.create(taken) if row is None else self.table.update(row, taken))
        if isinstance(outcome, Conflict):
            return False
        self.live = True
        await self.begin(start)
        return True

    async def begin(self, start: Start) -> None:
        stage = self.stage
        lister = Topology(stage.client, stage.clock)
        stream = Stream(stage.ref, BotoTransport(stage.client), lister, RetrySettings(), "manifest.json", stage.clock)
        await stream.refresh()
        offset = await start_offset(start, {"orders": stream}, self.table, stage.keys, stage.clock)
        self.positions = {key.shard: position for key, position in offset.items()}

    def step(self) -> bool:
        """Read some records of one shard, or go on to the children of one that has ended; False if there is nothing to do."""
        stage, moved = self.stage, False
        for shard in stage.random.sample(sorted(self.positions), len(self.positions)):
            position = self.positions[shard]
            if position.is_end:
                continue
            left = list(stage.after(shard, position))
            if left:
                unread = [parent for parent in stage.shards[shard].parents if self._left(parent)]
                assert not unread, f"{shard} before its parents {unread}"
                for record, users in left[: stage.random.randint(1, 3)]:
                    self.read += users
                    self.positions[shard] = Position.after(record.number)
                    self.marks[shard] = LastRecord(record.number, len(record.users) - 1)
                return True
            if shard not in stage.shards or stage.shards[shard].closed:
                self.positions[shard] = SHARD_END
                moved = True
                for child in stage.shards[shard].children:
                    if child.id not in self.positions and all(self._done(parent) for parent in child.parents):
                        self.positions[child.id] = TRIM_HORIZON
                break
        return moved

    def _left(self, shard: str) -> bool:
        return any(self.stage.after(shard, self.positions.get(shard, SHARD_END)))

    def _done(self, shard: str) -> bool:
        """Whether a parent holds back no child: it was read, or it was left out at the start."""
        if shard in self.positions:
            return self.positions[shard].is_end
        parents = self.stage.shards[shard].parents if shard in self.stage.shards else ()
        return all(self._done(parent) for parent in parents)

    async def checkpoint(self) -> None:
        rows = (await self.table.scan()).leases
        for shard, position in sorted(self.positions.items()):
            key = self.stage.keys.encode(ShardKey("orders", shard))
            row = rows.get(key)
            if row is None:
                first, last = self.stage.shards[shard].hash_range
                info = LeaseInfo(position, frozenset(self.stage.shards[shard].parents), str(first), str(last))
                await self.table.create(Lease.new(key, info).checkpointed(position, (), self.marks.get(shard)))
            elif row.reached != position:
                children = [each.id for each in self.stage.shards[shard].children] if position.is_end else []
                await self.table.update(row, row.checkpointed(position, children, self.marks.get(shard)))

    async def live_on(self, seconds: float, *, crashes: bool) -> None:
        """Read and renew for some time; then stop gracefully, or crash."""
        until = self.stage.clock.monotonic() + seconds
        while self.stage.clock.monotonic() < until:
            row = (await self.table.scan()).leases[run_key("orders")]
            if row.owner != self.name:
                self.live = False
                return
            await self.table.update(row, row.renewed())
            for _ in range(self.stage.random.randint(0, self.stage.pace)):
                self.step()
            if self.stage.random.random() < 0.5:
                await self.checkpoint()
            await self.stage.clock.sleep(RENEWAL * self.stage.random.random())
        if not crashes:
            await self.checkpoint()
            row = (await self.table.scan()).leases[run_key("orders")]
            self.live = False
            await self.table.update(row, row.released())
        self.live = False


class Kcl:
    """A model of a KCL application with one worker: a row per shard, checkpoints also inside aggregates."""

    def __init__(self, stage: Stage, initial: Position | None, name: str = "kcl") -> None:
        self.stage, self.initial, self.name = stage, initial, name
        self.table = Network(stage.kcls, stage.random, latency=0.2)
        self.began = int(stage.clock.time() * 1000)
        self.audits = stage.random.random() < 0.5
        self.read: list[int] = []
        self.live = False

    async def start(self) -> bool:
        rows = (await self.table.scan()).leases
        if any(row.owner is not None for row in rows.values()):
            return False
        self.live = True
        if not rows:
            self.began = int(self.stage.clock.time() * 1000)  # LATEST is when it lists the shards
            for shard in [each for each in self.stage.shards.values() if self._begins_with(each)]:
                await self._create(shard, self._start)
        for row in (await self.table.scan()).leases.values():
            await self.table.update(row, row.taken(self.name, "", 0))
        return True

    @property
    def _start(self) -> Position | None:
        """What a new row has: KCL stores no time."""
        return TRIM_HORIZON if self.initial == TRIM_HORIZON else None

    def _begins_with(self, shard: Any) -> bool:
        """Whether a new application has a row of a shard: it was open at the initial position; sometimes later ones have rows, too."""
        if self.initial is None:
            return not shard.closed
        if self.initial == TRIM_HORIZON:
            return not shard.parents
        if shard.closed and shard.closed_at * 1000 < self.initial.value:
            return False
        return shard.created_at * 1000 <= self.initial.value or self.audits

    async def _create(self, shard: Any, start: Position | None) -> None:
        first, last = shard.hash_range
        info = LeaseInfo(TRIM_HORIZON, frozenset(shard.parents), str(first), str(last))
        await self.table.create(replace(Lease.new(shard.id, info), checkpoint=start, owner=self.name))

    async def step(self) -> bool:
        rows = (await self.table.scan()).leases
        for key in self.stage.random.sample(sorted(rows), len(rows)):
            row = rows[key]
            if row.position == SHARD_END or any(
                parent in rows and rows[parent].position != SHARD_END for parent in row.parents
            ):
                continue
            latest = Position.at_timestamp(self.began)
            left = list(self.stage.after(key, row.position or self.initial or latest))
            if left:
                record, users = left[0]
                users = users[: self.stage.random.randint(1, len(users))]
                sub = record.users.index(users[-1])
                after = replace(row, counter=row.counter + 1, checkpoint=Position.after(record.number), sub=sub)
                if not isinstance(await self.table.update(row, after), Conflict):
                    self.read += users
                return True
            if self.stage.shards[key].closed:
                for child in self.stage.shards[key].children:
                    others = [parent for parent in child.parents if parent != key]
                    if child.id not in rows and not any(self._unfinished(each, rows) for each in others):
                        await self._create(child, TRIM_HORIZON)
                await self.table.update(row, replace(row, counter=row.counter + 1, checkpoint=SHARD_END, sub=0))
                return True
        return False

    def _unfinished(self, shard: str, rows: Mapping[str, Lease]) -> bool:
        if shard in rows:
            return rows[shard].position != SHARD_END
        return any(self._unfinished(parent, rows) for parent in self.stage.shards[shard].parents)

    async def live_on(self, seconds: float) -> None:
        until = self.stage.clock.monotonic() + seconds
        while self.stage.clock.monotonic() < until:
            for row in (await self.table.scan()).leases.values():
                if row.owner == self.name:
                    await self.table.update(row, replace(row, counter=row.counter + 1))
            if self.audits:
                rows = (await self.table.scan()).leases
                for shard in [each for each in self.stage.shards.values() if each.id > max(rows, default="")]:
                    await self._create(shard, self._start)
            for _ in range(self.stage.random.randint(0, self.stage.pace)):
                await self.step()
            await self.stage.clock.sleep(RENEWAL * self.stage.random.random())
        for row in (await self.table.scan()).leases.values():
            if row.owner == self.name:
                await self.table.update(row, row.released())
        self.live = False


class StagedLeases(Leases):
    """The application whose tables are in memory."""

    kcl: LeaseStore

    async def other_table(self, name: str, option: str) -> LeaseStore:
        return self.kcl


class StagedAccess:
    """Clients of the Kinesis in memory."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self.clock, self.table_clock = stage, stage.clock, stage.clock

    async def client(self, service: str) -> Any:
        assert service == "kinesis"
        return self._stage.client

    async def kinesis_time(self, stream_arn: str) -> float:
        await asyncio.sleep(0.01)
        return self.clock.time()


def application(stage: Stage) -> StagedLeases:
    refs = {"orders": stage.ref}
    manifest = Manifest("lake", "dev", "us-east-1", "leases", refs, "manifest.json", {"orders": STREAM})
    table = Network(stage.ours, stage.random, latency=0.2)
    made = StagedLeases(table, stage.keys, manifest, frozenset(), cast(Any, StagedAccess(stage)), stage.clock)
    object.__setattr__(made, "kcl", Network(stage.kcls, stage.random, latency=0.2))
    return made


@dataclass
class Played:
    """What a scenario came to: the command, and how it ended."""

    command: str
    ended: str


class Scenario:
    """One command beside queries and a KCL application that come and go."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        # Whether a reset to a time is to one before retention, and a KCL's table has rows in the form of several streams.
        self.rare = Random(f"{seed}: rare").random() < 0.3
        self.stage = Stage(self.random)
        self.queries: list[Query] = []
        self.kcl: list[Kcl] = []
        self.crashed = False
        self.chosen: list[str] = []
        self.over = False

    async def play(self) -> Played:
        random, clock = self.random, self.stage.clock
        command = random.choice(
            ["export", "export", "import", "import", "import", "import", "reset", "reset", "release"]
        )
        writing = asyncio.ensure_future(self._write())
        await clock.sleep(1 + 3 * random.random())
        if command == "import":
            time = Position.at_timestamp(int(clock.time() * 1000))
            self.initial = random.choice([TRIM_HORIZON, None, time])
            await clock.sleep(10 * random.random())
            workers = self._kcl()
        else:
            workers = self._runs()
        working = asyncio.ensure_future(workers)
        await clock.sleep(random.choice([2.0, 20.0]) * random.random())
        if command == "reset" and random.random() < 0.7:
            await working
        ended = await self._command(command)
        # Everything stops at this moment.
        self.over = True
        for task in (working, writing):
            task.cancel()
        await asyncio.gather(working, writing, return_exceptions=True)
        for _ in range(random.randint(0, 8)):
            self.stage.put()
        if ended == "done":
            await getattr(self, f"_check_{command}")()
        return Played(command, ended)

    async def _write(self) -> None:
        while True:
            if self.random.random() < self.stage.reshards:
                self.stage.reshard()
            self.stage.put()
            await self.stage.clock.sleep(self.random.random())

    async def _runs(self) -> None:
        """Queries, one after the other; each goes on where the one before stopped."""
        for number in range(self.random.choice([1, 1, 2, 3])):
            query = Query(self.stage, f"run-{number}")
            self.queries.append(query)
            last = self.queries[number - 1] if number else None
            if await query.start(Start(position=TRIM_HORIZON) if last is None else Start(from_leases=True)):
                crashes = self.random.random() < 0.2
                await query.live_on(self.random.choice([3.0, 12.0]) * self.random.random(), crashes=crashes)
                self.crashed |= crashes
                if crashes:
                    return
            await self.stage.clock.sleep(self.random.choice([1.0, 30.0]) * self.random.random())

    async def _kcl(self) -> None:
        for number in range(self.random.choice([1, 1, 2, 3])):
            worker = Kcl(self.stage, self.initial, f"kcl-{number}")
            if number:
                worker.began = self.kcl[0].began
            self.kcl.append(worker)
            if await worker.start():
                await worker.live_on(self.random.choice([3.0, 12.0]) * self.random.random())
            await self.stage.clock.sleep(self.random.choice([1.0, 30.0]) * self.random.random())

    async def _command(self, command: str) -> str:
        mode = ChangeMode(LEASE_TIMEOUT, dry_run=False, force=False, yes=True, as_json=True)
        given: dict[str, Any] = {"mode": mode, "aws": AwsSettings(), "manifest": "manifest.json"}
        here, random = application(self.stage), self.random
        self.before = int(self.stage.clock.time() * 1000)
        self.rows = dict(self.stage.ours.items)
        try:
            match command:
                case "export":
                    if self.rare:
                        await self.stage.kcls.create(Lease(f"1:{STREAM}:2:{min(self.stage.shards)}"))
                    await export_from(here, ExportKcl(**given, table="OrdersKcl"))
                case "import":
                    self.given = random.choice([True, False])
                    text: str | None = "LATEST" if self.initial is None else str(self.initial)
                    text = text if self.given else None
                    await import_into(here, ImportKcl(**given, from_table="OrdersKcl", initial_position=text))
                case "reset":
                    time = self.before - (2 * 86_400_000 if self.rare else 1500)
                    self.to = random.choice(["TRIM_HORIZON", "LATEST", f"AT_TIMESTAMP:{time}"])
                    if (rows := sorted(self._rows(self.rows))) and random.random() < 0.7:
                        read = [shard for shard, position in self._rows(self.rows).items() if position.is_end]
                        self.chosen = random.sample(rows, min(len(rows), random.choice([1, 1, 2])))
                        if read and random.random() < 0.5:
                            self.chosen = [random.choice(read)]
                        self.to = random.choice(["TRIM_HORIZON", "SHARD_END", self._after_a_record()])
                        object.__setattr__(here, "shards", frozenset(self.chosen))
                        here.table.update = self._watched(here.table.update)  # type: ignore[method-assign]
                    await reset_of(here, Reset(**given, to=self.to, shard=self.chosen))
                    if not self.seen:
                        self.rows = dict(self.stage.ours.items)  # nothing was to be changed in them
                case "release":
                    await release_of(here, Release(**given))
        except CommandExit as refused:
            return refused.code.name.lower()
        except ConfigurationError as refused:
            return "unknown" if "--initial-position" in str(refused) else "nothing"
        except KinesisEfoError as refused:
            raise AssertionError(f"{command} failed") from refused
        return "done"

    # -- the promises

    async def _check_export(self) -> None:
        """The KCL reads what the queries have not read; once, if no query crashed and each shard has a row with a record."""
        assert len({":" in key for key in self.stage.kcls.items}) == 1, "rows of two forms"
        kcl = Kcl(self.stage, TRIM_HORIZON, "afterwards")
        assert await kcl.start()
        while await kcl.step():
            pass
        read = Counter(user for query in self.queries for user in query.read) + Counter(kcl.read)
        assert read.keys() == set(range(self.stage.users)), "lost"
        assert self.crashed or max(read.values()) == 1, "twice"

    async def _check_import(self) -> None:
        read = Counter(user for each in self.kcl for user in each.read) + Counter(await self._query())
        expected = {user for record in self._all() if self._belongs(record) for user in record.users}
        assert expected - read.keys() <= self._given_up(), "lost"
        assert max(read.values(), default=1) == 1, "twice"
        assert read.keys() <= expected, "more than the KCL application would read"

    def _rows(self, items: Mapping[str, Any]) -> dict[str, Position]:
        """What the shards' rows say, by shard."""
        rows = [row for item in items.values() if (row := Lease.from_item(item)) is not None and not row.is_run]
        return {shard.shard: row.position or TRIM_HORIZON for row in rows if (shard := self.stage.keys.decode(row.key))}

    def _after_a_record(self) -> str:
        records = self.stage.records[self.chosen[0]]
        return f"AFTER:{self.random.choice(records).number}" if records else "TRIM_HORIZON"

    def _watched(self, update: Any) -> Any:
        """Remember the rows from before the first update."""

        async def watched(*given: Any) -> Any:
            if not self.seen:
                self.seen, self.rows = True, dict(self.stage.ours.items)
            return await update(*given)

        return watched

    seen = False

    async def _check_reset_of_shards(self) -> None:
        """The query reads the chosen shards from the new position, and what it would have read of the others."""
        read = set(await self._query())
        before, known = self._rows(self.rows), self.stage.shards
        begun = {shard for shard, position in before.items() if position.is_end or position.sequence_number is not None}
        passed, ahead = set(), list(begun)
        while ahead:
            parents = [parent for parent in known[ahead.pop()].parents if parent not in passed]
            passed |= set(parents)
            ahead += parents
        to = Position.parse(self.to)
        for shard, position in before.items():
            start = to if shard in self.chosen else position
            if shard in self.chosen or shard not in passed:
                expected = {user for _, users in self.stage.after(shard, start) for user in users}
                assert expected <= read, f"{shard} is not read from {start}, {'chosen' if shard in self.chosen else ''}"

    async def _check_reset(self) -> None:
        if self.chosen:
            await self._check_reset_of_shards()
            return
        read = Counter(await self._query())
        start = {"TRIM_HORIZON": 0, "LATEST": self.before + 20_000}.get(self.to)
        if start is None:
            start = Position.parse(self.to).value
            assert TRIM_HORIZON not in self._rows(self.stage.ours.items).values(), "what was trimmed is no loss"
        expected = {user for record in self._all() if record.arrival >= start for user in record.users}
        assert expected <= read.keys(), "lost"
        assert max(read.values(), default=1) == 1, "twice"

    async def _check_release(self) -> None:
        owners = {item["leaseOwner"]["S"] for item in self.stage.ours.items.values() if "leaseOwner" in item}
        assert {each.name for each in self.queries if each.live} <= owners, "taken from a live run"

    async def _query(self) -> list[int]:
        query = Query(self.stage, "afterwards")
        await query.begin(Start(from_leases=True))
        while query.step():
            pass
        return query.read

    def _all(self) -> list[Written]:
        return [record for records in self.stage.records.values() for record in records]

    def _given_up(self) -> set[int]:
        """What the initial position LATEST of shards that were not begun leaves out: it is the time of the import."""
        if self.initial is not None:
            return set()
        rows = {key: Lease.from_item(item) for key, item in self.stage.kcls.items.items()}
        found: set[int] = set()
        for key, row in rows.items():
            assert row is not None
            parents = [each for parent in row.parents if (each := rows.get(parent))]
            if row.checkpoint is None and all(each.checkpoint in (None, SHARD_END) for each in parents):
                found |= {user for record in self.stage.records[key] for user in record.users}
        return found

    def _belongs(self, record: Written) -> bool:
        if self.initial is None:
            return record.arrival >= self.kcl[0].began
        return self.initial == TRIM_HORIZON or record.arrival >= self.initial.value


def play(seed: int) -> Played:
    """Play a scenario, in virtual time."""

    async def main() -> Played:
        return await Scenario(seed).play()

    return run(main())
