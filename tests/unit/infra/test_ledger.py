"""The ledger keeps a protected environment from losing resources when names change."""

from pathlib import Path

import pytest

from infra.errors import LedgerError
from infra.settings import ledger
from tests.unit.infra.conftest import Load, rows


def test_accepted_environment_passes(load: Load, tmp_path: Path) -> None:
    environment = load(protected=True)
    path = ledger.accept(tmp_path, environment)
    ledger.check(tmp_path, environment)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert lines == [
        "aws_dynamodb_table.lake kinesis-efo-test-lake",
        "aws_kinesis_stream.orders test-orders",
        "aws_kinesis_stream.orders.retention_hours 24",
        "aws_kinesis_stream_consumer.orders_lake test-orders/lake",
        "aws_kms_key.environment_key test",
        "aws_kms_key.orders test-orders",
    ]


def test_protected_environment_needs_a_ledger(load: Load, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"missing; test is protected.*run `make accept ENV=test`"):
        ledger.check(tmp_path, load(protected=True))


# What was accepted, what the file has then, and what is refused; `not` a text that the refusal lacks.
CHANGED = r"""
tags: {}; applications: {pond: {streams: [orders]}} => aws_kinesis_stream_consumer.orders_lake (test-orders/lake) is not declared any more && aws_kinesis_stream_consumer.orders_pond (test-orders/pond) is new && say `moved_from:`
tags: {}; streams.orders.name: orders => aws_kinesis_stream.orders (test-orders) is not declared any more
tags: {}; applications: {pond: {streams: [orders], name: lake, moved_from: lake}} => not not declared any more
streams.orders.retention_hours: 24; streams.orders.retention_hours: 168 => aws_kinesis_stream.orders.retention_hours (168) is new
streams.orders.retention_hours: 168; streams.orders.retention_hours: 24 => aws_kinesis_stream.orders.retention_hours falls from 168 to 24: records that are older are lost && run `make accept ENV=test` && not is new
streams.orders: {name: orders, retention_hours: 168}; streams: {shop: {name: orders, moved_from: orders, retention_hours: 24}}, applications.lake.streams: [shop] => aws_kinesis_stream.shop.retention_hours falls from 168 to 24
emr: {}; tags: {} => aws_emrserverless_application.jobs (kinesis-efo-test) is not declared any more && aws_s3_bucket.artifacts (kinesis-efo-test-111122223333) is not declared any more && Empty it first
streams.orders.name: payments; streams.orders: {existing_arn: STREAM}, handed_over: [orders] => aws_kinesis_stream.orders (payments) is handed over: Terraform forgets it && not would destroy it
# An application is retired before it is removed.
OLD; OLD, applications.old.retired: true => aws_dynamodb_table.old.retired: its table is not protected from deletion
OLD, applications.old.retired: true; OLD => aws_dynamodb_table.old.retired: it is not retired any more
OLD, applications.old.retired: true; tags: {} => aws_dynamodb_table.old (kinesis-efo-test-old) is not declared any more && not .retired
"""


@pytest.mark.parametrize(("changes", "message"), rows(CHANGED))
def test_changed_ledger_is_refused_until_accepted(changes: str, message: str, load: Load, tmp_path: Path) -> None:
    old = "applications.old: {streams: [orders]}"
    before, after = (f"protected: true, {each}".replace("OLD", old) for each in changes.split("; "))
    ledger.accept(tmp_path, load(before))
    environment = load(after)
    with pytest.raises(LedgerError) as caught:
        ledger.check(tmp_path, environment)
    for part in message.split(" && "):
        assert (part.removeprefix("not ") in str(caught.value)) != part.startswith("not "), part
    ledger.accept(tmp_path, environment)
    ledger.check(tmp_path, environment)


def test_edited_ledger_is_refused(load: Load, tmp_path: Path) -> None:
    path = ledger.accept(tmp_path, load(protected=True))
    path.write_text(path.read_text(encoding="utf-8").replace("hours 24", "hours many"), encoding="utf-8")
    with pytest.raises(LedgerError, match=r"retention_hours \(24\) is new, or not what it was"):
        ledger.check(tmp_path, load(protected=True))
