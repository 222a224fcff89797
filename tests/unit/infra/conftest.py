"""Fixtures that write environment files, load them and synthesize them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.app import synthesize
from kinesis_efo_infra.regions import partition

HEAD = {"environment": "test", "region": "eu-west-1", "account_id": "111122223333", "state_bucket": "state"}

PRICES = Path(__file__).parents[2] / "support" / "prices.json"
Load = Callable[..., Environment]
Synth = Callable[..., dict[str, Any]]


def document(**changes: Any) -> dict[str, Any]:
    """The smallest valid environment file, with changes."""
    given = {**HEAD, **changes}
    region = given["region"] if re.fullmatch(r"(cn|eu|eusc|us)(-[a-z]+)+-\d", str(given["region"])) else HEAD["region"]
    alarms = {"sns_topic": f"arn:{partition(region)}:sns:{region}:{given['account_id']}:oncall"}
    applications = {"lake": {"streams": ["orders"]}}
    return {**HEAD, "streams": {"orders": {}}, "applications": applications, "alarms": alarms, **changes}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes an environment file and returns its path."""

    def writer(**changes: Any) -> Path:
        content = document(**changes)
        path = tmp_path / f"{content['environment']}.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return path

    return writer


@pytest.fixture
def load(write: Callable[..., Path]) -> Load:
    """Writes an environment file and loads it."""
    return lambda **changes: load_environment(write(**changes))


@pytest.fixture
def synth(load: Load, tmp_path: Path) -> Synth:
    """The Terraform JSON of an environment, without metadata."""

    def synthesizer(environment: Environment | None = None, /, **changes: Any) -> dict[str, Any]:
        chosen = environment or load(**changes)
        if chosen.protected:
            from infra.settings import ledger

            ledger.accept(tmp_path, chosen)
        out = synthesize([chosen], tmp_path, outdir=tmp_path / "out")
        text = (out / "stacks" / Names(chosen).stack_name / "cdk.tf.json").read_text(encoding="utf-8")
        stack: dict[str, Any] = without_metadata(json.loads(text))
        return stack

    return synthesizer


def without_metadata(value: Any) -> Any:
    """JSON without CDKTF's comments."""
    if isinstance(value, dict):
        return {key: without_metadata(each) for key, each in value.items() if key != "//"}
    return [without_metadata(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(autouse=True)
def prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices that stay as they are when somebody refreshes those of the package."""
    monkeypatch.setattr("kinesis_efo_infra.pipeline.prices.FILE", PRICES)
