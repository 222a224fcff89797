"""The metadata of a plan is read as it was written, and a directory without a plan is an error."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import PipelineError, StalePlanError
from kinesis_efo_infra.pipeline.bundle import (
    Changes,
    Meta,
    configuration_digest,
    read_meta,
    read_plan,
    read_text,
    write_meta,
)


def meta(**changes: object) -> Meta:
    values = {
        "environment": "dev",
        "commit": "c0ffee",
        "configuration": "a" * 64,
        "plan": "b" * 64,
        "lineage": "line",
        "serial": 7,
        "terraform": "1.11.4",
        "any_changes": True,
        "changes": Changes(create=1),
    }
    return Meta(**{**values, **changes})


def test_metadata_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_meta(tmp_path, meta())
    assert read_meta(tmp_path) == meta()
    assert str(meta().state) == "serial 7 of line"
    write_meta(tmp_path, meta(notes=("retention falls",)))
    assert read_meta(tmp_path).notes == ("retention falls",)


def test_missing_plan_is_stale(tmp_path: Path) -> None:
    with pytest.raises(StalePlanError, match="its artifact has expired; plan again"):
        read_meta(tmp_path)


def test_changes_are_counted_by_what_they_do() -> None:
    actions = [["create"], ["update"], ["delete"], ["delete", "create"], ["create", "delete"], ["no-op"], ["read"]]
    changes = Changes.of({"resource_changes": [{"change": {"actions": each}} for each in actions]})
    assert str(changes) == "1 to create, 1 to update, 2 to replace, 1 to destroy"
    assert Changes.of({}) == Changes()


@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=5), st.integers(0, 4))
def test_digest_ignores_spacing_and_order_of_keys(
    tmp_path_factory: pytest.TempPathFactory, said: dict[str, int], indent: int
) -> None:
    directory = tmp_path_factory.mktemp("digest")
    one, two, other = directory / "one", directory / "two", directory / "other"
    one.write_text(json.dumps(said), encoding="utf-8")
    two.write_text(json.dumps(dict(reversed(said.items())), indent=indent), encoding="utf-8")
    other.write_text(json.dumps({**said, "one more key": 1}), encoding="utf-8")
    assert configuration_digest(one) == configuration_digest(two) != configuration_digest(other)


def test_without_a_synthesis_there_is_no_digest(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="run `make synth`"):
        configuration_digest(tmp_path / "cdk.tf.json")


HOSTILE: list[object] = [
    *(None, [], 3, "", "x", "[" * 100_000, {"environment": "dev"}),
    *({"changes": each} for each in (None, [], {}, {"create": "many"}, {"create": [1]}, {"create": 1, "shred": 2})),
    *(
        {**asdict(meta()), **each}
        for each in ({"commit": ["c0ffee"]}, {"serial": {}}, {"notes": [1]}, {"any_changes": "x"})
    ),
]
PLANS: list[object] = [
    *(None, [], 3, "x", "[" * 100_000),
    *({"resource_changes": each} for each in (None, {}, ["x"], [{}], [{"change": {"actions": ["create"]}}])),
    *(
        {"resource_changes": [{"address": "a", "type": "a", "change": each}]}
        for each in (None, {}, {"actions": []}, {"actions": [1]})
    ),
    {"resource_changes": [{"address": ["a"], "type": "a", "change": {"actions": ["create"]}}]},
    *({"output_changes": each} for each in (None, [], {"x": None}, {"x": {}}, {"x": {"actions": []}})),
]


def put(path: Path, content: object) -> None:
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("content", [*HOSTILE, b"\xff\xfe"])
def test_hostile_metadata_is_refused(tmp_path: Path, content: object) -> None:
    put(tmp_path / "meta.json", content)
    with pytest.raises(PipelineError, match="was not written by the step"):
        read_meta(tmp_path)


@pytest.mark.parametrize("content", [*PLANS, b"\xff\xfe"])
def test_hostile_plans_are_refused(tmp_path: Path, content: object) -> None:
    write_meta(tmp_path, meta())
    put(tmp_path / "plan.json", content)
    with pytest.raises(PipelineError, match="is no plan of Terraform"):
        read_plan(tmp_path)


@pytest.mark.parametrize("content", [None, [], "{", "[" * 100_000, b"\xff"])
def test_hostile_stacks_are_refused(tmp_path: Path, content: object) -> None:
    put(tmp_path / "cdk.tf.json", content)
    with pytest.raises(PipelineError, match="is not Terraform JSON"):
        configuration_digest(tmp_path / "cdk.tf.json")


@pytest.mark.parametrize("name", ["meta.json", "plan.json", "plan.txt", "cdk.tf.json"])
def test_directories_in_place_of_files_are_refused(tmp_path: Path, name: str) -> None:
    write_meta(tmp_path, meta())
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    read = {"meta.json": read_meta, "plan.json": read_plan, "plan.txt": read_text}
    with pytest.raises(PipelineError):
        read[name](tmp_path) if name in read else configuration_digest(tmp_path / name)


def test_broken_text_of_a_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.txt").write_bytes(b"\xff")
    with pytest.raises(PipelineError, match="is no text of a plan"):
        read_text(tmp_path)
