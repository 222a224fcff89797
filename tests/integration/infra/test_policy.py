"""The policies of readers and writers, as Terraform evaluates them, allow all calls of the library and no others."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from botocore.exceptions import ClientError

from infra.stacks.app import synthesize
from kinesis_efo.aws import AsyncClients, SyncClients
from kinesis_efo.batch.planning import plan, tip_at
from kinesis_efo.batch.reading import Reading
from kinesis_efo.errors import AccessRefusedError, LeaseError
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Conflict
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.manifest import load_manifest
from kinesis_efo.options import AwsSettings, BatchOptions
from kinesis_efo.producer import Producer
from kinesis_efo_infra.iam import POLL_STREAM
from kinesis_efo_infra.pipeline.local import LocalStack
from kinesis_efo_local import LocalAws, Settings
from tests.integration.infra.conftest import write_environment
from tests.support.fetching import beside, reading
from tests.support.iam import Enforced, many
from tests.support.terraform.harness import Terraform
from tests.support.world import wait_until

REGION, ACCOUNT = "eu-west-1", "123456789012"
SIDS = (
    "ReadStreams", "SubscribeToConsumers", "DecryptStreams", "KeepLeases", "DecryptLeasesAndManifest", "LoadManifest",
)  # fmt: skip
WRITING = ("WriteStreams", "EncryptStreams")


@dataclass
class Policy:
    """The policy of an application, and the keys of what it uses."""

    text: str
    keys: Mapping[str, str]

    @property
    def granted(self) -> set[str]:
        statements = [each for each in json.loads(self.text)["Statement"] if each["Effect"] == "Allow"]
        return {action for each in statements for action in many(each["Action"])}


@dataclass
class World:
    """An environment that Terraform declared in local AWS, and the policies it evaluated."""

    aws: LocalAws
    gate: Enforced
    lake: Policy
    narrow: Policy
    polling: Policy
    batch: Policy
    writer: Policy

    def enforce(self, policy: Policy, without: str | None = None) -> None:
        self.gate.enforce(policy.text, policy.keys, without=without)

    @property
    def options(self) -> dict[str, str]:
        return {"endpointUrl": self.aws.endpoint_url, "region": REGION}

    @property
    def settings(self) -> AwsSettings:
        return AwsSettings(region=REGION, endpoint_url=self.aws.endpoint_url)


@pytest.fixture(scope="module")
def declared(provider: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An environment that Terraform applied to local AWS, once for all tests here."""
    directory = tmp_path_factory.mktemp("policy")
    environment = write_environment(
        directory,
        account_id=ACCOUNT,
        streams={"orders": {"mode": "provisioned", "shards": 2}, "clicks": {"mode": "provisioned", "shards": 2}},
        applications={
            "lake": {"streams": ["orders"], "batch": True},
            "copy": {"streams": ["orders"], "writes": ["clicks"]},
            "poll": {"streams": ["orders"], "polling": "only"},
            "narrow": {"streams": ["orders"], "polling": False},
        },
    )
    gate = Enforced(REGION, ACCOUNT)
    settings = Settings(
        region=REGION,
        account_id=ACCOUNT,
        consumer_creating_seconds=0,
        idle_event_seconds=0.2,
        # One test after the other subscribes to the same shards.
        resubscribe_seconds=0,
        subscribe_interval_seconds=0,
    )
    with LocalAws(settings=settings, faults=gate) as aws:
        stack = synthesize([environment], directory, outdir=directory / "local") / "stacks" / "kinesis-efo-test"
        LocalStack(stack, aws.endpoint_url)
        terraform = Terraform(stack, provider)
        terraform.apply()
        state = terraform.state()
        stream, clicks = (state[f"aws_kinesis_stream.{name}"]["arn"] for name in ("orders", "clicks"))
        own, shared, other = (state[f"aws_kms_key.{name}"]["arn"] for name in ("orders", "environment_key", "clicks"))

        def policy(name: str, reads: str = "", reader: str = "") -> Policy:
            """The policy `name` of an application that reads a stream or by a consumer, and has a table and a manifest."""
            keys = {
                reads or state[f"aws_kinesis_stream_consumer.orders_{name}"]["arn"]: own,
                state[f"aws_dynamodb_table.{reader or name}"]["arn"]: shared,
                f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/kinesis-efo/test/{reader or name}": shared,
            }
            return Policy(state[f"aws_iam_policy.{name}"]["policy"], keys)

        aws.client("kinesis").put_record(StreamARN=stream, PartitionKey="k", Data=b"event")
        writer = Policy(state["aws_iam_policy.copy"]["policy"], {clicks: other})
        batch = policy("lake_batch", stream, "lake")
        yield World(aws, gate, policy("lake"), policy("narrow"), policy("poll", stream), batch, writer)


@pytest.fixture
def world(declared: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The environment with an empty lease table, and nothing enforced yet."""
    declared.gate.statements = None
    for name, value in declared.aws.environment.items():
        monkeypatch.setenv(name, value)
    dynamodb = declared.aws.client("dynamodb")
    for item in dynamodb.scan(TableName="kinesis-efo-test-lake")["Items"]:
        dynamodb.delete_item(TableName="kinesis-efo-test-lake", Key={"leaseKey": item["leaseKey"]})
    return declared


def life(world: World, application: str = "lake", *, catches_up: bool = True) -> int:
    """Make all calls of a reader, from the manifest to the removal of a lease; returns the number of rows read.

    Args:
        world: The environment.
        application: Key of the application.
        catches_up: Whether a second query of the program is behind the first one, and reads alone first.
    """
    options = {"manifest": f"ssm:///kinesis-efo/test/{application}", "leaseTimeout": "10s", "retryTimeout": "10s"}
    with reading(world, **options, readMode="polling" if application == "poll" else "efo") as query:
        began = query.offset
        query.until(1)
        query.commit()
        if catches_up:
            with beside(query, "behind", began) as behind:
                wait_until(lambda: behind.batch() or world.gate.refused, 60, "rows, or a refused call")
    asyncio.run(clean_up(world, application))
    return len(query.rows)


async def clean_up(world: World, application: str) -> None:
    """Make the calls of a run in which a consumer was missing and a shard ended."""
    manifest = load_manifest(f"ssm:///kinesis-efo/test/{application}", SyncClients(world.settings).client)
    clients = AsyncClients(world.settings, manifest.region)
    async with await clients.open("kinesis") as kinesis, await clients.open("dynamodb") as dynamodb:
        if consumer := manifest.streams["orders"].consumer_arn:
            assert await Topology(kinesis).consumer_exists(consumer)
        table = LeaseTable(dynamodb, manifest.lease_table, declared_by=manifest.source)
        for row in (await table.scan()).leases.values():
            assert isinstance(row, Lease)
            assert not isinstance(await table.delete(row), Conflict)


@pytest.mark.parametrize("application", ["lake", "poll"])
def test_policy_grants_exactly_what_a_reader_calls(application: str, world: World) -> None:
    policy = world.lake if application == "lake" else world.polling
    world.enforce(policy)
    assert life(world, application) > 0
    assert world.gate.refused == set()
    assert policy.granted <= {action for action, _ in world.gate.calls}, "everything that is granted is needed"
    subscribes = {action for action in policy.granted if "Consumer" in action or "Subscribe" in action}
    assert bool(subscribes) == (application == "lake")


def test_catching_up_needs_what_polling_false_removes(world: World) -> None:
    world.enforce(world.narrow)
    assert life(world, "narrow", catches_up=False) > 0
    assert world.gate.refused == set()
    life(world, "narrow")
    assert {action for action, _ in world.gate.refused} == {"kinesis:GetShardIterator"}
    document = json.loads(world.narrow.text)
    (granted,) = (statement for statement in document["Statement"] if statement["Sid"] == "ReadStreams")
    assert not set(many(granted["Action"])) & set(POLL_STREAM)
    granted["Action"] = [*many(granted["Action"]), *POLL_STREAM]
    world.enforce(replace(world.narrow, text=json.dumps(document)))
    assert life(world, "narrow") > 0
    assert world.gate.refused == set()


def read_batch(world: World) -> int:
    """Make all calls of a batch read that begins before the stream's retention; returns the number of rows."""
    manifest = load_manifest("ssm:///kinesis-efo/test/lake", SyncClients(world.settings).client)
    options = BatchOptions.parse(
        {
            "manifest": "m.json",
            "startingPosition": "AT_TIMESTAMP:2020-01-01T00:00Z",
            "failOnDataLoss": "false",
            "maxShardRate": "2m",
        }
    )
    options = replace(options, source=replace(options.source, aws=world.settings))
    manifest = replace(
        manifest, streams={name: replace(ref, consumer_arn=None) for name, ref in manifest.streams.items()}
    )
    planned = asyncio.run(plan(manifest, options, tip_at(time.time())))
    return sum(batch.num_rows for batch in Reading(planned, manifest, options.source).batches())


def test_batch_read_needs_exactly_its_policy(world: World) -> None:
    world.enforce(world.batch)
    assert read_batch(world) == 1
    assert world.gate.refused == set()
    assert {action for action, _ in world.gate.calls} == world.batch.granted
    world.enforce(replace(world.lake, keys=world.batch.keys))
    assert read_batch(world) == 1, "the application's own policy allows it, too"
    world.enforce(replace(world.batch, keys=world.lake.keys))
    with pytest.raises((LeaseError, ClientError), match=r"AccessDenied|not authorized"):
        life(world)


def write(world: World) -> int:
    """Make all calls of a producer; returns the number of records written."""
    with Producer(next(iter(world.writer.keys)), aws=world.settings) as producer:
        producer.put_many([(b"click", "k"), (b"click", "l")])
        producer.flush()
        return producer.metrics.records_written


def test_producer_needs_exactly_what_writing_grants(world: World) -> None:
    world.enforce(world.writer)
    assert write(world) == 2
    statements = [each for each in json.loads(world.writer.text)["Statement"] if each["Sid"] in WRITING]
    granted = {action for each in statements for action in many(each["Action"])}
    assert granted == {action for action, _ in world.gate.calls}
    world.enforce(replace(world.lake, keys=world.writer.keys))
    with pytest.raises(AccessRefusedError, match=r"needs kinesis:ListShards on the stream"):
        write(world)


@pytest.mark.parametrize(
    ("what", "sid"),
    [("lake", sid) for sid in SIDS]
    + [("batch", sid) for sid in ("ReadStreams", "DecryptStreams", "LoadManifest", "DecryptLeasesAndManifest")]
    + [("writer", sid) for sid in WRITING],
)
def test_without_any_one_statement_something_fails(what: str, sid: str, world: World) -> None:
    policy: Policy = getattr(world, what)
    assert sid in {statement["Sid"] for statement in json.loads(policy.text)["Statement"]}
    world.enforce(policy, without=sid)
    calls = {
        "lake": lambda: life(world),
        "batch": lambda: read_batch(world),
        "writer": lambda: write(world),
    }
    expected = AccessRefusedError if what == "writer" else Exception
    with pytest.raises(expected, match=r"AccessDenied|not authorized"):
        calls[what]()
    assert world.gate.refused
