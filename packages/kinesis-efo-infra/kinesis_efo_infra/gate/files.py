"""Reads a team's files for the pipeline, and formats their paths for messages."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from kinesis_efo_infra.errors import Fault, SettingsError

_MOST_VALUES = 100_000


def shown(path: Path) -> str:
    """Return a path for messages, relative if it is below the current directory."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def place() -> str:
    """Return the current directory, relative to the root of the repository that GitHub checked out; empty at that root or outside."""
    here, root = Path.cwd().resolve(), os.environ.get("GITHUB_WORKSPACE")
    if not root or here == Path(root).resolve() or not here.is_relative_to(Path(root).resolve()):
        return ""
    return here.relative_to(Path(root).resolve()).as_posix()


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        SettingsError: The file cannot be read, repeats a key, or is too large after its aliases are expanded.
    """
    try:
        loader = _UniqueKeys(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if node is None:
            return None
        _size(node, {})
        return loader.construct_document(node)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: invalid UTF-8 or dates
        rule = f"cannot be read as YAML: {' '.join(str(error).split())}"
        raise SettingsError([Fault("", None, rule, shown(path))]) from None


def _size(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """Return the number of values in a node after expanding aliases: a few lines of nested aliases can expand to billions of values."""
    if sizes.setdefault(node, 0):
        return sizes[node]
    size = 1
    for each in () if isinstance(node, yaml.ScalarNode) else node.value:
        for inner in each if isinstance(each, tuple) else (each,):
            if sizes.get(inner) == 0:
                raise yaml.constructor.ConstructorError(None, None, "an alias refers to itself", inner.start_mark)
            size += _size(inner, sizes)
    if size > _MOST_VALUES:
        rule = f"it has more than {_MOST_VALUES:,} values once aliases are written out; write less"
        raise yaml.constructor.ConstructorError(None, None, rule, node.start_mark)
    sizes[node] = size
    return size


class _UniqueKeys(yaml.SafeLoader):
    """A safe loader that rejects repeated keys. PyYAML would silently use the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} cannot be a key", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
