"""The metadata of a plan is read as it was written, and a directory without a plan is an error."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import PipelineError
from kinesis_efo_infra.pipeline.bundle import (
    Changes,
    Meta,
    configuration_digest,
    read_meta,
    read_plan,
    read_text,
    write_meta,
)


def meta(**changes: Any) -> Meta:
    return replace(Meta("dev", "c0ffee", "a" * 64, "b" * 64, "line", 7, "1.11.4", True, Changes(create=1)), **changes)


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


READ: dict[str, tuple[Callable[[Path], object], list[Any], str]] = {
    "meta.json": (read_meta, HOSTILE, "was not written by the step"),
    "plan.json": (read_plan, PLANS, "is no plan of Terraform"),
    "plan.txt": (read_text, [b"\xff"], "is no text of a plan"),
    "cdk.tf.json": (lambda at: configuration_digest(at / "cdk.tf.json"), [None, [], "{", "[" * 100_000], "is not Terraform JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), [(name, each) for name in READ for each in [*READ[name][1], b"\xff\xfe"]])
def test_hostile_content_is_refused(name: str, content: object, tmp_path: Path) -> None:
    read, _, message = READ[name]
    write_meta(tmp_path, meta())
    raw = (
        content
        if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(PipelineError, match=message):
        read(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(PipelineError):
        read(tmp_path)
