"""What exists already is imported, and never replaced; and whoever scales a stream is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError, SettingsError
from infra.pipeline.deployments import deployment_of
from infra.settings import addresses, ledger, literals, rules
from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.stacks import permissions
from kinesis_efo_infra import iam
from kinesis_efo_infra.cdk import KinesisStream
from kinesis_efo_infra.pipeline.plans import _refuse
from tests.support.missing import terraform

TODAY = date(2027, 1, 31)

Write = Callable[..., Path]
Load = Callable[..., Environment]
Synth = Callable[..., dict[str, Any]]

STREAM = "arn:aws:kinesis:eu-west-1:111122223333:stream/old"
LAKE = f"{STREAM}/consumer/lake:1700000000"
FOREIGN = "arn:aws:kinesis:eu-west-1:777788889999:stream/old"
SHARED = {"kind": "other-account", "principals": ["arn:aws:iam::777788889999:root"]}


def old(**changes: Any) -> dict[str, Any]:
    return {"orders": {"name": "old", "import_existing": True, "import_consumers": {"lake": LAKE}, **changes}}


def apps(**changes: Any) -> dict[str, Any]:
    return {"lake": {"streams": ["orders"], **changes}}


ALL = {"streams": old(), "applications": apps(lease_table="Old", import_lease_table=True)}


def test_stream_consumer_and_table_are_imported_by_name_and_arn(synth: Synth, load: Load) -> None:
    terraform()
    stack = synth(**ALL)
    assert sorted(stack["import"], key=lambda each: str(each["to"])) == [
        {"id": "Old", "to": "aws_dynamodb_table.lake"},
        {"id": "old", "to": "aws_kinesis_stream.orders"},
        {"id": LAKE, "to": "aws_kinesis_stream_consumer.orders_lake"},
    ]
    assert {each["to"] for each in stack["import"]} == set(addresses.imports(load(**ALL)))
    assert stack["resource"]["aws_kinesis_stream"]["orders"]["name"] == "old"
    assert stack["resource"]["aws_kinesis_stream_consumer"]["orders_lake"]["name"] == "lake"
    plain = synth(streams={"orders": {"name": "old"}}, applications=apps(lease_table="Old"))
    del stack["import"]
    assert stack == plain, "an import changes nothing else"


def test_by_default_a_stream_is_imported_by_the_name_of_its_entry(synth: Synth) -> None:
    terraform()
    assert synth(streams={"orders": {"import_existing": True}})["import"] == [
        {"id": "test-orders", "to": "aws_kinesis_stream.orders"}
    ]


def test_a_consumer_on_an_adopted_stream_may_be_imported_too(synth: Synth) -> None:
    terraform()
    adopted = {"orders": {"existing_arn": STREAM, "import_consumers": {"lake": LAKE}}}
    stack = synth(streams=adopted)
    assert stack["import"] == [{"id": LAKE, "to": "aws_kinesis_stream_consumer.orders_lake"}]
    assert "aws_kinesis_stream" not in stack["resource"]


def test_sizes_are_computed_with_the_arns_that_are_known(load: Load) -> None:
    environment = load(**ALL)
    assert literals.literal_consumer_arn(environment, "orders", "lake") == LAKE
    assert LAKE in literals.literal_manifest(environment, "lake")


def test_the_ledger_takes_what_is_imported_for_declared(load: Load, tmp_path: Path) -> None:
    written = ledger.accept(tmp_path, load(protected=True, **ALL)).read_text(encoding="utf-8")
    for line in ("aws_kinesis_stream.orders old", "aws_kinesis_stream_consumer.orders_lake old/lake"):
        assert line in written
    declared = load(protected=True, streams={"orders": {"name": "old"}}, applications=apps(lease_table="Old"))
    ledger.check(tmp_path, declared)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"streams": old(moved_from="shop")},
            r"streams.orders.import_existing: must not be given with moved_from: what",
        ),
        (
            {"streams": old(moved_from="shop")},
            r"streams.orders.import_consumers.lake: must not be given with moved_from",
        ),
        (
            {"streams": old(), "applications": apps(name="lake", moved_from="pond")},
            r"streams.orders.import_consumers.lake: must not be given with moved_from",
        ),
        (
            {"applications": apps(name="l", lease_table="Old", import_lease_table=True, moved_from="pond")},
            r"applications.lake.import_lease_table: must not be given with moved_from",
        ),
        (
            {"streams": old(name="new")},
            rf"streams.orders.import_consumers.lake: must be a consumer of .*new; got '{LAKE}'",
        ),
        (
            {"streams": old(), "applications": apps(name="pond")},
            r"streams.orders.import_consumers.lake: must be called pond, as .*; say applications.lake.name:; got 'arn",
        ),
        (
            {"streams": old(import_consumers={"pond": LAKE})},
            r"streams.orders.import_consumers.pond: names an application that this file does not have; got 'pond'",
        ),
        (
            {"streams": {**old(), "clicks": {}}, "applications": apps(streams=["clicks"])},
            r"streams.orders.import_consumers.lake: must be of an application that reads orders, which lake does not",
        ),
        (
            {"streams": old(), "applications": apps(polling="only")},
            r"streams.orders.import_consumers.lake: must not be given: lake says polling: only",
        ),
        (
            {
                "streams": {
                    "orders": {"existing_arn": STREAM, "consumers": {"lake": LAKE}, "import_consumers": {"lake": LAKE}}
                }
            },
            r"streams.orders.import_consumers.lake: must not be given with consumers",
        ),
        (
            {
                "streams": {
                    "orders": {"existing_arn": FOREIGN, "import_consumers": {"lake": f"{FOREIGN}/consumer/lake:1"}}
                }
            },
            r"streams.orders.import_consumers.lake: must be in account 111122223333: its owner declares it elsewhere",
        ),
        ({"streams": old(import_consumers={"lake": STREAM})}, r"streams.orders.import_consumers.lake: must match "),
        ({"streams": {"orders": {"import": True}}}, r"streams.orders.import: is called import_existing; got True"),
        (
            {"applications": apps(adopt_lease_table=True)},
            r"applications.lake.adopt_lease_table: is called import_lease_",
        ),
        (
            {"streams": {"orders": {"existing_arn": STREAM, "import_existing": True}}},
            r"streams.orders.import_existing: is not a known setting; AdoptedStream has existing_arn",
        ),
        (
            {"streams": {"orders": {"scaled_elsewhere": True}}},
            r"streams.orders.scaled_elsewhere: must not be given with mode on-demand, where AWS scales; .*; got True",
        ),
        (
            {"streams": {"orders": {"mode": "provisioned", "scaled_elsewhere": True}}},
            r"streams.orders.shards: is missing: mode provisioned needs the number of shards",
        ),
    ],
)
def test_what_contradicts_an_import_is_refused(changes: dict[str, Any], message: str, write: Write) -> None:
    with pytest.raises(SettingsError) as caught:
        load_environment(write(**changes))
    found = [str(fault).partition("test.yaml ")[2] or str(fault) for fault in caught.value.faults]
    assert any(re.search(message, each) for each in found), found


def test_the_pipeline_refuses_to_replace_what_the_file_imports(load: Load) -> None:
    change = {"actions": ["delete", "create"], "before": {"name": "older"}, "after": {"name": "Old"}}
    plan = {
        "resource_changes": [{"address": "aws_dynamodb_table.lake", "type": "aws_dynamodb_table", "change": change}]
    }
    with pytest.raises(
        PipelineError, match=r"kinesis-efo-test cannot be applied as planned:\n  aws_dynamodb_table.lake "
    ):
        _refuse(deployment_of(load(**ALL)), plan)
    _refuse(deployment_of(load()), plan)


def test_two_files_do_not_import_one_stream(write: Write, tmp_path: Path) -> None:
    from infra.settings.load import load_environments

    write(environment="dev", streams=old(import_consumers={}))
    write(environment="qa", streams=old(import_consumers={}))
    with pytest.raises(SettingsError, match=r"is declared by dev.yaml streams.orders too; each must be declared once"):
        load_environments(tmp_path)


def test_the_number_of_shards_is_left_to_who_scales(synth: Synth, load: Load) -> None:
    scaled = {"orders": {"mode": "provisioned", "shards": 4, "scaled_elsewhere": True}}
    stream = synth(streams=scaled)["resource"]["aws_kinesis_stream"]["orders"]
    assert (stream["shard_count"], stream["lifecycle"]) == (4, {"ignore_changes": ["shard_count"]})
    protected = synth(streams=scaled, protected=True)["resource"]["aws_kinesis_stream"]["orders"]
    assert protected["lifecycle"] == {"ignore_changes": ["shard_count"], "prevent_destroy": True}
    assert list(addresses.scaled_elsewhere(load(streams=scaled))) == ["aws_kinesis_stream.orders"]
    fixed = {"orders": {"mode": "provisioned", "shards": 4}}
    assert "lifecycle" not in synth(streams=fixed)["resource"]["aws_kinesis_stream"]["orders"]
    assert list(addresses.scaled_elsewhere(load(streams=fixed))) == []


@pytest.mark.parametrize(
    ("stream", "advantage", "message"),
    [
        (
            {},
            False,
            "streams.orders.warm_throughput_mib: needs On-demand Advantage; if the account has it, say on_demand",
        ),
        (
            {"mode": "provisioned", "shards": 1},
            True,
            "streams.orders.warm_throughput_mib: must not be given with mode prov",
        ),
        (
            {"warm_throughput_mib": 0},
            True,
            "streams.orders.warm_throughput_mib: must be greater than or equal to 1; got 0",
        ),
    ],
)
def test_warm_throughput_goes_with_on_demand_advantage(
    stream: dict[str, Any], advantage: bool, message: str, write: Write
) -> None:
    path = write(on_demand_advantage=advantage, streams={"orders": {"warm_throughput_mib": 100, **stream}})
    with pytest.raises(SettingsError, match=message):
        load_environment(path)


@pytest.mark.parametrize("name", ["record_distribution", "record_distribution_strategy"])
def test_the_strategy_that_no_provider_knows_is_refused_with_that_reason(name: str, write: Write) -> None:
    path = write(streams={"orders": {name: "AUTO"}})
    with pytest.raises(SettingsError) as refused:
        load_environment(path)
    assert f"streams.orders.{name}: cannot be declared: no AWS provider for CDKTF or CDK Terrain knows" in str(
        refused.value
    )
    assert "update-stream-record-distribution-strategy" in str(refused.value)
    assert "got 'AUTO'" in str(refused.value)


def test_no_provider_knows_the_strategy_yet() -> None:
    """Once one does, the setting is to be taken instead of refused."""
    assert not [name for name in dir(KinesisStream) if "distribution" in name]


def test_only_a_file_with_warm_throughput_lets_the_pipeline_change_it(load: Load) -> None:
    def may(**stream: Any) -> bool:
        statements = permissions.policies(
            load(on_demand_advantage=True, streams={"orders": stream}, pipeline={"repository": "acme@1/data@2"})
        )
        return "UpdateStreamWarmThroughput" in iam.policy_json([each for kind in statements.values() for each in kind])

    assert (may(warm_throughput_mib=100), may()) == (True, False)


def test_many_applications_that_only_poll_one_stream_are_a_warning(load: Load) -> None:
    def told(count: int) -> list[str]:
        return list(
            rules.warnings(load(applications={f"a{n}": apps(polling="only")["lake"] for n in range(count)}), TODAY)
        )

    assert told(5) == []
    (warning,) = told(6)
    assert warning.startswith(
        "streams.orders: 6 applications only poll it (a0, a1, a2, a3, a4, a5): each shard answers"
    )
