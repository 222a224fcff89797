"""What exists already is imported, and never replaced; and whoever scales a stream is left alone."""

import re

import pytest

from infra.errors import PipelineError, SettingsError
from infra.pipeline.deployments import deployment_of
from infra.settings import addresses, literals
from infra.settings.load import load_environment
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
    # By default, a stream is imported by the name of its entry.
    stack = synth("streams.orders.import_existing: true")
    assert stack["import"] == [{"id": "test-orders", "to": "aws_kinesis_stream.orders"}]


REFUSED = r"""
OLD, streams.orders.moved_from: shop => streams.orders.import_existing: must not be given with moved_from: what
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
streams.orders: {existing_arn: STREAM, import_existing: true} => streams.orders.import_existing: is not a known setting; AdoptedStream has existing_arn
streams.orders.scaled_elsewhere: true => streams.orders.scaled_elsewhere: must not be given with mode on-demand, where AWS scales; .*; got True
streams.orders.warm_throughput_mib: 100 => streams.orders.warm_throughput_mib: needs On-demand Advantage; if the account has it, say on_demand
on_demand_advantage: true, streams.orders: {warm_throughput_mib: 100, mode: provisioned, shards: 1} => streams.orders.warm_throughput_mib: must not be given with mode prov
# No provider knows this strategy.
streams.orders.record_distribution: AUTO => streams.orders.record_distribution: cannot be declared: no AWS provider for CDKTF or CDK Terrain knows.*update-stream-record-distribution-strategy.*got 'AUTO'
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


def test_sizes_are_computed_with_known_arns(load: Load) -> None:
    environment = load(ALL)
    assert literals.literal_consumer_arn(environment, "orders", "lake") == LAKE
    assert LAKE in literals.literal_manifest(environment, "lake")
