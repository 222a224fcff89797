"""`kinesis-efo manifest init`: a manifest from what exists in an account, and what it says where something does not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.manifest import parse_manifest
from kinesis_efo_local import LocalAws
from tests.integration.cli.conftest import Cli, Here
from tests.support.aws_lines import run_line
from tests.support.world import World, wait_until


def wish(here: World, *streams: str, table: str | None = None) -> list[str]:
    """The arguments that ask for a manifest of a world."""
    named = [argument for each in streams for argument in ("--stream", each)]
    return ["manifest", "init", "--application", "lake", "--table", table or here.lease_table, *named]


def test_init_writes_the_manifest_of_the_infrastructure(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    streams = [f"orders={here.streams['orders']}", f"clicks={here.streams['clicks']}"]
    found = cli.run(*wish(here, *streams), "--environment", "test", "--out", "-")
    assert (found.code, found.err) == (0, "")
    assert found.out == json.dumps(json.loads(here.manifest.read_text()), indent=2) + "\n"
    plain = cli.run(*wish(here, here.streams["orders"])).data
    assert (list(plain["streams"]), plain["environment"]) == ([here.streams["orders"]], "default")


@pytest.mark.parametrize("of_consumer", [True, False], ids=["consumer", "stream"])
@pytest.mark.parametrize("name", ["orders=", ""])
def test_arn_alone_names_stream_region_and_consumer(
    cli: Cli, here: Here, monkeypatch: pytest.MonkeyPatch, of_consumer: bool, name: str
) -> None:
    if of_consumer:
        here.consumer("audit")
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    arn = here.consumers["orders"]
    found = cli.run(*wish(here, name + (arn if of_consumer else arn.partition("/consumer/")[0])))
    assert found.code == 0, found.err
    assert found.data["region"] == "us-east-1"
    assert found.data["streams"][name.rstrip("=") or here.streams["orders"]]["consumerArn"] == arn


def test_one_of_several_consumers_must_be_named(cli: Cli, here: Here) -> None:
    audit = here.consumer("audit")
    stream = f"orders={here.streams['orders']}"
    cli.run(*wish(here, stream)).ends(
        1, f"{here.streams['orders']} has 2 consumers: 'audit', 'lake'; say which", "--consumer", out=""
    )
    assert cli.run(*wish(here, stream), "--consumer", "audit").data["streams"]["orders"]["consumerArn"] == audit


def test_all_missing_resources_are_named_with_a_remedy(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    here.kinesis.deregister_stream_consumer(ConsumerARN=here.consumers["clicks"])
    streams = [f"orders={here.streams['orders']}", f"clicks={here.streams['clicks']}", "visits=nowhere"]
    cli.run(*wish(here, *streams, table="no-such-table"), "--consumer", "audit").ends(
        1,
        "no manifest for application 'lake' in us-east-1:",
        f"consumer of orders: {here.streams['orders']} has no consumer 'audit': it has 'lake'; nothing is",
        f"consumer of clicks: {here.streams['clicks']} has no consumer 'audit': it has none; nothing is",
        "stream visits: 'nowhere' does not exist; correct the name",
        "lease table: 'no-such-table' does not exist; correct the name, deploy the table, or make it",
        out="",
    )
    still = here.kinesis.list_stream_consumers(StreamARN=here.consumers["clicks"].partition("/consumer/")[0])
    assert still["Consumers"] == [], "nothing is registered"
    assert "no-such-table" not in here.dynamodb.list_tables()["TableNames"]


def test_printed_lines_create_the_missing_resources(cli: Cli, aws: LocalAws) -> None:
    arguments = ["manifest", "init", "--application", "lake", "--table", "leases-by-hand", "--stream", "by-hand"]
    # Without a stream, nobody knows the ARN that its consumer needs.
    for services in (["dynamodb", "kinesis"], ["kinesis"]):
        lines = re.findall(r"make it: (aws .*)", cli.run(*arguments).err)
        assert sorted(line.split()[1] for line in lines) == services
        for line in lines:
            run_line(aws.client, line)
    wait_until(lambda: cli.run(*arguments).code == 0)
    assert cli.run(*arguments).data["streams"]["by-hand"]["consumerArn"].partition("/consumer/")[2].startswith("lake:")


def test_unusable_resource_is_named(cli: Cli, here: Here) -> None:
    stream, gone = f"orders={here.streams['orders']}", here.consumers["orders"]
    here.dynamodb.create_table(
        TableName=f"{here.lease_table}-other",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    cli.run(*wish(here, stream, table=f"{here.lease_table}-other")).ends(
        1, "has the key schema HASH id (S), a lease table has HASH leaseKey (S)"
    )
    cli.refuse("ListStreamConsumers")
    cli.run(*wish(here, stream)).ends(
        1, "consumer of orders: AccessDeniedException", "allow kinesis:ListStreamConsumers to the role"
    )
    here.kinesis.deregister_stream_consumer(ConsumerARN=gone)
    cli.run(*wish(here, f"orders={gone}")).ends(
        1, f"consumer of orders: {gone} does not exist (any more); name the consumer that exists"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stream", "orders=a", "--stream", "orders=b"], "names 'orders' twice"),
        (["--stream", "orders=a", "--stream", "clicks=a"], "names 'a' twice"),
        (
            ["--stream", "arn:aws:kinesis:eu-west-1:111122223333:stream/a", "--region", "us-east-1"],
            "name several regions: eu-west-1, us-east-1",
        ),
        (["--stream", "orders", "--out", "ssm:///kinesis-efo/dev/lake"], "--out must be a file"),
    ],
)
def test_contradictions_are_refused_before_any_call(cli: Cli, aws: Any, arguments: list[str], said: str) -> None:
    cli.run("manifest", "init", "--application", "lake", "--table", "leases", *arguments).ends(1, said, out="")


def test_missing_region_is_named(cli: Cli, aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    cli.run("manifest", "init", "--application", "lake", "--table", "leases", "--stream", "orders").ends(
        1, "no AWS region: give --region, or set AWS_REGION"
    )


def test_file_is_never_overwritten_without_force(cli: Cli, tmp_path: Path) -> None:
    here, file = cli.world(), tmp_path / "lake.json"
    asked = [*wish(here, f"orders={here.streams['orders']}"), "--out", file]
    cli.run(*asked[:-1], tmp_path / "none" / "lake.json").ends(1, "lake.json cannot be written: No such file")
    cli.run(*asked).ends(0, f"wrote {file}: 1 stream, lease table {here.lease_table}", out="")
    assert parse_manifest(file.read_bytes(), "").streams["orders"].consumer_arn == here.consumers["orders"]
    assert cli.run("manifest", "check", "--manifest", file).code == 0

    file.write_text("mine")
    cli.run(*asked).ends(3, "Use --force to overwrite it", out="")
    assert file.read_text() == "mine"
    assert cli.run(*asked, "--force").code == 0
    assert parse_manifest(file.read_bytes(), "").application == "lake"
