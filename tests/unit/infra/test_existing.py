"""What exists already is imported, and never replaced; and whoever scales a stream is left alone."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from infra.errors import PipelineError, SettingsError
from infra.pipeline.deployments import deployment_of
from infra.settings import addresses, ledger, literals, rules
from infra.settings.load import load_environment
from infra.stacks import permissions
from kinesis_efo_infra import iam
from kinesis_efo_infra.cdk import KinesisStream
from kinesis_efo_infra.pipeline.plans import refuse_unsafe
from tests.support.missing import terraform
from tests.unit.infra.conftest import Load, Synth, Write, rows

LAKE = "arn:aws:kinesis:eu-west-1:111122223333:stream/old/consumer/lake:1700000000"
OLD = f"streams.orders: {{name: old, import_existing: true, import_consumers: {{lake: {LAKE}}}}}"
TABLE = "applications.lake.lease_table: Old"
ALL = f"{OLD}, {TABLE}, applications.lake.import_lease_table: true"


def test_stream_consumer_and_table_are_imported(synth: Synth, load: Load) -> None:
    terraform()
    stack = synth(ALL)
    assert sorted(stack["import"], key=lambda each: str(each["to"])) == [
        {"id": "Old", "to": "aws_dynamodb_table.lake"},
        {"id": "old", "to": "aws_kinesis_stream.orders"},
        {"id": LAKE, "to": "aws_kinesis_stream_consumer.orders_lake"},
    ]
    assert {each["to"] for each in stack["import"]} == set(addresses.imports(load(ALL)))
    del stack["import"]
    assert stack == synth(f"streams.orders.name: old, {TABLE}"), "an import changes nothing else"
    # By default, a stream is imported by the name of its entry.
    stack = synth("streams.orders.import_existing: true")
    assert stack["import"] == [{"id": "test-orders", "to": "aws_kinesis_stream.orders"}]


def test_consumer_of_adopted_stream_is_imported(synth: Synth) -> None:
    terraform()
    stack = synth("streams.orders: {existing_arn: STREAM, import_consumers: {lake: 'STREAM/consumer/lake:17'}}")
    (imported,) = stack["import"]
    assert imported["to"] == "aws_kinesis_stream_consumer.orders_lake"
    assert imported["id"].endswith("stream/payments/consumer/lake:17")
    assert "aws_kinesis_stream" not in stack["resource"]


def test_sizes_are_computed_with_known_arns(load: Load) -> None:
    environment = load(ALL)
    assert literals.literal_consumer_arn(environment, "orders", "lake") == LAKE
    assert LAKE in literals.literal_manifest(environment, "lake")


def test_ledger_counts_imported_resources_as_declared(load: Load, tmp_path: Path) -> None:
    written = ledger.accept(tmp_path, load(f"protected: true, {ALL}")).read_text(encoding="utf-8")
    for line in ("aws_kinesis_stream.orders old", "aws_kinesis_stream_consumer.orders_lake old/lake"):
        assert line in written
    ledger.check(tmp_path, load(f"protected: true, streams.orders.name: old, {TABLE}"))


REFUSED = r"""
OLD, streams.orders.moved_from: shop => streams.orders.import_existing: must not be given with moved_from: what
OLD, streams.orders.moved_from: shop => streams.orders.import_consumers.lake: must not be given with moved_from
OLD, applications.lake.name: lake, applications.lake.moved_from: pond => streams.orders.import_consumers.lake: must not be given with moved_from
applications.lake: {streams: [orders], name: l, lease_table: Old, import_lease_table: true, moved_from: pond} => applications.lake.import_lease_table: must not be given with moved_from
OLD, streams.orders.name: new => streams.orders.import_consumers.lake: must be a consumer of .*new; got 'LAKE'
OLD, applications.lake.name: pond => streams.orders.import_consumers.lake: must be called pond, as .*; say applications.lake.name:; got 'arn
OLD, streams.orders.import_consumers: {pond: LAKE} => streams.orders.import_consumers.pond: names an application that this file does not have; got 'pond'
OLD, streams.clicks: {}, applications.lake.streams: [clicks] => streams.orders.import_consumers.lake: must be of an application that reads orders, which lake does not
OLD, applications.lake.polling: only => streams.orders.import_consumers.lake: must not be given: lake says polling: only
streams.orders: {existing_arn: STREAM, consumers: {lake: 'STREAM/consumer/lake:1'}, import_consumers: {lake: 'STREAM/consumer/lake:1'}} => streams.orders.import_consumers.lake: must not be given with consumers
streams.orders: {existing_arn: FOREIGN, import_consumers: {lake: 'FOREIGN/consumer/lake:1'}} => streams.orders.import_consumers.lake: must be in account 111122223333: its owner declares it elsewhere
OLD, streams.orders.import_consumers: {lake: STREAM} => streams.orders.import_consumers.lake: must match
streams.orders.import: true => streams.orders.import: is called import_existing; got True
applications.lake.adopt_lease_table: true => applications.lake.adopt_lease_table: is called import_lease_
streams.orders: {existing_arn: STREAM, import_existing: true} => streams.orders.import_existing: is not a known setting; AdoptedStream has existing_arn
streams.orders.scaled_elsewhere: true => streams.orders.scaled_elsewhere: must not be given with mode on-demand, where AWS scales; .*; got True
streams.orders: {mode: provisioned, scaled_elsewhere: true} => streams.orders.shards: is missing: mode provisioned needs the number of shards
streams.orders.warm_throughput_mib: 100 => streams.orders.warm_throughput_mib: needs On-demand Advantage; if the account has it, say on_demand
on_demand_advantage: true, streams.orders: {warm_throughput_mib: 100, mode: provisioned, shards: 1} => streams.orders.warm_throughput_mib: must not be given with mode prov
on_demand_advantage: true, streams.orders: {warm_throughput_mib: 0} => streams.orders.warm_throughput_mib: must be greater than or equal to 1; got 0
# No provider knows this strategy.
streams.orders.record_distribution: AUTO => streams.orders.record_distribution: cannot be declared: no AWS provider for CDKTF or CDK Terrain knows.*update-stream-record-distribution-strategy.*got 'AUTO'
streams.orders.record_distribution_strategy: AUTO => streams.orders.record_distribution_strategy: cannot be declared: .*got 'AUTO'
"""


@pytest.mark.parametrize(("changes", "message"), rows(REFUSED))
def test_contradictions_of_an_import_are_refused(changes: str, message: str, write: Write) -> None:
    with pytest.raises(SettingsError) as caught:
        load_environment(write(changes.replace("OLD", OLD).replace("LAKE", LAKE)))
    found = [str(fault).partition("test.yaml ")[2] or str(fault) for fault in caught.value.faults]
    assert any(re.search(message.replace("LAKE", LAKE), each, re.DOTALL) for each in found), found


def test_imported_table_is_never_replaced(load: Load) -> None:
    change = {"actions": ["delete", "create"], "before": {"name": "older"}, "after": {"name": "Old"}}
    table = "aws_dynamodb_table"
    plan = {"resource_changes": [{"address": f"{table}.lake", "type": table, "change": change}]}
    with pytest.raises(
        PipelineError, match=r"kinesis-efo-test cannot be applied as planned:\n  aws_dynamodb_table.lake "
    ):
        refuse_unsafe(deployment_of(load(ALL)), plan)
    refuse_unsafe(deployment_of(load()), plan)


def test_shards_scaled_elsewhere_are_ignored(synth: Synth, load: Load) -> None:
    fixed = "streams.orders: {mode: provisioned, shards: 4}"
    scaled = f"{fixed}, streams.orders.scaled_elsewhere: true"
    ignored = {"ignore_changes": ["shard_count"]}
    for changes, lifecycle in (
        (scaled, ignored),
        (f"{scaled}, protected: true", ignored | {"prevent_destroy": True}),
        (fixed, None),
    ):
        stream = synth(changes)["resource"]["aws_kinesis_stream"]["orders"]
        assert (stream["shard_count"], stream.get("lifecycle")) == (4, lifecycle)
    assert list(addresses.scaled_elsewhere(load(scaled))) == ["aws_kinesis_stream.orders"]
    assert list(addresses.scaled_elsewhere(load(fixed))) == []


def test_no_provider_knows_the_strategy_yet() -> None:
    """Once one does, the setting is to be taken instead of refused."""
    assert not [name for name in dir(KinesisStream) if "distribution" in name]


def test_pipeline_changes_warm_throughput_if_the_file_has_it(load: Load) -> None:
    def may(stream: str) -> bool:
        statements = permissions.policies(load(f"on_demand_advantage: true, streams.orders: {stream}, PIPELINE"))
        return "UpdateStreamWarmThroughput" in iam.policy_json([each for kind in statements.values() for each in kind])

    assert (may("{warm_throughput_mib: 100}"), may("{}")) == (True, False)


def test_six_applications_polling_one_stream_are_a_warning(load: Load) -> None:
    def told(count: int) -> list[str]:
        polling = {"streams": ["orders"], "polling": "only"}
        return list(rules.warnings(load(applications={f"a{n}": polling for n in range(count)}), date(2027, 1, 31)))

    assert told(5) == []
    (warning,) = told(6)
    assert warning.startswith(
        "streams.orders: 6 applications only poll it (a0, a1, a2, a3, a4, a5): each shard answers"
    )
