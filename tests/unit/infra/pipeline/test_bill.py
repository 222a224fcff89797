"""What an environment costs while nobody reads or writes: by line, from a synthesized stack and from a plan."""

from pathlib import Path
from typing import Any, cast

import pytest

from infra.__main__ import main
from infra.errors import LedgerError
from infra.pipeline.__main__ import main as pipeline
from infra.stacks.app import synthesize
from kinesis_efo_infra.pipeline import cost
from kinesis_efo_infra.pipeline.bill import HOURS, bill, commitment, of_stack
from kinesis_efo_infra.pipeline.prices import Prices, elsewhere, prices_of
from tests.unit.infra.conftest import PRICES as KNOWN
from tests.unit.infra.conftest import Load, Synth, Write

PRICES, OTHERS = cast(Prices, prices_of("us-east-1", KNOWN)), elsewhere(KNOWN)


def spent(stack: dict[str, Any], **changes: Any) -> dict[str, float | None]:
    made = bill(of_stack(stack), PRICES, OTHERS, **{"advantage": False, **changes})
    return {line.what: None if line.usd is None else round(line.usd, 2) for line in made.lines}


RICH = (
    "streams: {orders: {mode: provisioned, shards: 10, retention_hours: 200, shard_metrics: [IncomingBytes]}, clicks: {}, payments:"
    "{existing_arn: STREAM}}, applications: {lake: {streams: [orders, clicks, payments]}, pond: {streams: [orders]}, pool:"
    "{streams: [orders], polling: only}}"
)


def test_each_line_is_what_aws_bills(synth: Synth) -> None:
    stack = synth(RICH)
    alarms = stack["resource"]["aws_cloudwatch_metric_alarm"]
    watched = sum(sum("metric" in query for query in each.get("metric_query", [])) or 1 for each in alarms.values())
    orders, clicks = "`aws_kinesis_stream.orders`", "`aws_kinesis_stream.clicks`"
    assert spent(stack) == {
        f"{orders}: shards": 10 * HOURS * 0.015,
        f"{orders}: retention": 10 * HOURS * 0.02,
        f"{orders}: shard metrics": 10 * 0.3,
        f"{orders}: consumers": 2 * 10 * HOURS * 0.015,
        f"{clicks}: on-demand": round(HOURS * 0.04, 2),
        "`arn:aws:kinesis:eu-west-1:111122223333:stream/payments`: consumers": None,
        "customer keys": 3.0,
        "alarms": round(watched * 0.1, 2),
        "dashboards": 3.0,
    }


def test_an_on_demand_stream_has_no_hours_with_advantage(synth: Synth) -> None:
    stack = synth(on_demand_advantage=True, streams={"orders": {"shard_metrics": ["IncomingBytes", "OutgoingBytes"]}})
    assert spent(stack, advantage=True)["`aws_kinesis_stream.orders`: on-demand"] == 0
    assert spent(stack, advantage=True)["`aws_kinesis_stream.orders`: shard metrics"] == 4 * 2 * 0.3
    # 25 MiB/s in and out for a month, at 0.032 and 0.016 a GB.
    assert "which is 3,080 USD a month" in str(commitment(PRICES))


def change(address: str, before: Any, after: Any) -> dict[str, Any]:
    return {"address": address, "type": address.partition(".")[0], "change": {"before": before, "after": after}}


STREAM = {
    "arn": "arn:x",
    "shard_count": 4,
    "retention_period": 24,
    "stream_mode_details": [{"stream_mode": "PROVISIONED"}],
}


def test_a_plan_shows_what_becomes_of_the_bill() -> None:
    """A stream is new, so that the plan does not know its ARN; of another one, half-applied, two consumers go."""
    consumer, other = "aws_kinesis_stream_consumer", "aws_kinesis_stream.other"
    refers = {"stream_arn": {"references": ["aws_kinesis_stream.orders.arn"]}}
    resources = [{"address": f"{consumer}.orders_lake", "type": consumer, "expressions": refers}]
    plan = {
        "resource_changes": [
            change("aws_kinesis_stream.orders", None, {**STREAM, "arn": None, "retention_period": 48}),
            change(f"{consumer}.orders_lake", None, {"name": "lake"}),
            change(other, STREAM, STREAM),
            *(change(f"{consumer}.other_{n}", {"stream_arn": "arn:x"}, None) for n in range(2)),
        ],
        "configuration": {"root_module": {"resources": resources}},
    }
    lines = cost.idle(plan, "us-east-1", PRICES, advantage=False)
    for line in (
        "| `aws_kinesis_stream.orders`: shards | 4 shards | - | 43.80 |",
        "| `aws_kinesis_stream.orders`: retention | 48 hours of 4 shards | - | 58.40 |",
        "| `aws_kinesis_stream.orders`: consumers | 1 on 4 shards | - | 43.80 |",
        "| `aws_kinesis_stream.other`: consumers | 2 on 4 shards | 87.60 | - |",
        "| **together** | | **131.40** | **189.80** |",
    ):
        assert line in lines
    assert lines[-1].startswith("Prices of us-east-1 as known on ")
    assert cost.idle({"resource_changes": []}, "us-east-1", PRICES, advantage=False) == []


LARGE = "streams.orders: {mode: provisioned, shards: 5000}"


@pytest.mark.slow
def test_above_its_budget_an_environment_must_be_accepted(
    write: Write,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CDKTF_OUTDIR", str(tmp_path / "out"))
    run = ["--directory", str(tmp_path), "--programs", str(tmp_path)]
    write(f"{LARGE}, budget_usd: 200000")
    assert main([*run, "synth"]) == 0
    assert pipeline(["--directory", str(tmp_path), "cost", "test", "--synthesized", str(tmp_path / "out")]) == 0
    assert "Its budget is 200,000 USD." in capsys.readouterr().out
    write(f"{LARGE}, budget_usd: 100")
    assert main([*run, "synth"]) == 1
    told = caplog.records[-1].getMessage()
    assert "budget_usd of test is 100; it would cost 109,5" in told
    assert "| `aws_kinesis_stream.orders`: shards | 5000 shards | 54,750.00 |" in told
    assert "run `make accept ENV=test` and commit it" in told
    # Whose prices these are, since the region's own are not known.
    assert "Prices of eu-west-1 are not known here; these are those of us-east-1" in told
    assert main([*run, "accept", "test"]) == 0
    assert main([*run, "synth"]) == 0
    # What was accepted is not exceeded either.
    write("streams.orders: {mode: provisioned, shards: 5001}, budget_usd: 100")
    assert main([*run, "synth"]) == 1
    assert "is 100, and 109,5" in caplog.records[-1].getMessage()
    # Below the budget there is nothing to accept, and what was accepted is forgotten.
    write(budget_usd=100)
    assert main([*run, "accept", "test"]) == 0
    assert not (tmp_path / "test.budget").exists()


def test_a_damaged_acceptance_is_an_error(load: Load, tmp_path: Path) -> None:
    environment = load(f"{LARGE}, budget_usd: 100")
    (tmp_path / "test.budget").write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(LedgerError, match=r"test.budget must have one line, with dollars; got \[\]"):
        synthesize([environment], tmp_path, outdir=tmp_path / "out")
