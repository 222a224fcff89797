"""What a team adds beside its files: resources of its own, of types of the AWS provider only, and excuses that end."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import SettingsError
from infra.settings import extra
from infra.stacks.app import synthesize
from kinesis_efo_infra.gate.excuses import excused, load_excuses
from kinesis_efo_infra.gate.failures import Failure
from tests.unit.infra.conftest import Load, rows

TODAY = date(2026, 11, 24)


NEVER = r"""
TYPES = ['terraform_data'] => TYPES: must be a type of the AWS provider.*; got 'terraform_data'
TYPES = [1] => TYPES: must be a type of the AWS provider.*; got 1
TYPES = ['aws_iam_access_key'] => TYPES: can never be added: it hands out keys
TYPES = ['aws_cloudformation_stack'] => or makes resources that nobody looks at
TYPES = [each for each in NAMES] => cannot be read: malformed node
def extra(): ... => TYPES: is missing: list the types
def => cannot be read: invalid syntax
"""


@pytest.mark.parametrize(("text", "message"), rows(NEVER))
def test_forbidden_types_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "extra.py").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=message):
        extra.types(tmp_path)


EXCUSE: dict[str, Any] = {
    "check": "CKV_AWS_27",
    "resource": "aws_sqs_queue.dead",
    "reason": "messages are not secret",
    "until": date(2027, 3, 31),
}


def excuses(directory: Path, *entries: Any, today: date = TODAY) -> Any:
    (directory / "excuses.yaml").write_text(yaml.safe_dump(list(entries)), encoding="utf-8")
    return load_excuses(directory, today)


def test_excuse_has_a_reason_and_an_end(tmp_path: Path) -> None:
    def failed(resource: str) -> Failure:
        return Failure("CKV_AWS_27", "Ensure encryption", resource, "kinesis-efo-dev")

    failure, other, topic = map(failed, ("aws_sqs_queue.dead", "aws_sqs_queue.other", "aws_sns_topic.dead"))
    loaded = excuses(tmp_path, EXCUSE)
    # Some checks report no type.
    untyped = failed("resource.dead")
    still, excuse = excused([failure, other, topic, untyped], loaded, TODAY, lambda _: "dev")
    assert still == [other, topic]
    assert excuse == [(each, "messages are not secret (until 2027-03-31)") for each in (failure, untyped)]
    # The day after.
    (ended,), none = excused([failure], loaded, date(2027, 4, 1), lambda _: "dev")
    assert none == []
    assert ended.name == "Ensure encryption (its excuse ended on 2027-03-31)"
    of_dev = excuses(tmp_path, {**EXCUSE, "environment": "dev"})
    for name, left in (("prod", [failure]), ("dev", [])):
        assert excused([failure], of_dev, TODAY, lambda _, name=name: name)[0] == left


BAD = r"""
check: CKV_EFO_1 => 0.check: cannot be excused: it is what this project is for; got 'CKV_EFO_1'
check: EFO_ALLOWED => 0.check: String should match
reason: well => 0.reason: String should have at least 10 characters
until: 2028-01-01 => 0.until: must be a year from now at most; got '2028-01-01'
until: null => 0.until: Input should be a valid date
why: so => 0.why: Extra inputs are not permitted
"""


@pytest.mark.parametrize(("changes", "message"), rows(BAD))
def test_bad_excuse_is_refused(changes: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        excuses(tmp_path, {**EXCUSE, **yaml.safe_load(changes)})


def test_without_a_file_nothing_is_excused(tmp_path: Path) -> None:
    assert load_excuses(tmp_path, TODAY) == []
    (tmp_path / "excuses.yaml").write_text("check: CKV_AWS_27", encoding="utf-8")
    with pytest.raises(SettingsError, match="must be a list of excuses"):
        load_excuses(tmp_path, TODAY)


def test_file_without_the_function_is_refused(load: Load, tmp_path: Path) -> None:
    environment = load()
    (tmp_path / "extra.py").write_text("TYPES = []", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"extra: is missing: def extra\(stack, environment, parts\)"):
        synthesize([environment], tmp_path, outdir=tmp_path / "out")
