"""The ledger keeps a protected environment from losing resources when names change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.__main__ import main
from infra.errors import LedgerError
from infra.settings import ledger
from infra.settings.model import Environment

Load = Callable[..., Environment]


def test_what_is_accepted_passes(load: Load, tmp_path: Path) -> None:
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


def test_an_unprotected_environment_needs_no_ledger(load: Load, tmp_path: Path) -> None:
    ledger.check(tmp_path, load())


def test_a_protected_environment_needs_a_ledger(load: Load, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"missing; test is protected.*run `make accept ENV=test`"):
        ledger.check(tmp_path, load(protected=True))


def test_a_renamed_application_is_an_error_and_not_a_new_arn(load: Load, tmp_path: Path) -> None:
    ledger.accept(tmp_path, load(protected=True))
    renamed = load(protected=True, applications={"pond": {"streams": ["orders"]}})
    with pytest.raises(LedgerError) as caught:
        ledger.check(tmp_path, renamed)
    message = str(caught.value)
    assert "aws_kinesis_stream_consumer.orders_lake (test-orders/lake) is not declared any more" in message
    assert "aws_kinesis_stream_consumer.orders_pond (test-orders/pond) is new" in message
    assert "say `moved_from:`" in message


def test_a_new_name_in_aws_is_an_error_too(load: Load, tmp_path: Path) -> None:
    ledger.accept(tmp_path, load(protected=True))
    with pytest.raises(LedgerError, match=r"aws_kinesis_stream.orders \(test-orders\) is not declared any more"):
        ledger.check(tmp_path, load(protected=True, streams={"orders": {"name": "orders"}}))


def test_a_documented_move_loses_nothing(load: Load, tmp_path: Path) -> None:
    ledger.accept(tmp_path, load(protected=True))
    moved = load(protected=True, applications={"pond": {"streams": ["orders"], "name": "lake", "moved_from": "lake"}})
    with pytest.raises(LedgerError) as caught:
        ledger.check(tmp_path, moved)
    assert "not declared any more" not in str(caught.value)
    ledger.accept(tmp_path, moved)
    ledger.check(tmp_path, moved)


def test_retention_that_falls_is_an_error_and_one_that_grows_is_listed(load: Load, tmp_path: Path) -> None:
    week, day = ({"orders": {"retention_hours": hours}} for hours in (168, 24))
    ledger.accept(tmp_path, load(protected=True, streams=day))
    with pytest.raises(LedgerError, match=r"aws_kinesis_stream.orders.retention_hours \(168\) is new"):
        ledger.check(tmp_path, load(protected=True, streams=week))
    ledger.accept(tmp_path, load(protected=True, streams=week))
    with pytest.raises(LedgerError) as caught:
        ledger.check(tmp_path, load(protected=True, streams=day))
    assert "aws_kinesis_stream.orders.retention_hours falls from 168 to 24: records that are older are lost" in str(
        caught.value
    )
    assert "run `make accept ENV=test`" in str(caught.value)
    assert "is new" not in str(caught.value)
    ledger.accept(tmp_path, load(protected=True, streams=day))
    ledger.check(tmp_path, load(protected=True, streams=day))


def test_retention_is_followed_through_a_move(load: Load, tmp_path: Path) -> None:
    ledger.accept(tmp_path, load(protected=True, streams={"orders": {"name": "orders", "retention_hours": 168}}))
    moved = {"shop": {"name": "orders", "moved_from": "orders", "retention_hours": 24}}
    with pytest.raises(LedgerError, match=r"aws_kinesis_stream.shop.retention_hours falls from 168 to 24"):
        ledger.check(tmp_path, load(protected=True, streams=moved, applications={"lake": {"streams": ["shop"]}}))


def test_where_jobs_run_does_not_go_away_unnoticed(load: Load, tmp_path: Path) -> None:
    ledger.accept(tmp_path, load(protected=True, emr={}))
    with pytest.raises(LedgerError) as caught:
        ledger.check(tmp_path, load(protected=True))
    message = str(caught.value)
    assert "aws_emrserverless_application.jobs (kinesis-efo-test) is not declared any more" in message
    assert "aws_s3_bucket.artifacts (kinesis-efo-test-111122223333) is not declared any more" in message
    assert "Empty it first" in message


def test_a_ledger_that_somebody_edited_is_no_crash(load: Load, tmp_path: Path) -> None:
    path = ledger.accept(tmp_path, load(protected=True))
    path.write_text(path.read_text(encoding="utf-8").replace("hours 24", "hours many"), encoding="utf-8")
    with pytest.raises(LedgerError, match=r"retention_hours \(24\) is new, or not what it was"):
        ledger.check(tmp_path, load(protected=True))


def test_synth_stops_at_the_ledger_and_accept_writes_it(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(protected=True)
    monkeypatch.setenv("CDKTF_OUTDIR", str(tmp_path / "out"))
    arguments = ["--directory", str(tmp_path)]
    assert main(arguments) == 1
    assert not (tmp_path / "out" / "stacks").exists()
    assert main([*arguments, "accept", "test"]) == 0
    assert main([*arguments, "synth", "test"]) == 0
    assert (tmp_path / "out" / "stacks" / "kinesis-efo-test" / "cdk.tf.json").exists()


def test_faults_are_printed_and_the_exit_code_is_one(
    load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "test.yaml").write_text("environment: test\n", encoding="utf-8")
    assert main(["--directory", str(tmp_path)]) == 1
    assert "region: is missing" in caplog.text


def test_an_application_is_retired_before_it_is_removed(
    load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = {"lake": {"streams": ["orders"]}, "old": {"streams": ["orders"]}}
    ledger.accept(tmp_path, load(protected=True, applications=both))
    retired = load(protected=True, applications={**both, "old": {**both["old"], "retired": True}})
    with pytest.raises(
        LedgerError, match=r"aws_dynamodb_table\.old\.retired: its table is not protected from deletion"
    ):
        ledger.check(tmp_path, retired)
    ledger.accept(tmp_path, retired)
    ledger.check(tmp_path, retired)
    with pytest.raises(LedgerError, match=r"aws_dynamodb_table\.old\.retired: it is not retired any more"):
        ledger.check(tmp_path, load(protected=True, applications=both))
    removed = load(protected=True, applications={"lake": both["lake"]})
    with pytest.raises(LedgerError) as caught:
        ledger.check(tmp_path, removed)
    assert "aws_dynamodb_table.old (kinesis-efo-test-old) is not declared any more" in str(caught.value)
    assert ".retired" not in str(caught.value)
    caplog.set_level("INFO")
    ledger.accept(tmp_path, removed)
    assert "accepted: aws_dynamodb_table.old (kinesis-efo-test-old) is not declared any more" in caplog.text
    ledger.check(tmp_path, removed)
