"""The JSON Schema of manifests accepts what `parse_manifest` accepts, and refuses what it refuses."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kinesis_efo.errors import ManifestError
from kinesis_efo.manifest import parse_manifest
from kinesis_efo_tools.manifest_schema import SCHEMA
from tests.unit.test_manifest import CONSUMER, STREAM, document

SCHEMA_SAYS = Draft202012Validator(SCHEMA)
COMPARISONS = ("is in region", "does not belong to streamName", "is not a consumer of streamArn", "are not printable")
"""Faults that a schema cannot find."""

FORMS = ("schemaVersion", "is missing", "must be", "is empty", "is not the ARN")
"""Faults that it must find."""

PLACES = [
    *((key,) for key in SCHEMA["properties"]),
    ("leaseTable", "name"),
    ("leaseTable", "arn"),
    ("unknown",),
    ("streams", "orders"),
    *(("streams", "orders", key) for key in ("streamName", "streamArn", "consumerArn", "unknown")),
]
VALUES = st.sampled_from(
    [
        None, True, False, 0, 1, 1.0, 2, "", "1", "dev-orders", "a b", [], {}, {"name": "t"}, {"name": ""}, {"": {}},
        STREAM, CONSUMER, f"{STREAM}/x", f" {STREAM}", STREAM.replace("1", "\u0661"), STREAM.replace("eu", "\u00e9u"),
        CONSUMER.replace("lake", "other"), CONSUMER.replace("eu-west", "us-east"), f"{CONSUMER}0", f"{CONSUMER}x",
        {"name": "t", "arn": 3}, document()["streams"]["orders"], {"orders": document()["streams"]["orders"]},
    ]
)  # fmt: skip
CHANGES = st.lists(st.tuples(st.sampled_from(PLACES), VALUES | st.text() | st.just(...)), max_size=3)


def changed(changes: list[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    """A manifest in which some values are replaced, or left out where the value is `...`."""
    made = document()
    for (*path, key), value in changes:
        place = made
        for step in path:
            place = place.get(step) if isinstance(place, dict) else None  # type: ignore[assignment]
        if isinstance(place, dict):
            place.pop(key, None)
            if value is not ...:
                place[key] = deepcopy(value)
    return made


def fault(data: Any) -> str | None:
    try:
        parse_manifest(json.dumps(data), "m.json")
    except ManifestError as error:
        return str(error)
    return None


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@given(CHANGES)
def test_what_is_read_is_valid(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    data = changed(changes)
    if fault(data) is None:
        SCHEMA_SAYS.validate(data)


@given(CHANGES)
def test_valid_manifests_are_read_unless_contradictory(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    data = changed(changes)
    if SCHEMA_SAYS.is_valid(data) and (message := fault(data)) is not None:
        assert any(each in message for each in COMPARISONS), message
        assert not any(each in message for each in FORMS), message


@pytest.mark.parametrize(("place", "value"), [((), []), ((), None), ((), "x"), ((), 3)])
def test_other_documents_are_refused(place: Any, value: Any) -> None:
    assert fault(value)
    assert not SCHEMA_SAYS.is_valid(value)


@pytest.mark.parametrize("place", [place for place in PLACES if "unknown" not in place and place[-1] != "arn"], ids=str)
def test_every_key_but_the_consumer_is_required(place: tuple[str, ...]) -> None:
    for value in (..., 7):
        data = changed([(place, value)])
        may_be_missing = place[-1] == "consumerArn" and value is ...
        assert bool(fault(data)) is not may_be_missing
        assert SCHEMA_SAYS.is_valid(data) is may_be_missing


def test_the_example_of_its_page_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text(encoding="utf-8")
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])
    SCHEMA_SAYS.validate(example)
    assert fault(example) is None
