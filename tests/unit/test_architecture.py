"""The guide for contributors names every package, and the paths through the code in lib/README.md are those of the code."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Container
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "lib" / "README.md").read_text()


class Step(NamedTuple):
    """One line of a path: a function, and how far it is indented."""

    indent: int
    name: str


class Call(NamedTuple):
    """A function of a path and the one above it that calls it; None for those where a path begins."""

    caller: str | None
    callee: str


def steps(block: str) -> list[Step]:
    lines = re.findall(r"^([ ~]*)([\w.]+:[\w.]+)(?:  .*)?$", block, re.MULTILINE)
    assert len(lines) == len([line for line in block.splitlines() if line.strip()]), "a line of a path cannot be read"
    return [Step(len(indent), name) for indent, name in lines]


def calls() -> list[Call]:
    """Every line of every path."""
    found = []
    for block in re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        above: list[Step] = []
        for step in steps(block):
            above = [other for other in above if other.indent < step.indent]
            found.append(Call(above[-1].name if above else None, step.name))
            above.append(step)
    return found


CALLS = calls()


def function(name: str) -> Any:
    """The function behind `module:Class.method`."""
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), import_module(f"kinesis_efo.{module}"))


@pytest.mark.parametrize(("title", "most"), [("The path of a record", 20), ("The path of a position", 18)])
def test_a_path_passes_at_most_so_many_modules(title: str, most: int) -> None:
    """These bounds only go down."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len({step.name.partition(":")[0] for step in steps(block)}) <= most


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.callee)
def test_each_step_is_called_by_the_one_above(call: Call) -> None:
    assert callable(function(call.callee))
    if call.caller is None:
        return
    source = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function(call.caller)))))
    mentioned = {node.id for node in ast.walk(source) if isinstance(node, ast.Name)}
    mentioned |= {node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute)}
    # `anext(events)` calls `__anext__`.
    assert call.callee.split(":")[1].split(".")[-1].removeprefix("__").removesuffix("__") in mentioned


@pytest.mark.slow
def test_there_are_no_import_cycles() -> None:
    """Not even within functions; imports for types do not count."""
    library = ROOT / "lib" / "kinesis_efo"
    modules = {
        ".".join(path.relative_to(library.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in library.rglob("*.py")
    }
    imports = {name: imported(ast.parse(path.read_text()), modules) for name, path in modules.items()}
    # What imports nothing that is left leaves, until only circles are left.
    while free := {name for name, needed in imports.items() if not needed & imports.keys()}:
        imports = {name: needed for name, needed in imports.items() if name not in free}
    assert imports == {}


def imported(tree: ast.AST, modules: Container[str]) -> set[str]:
    """The modules among some that a module imports."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                pass
            case ast.Import(names=names):
                found |= {each.name for each in names if each.name in modules}
            case ast.ImportFrom(module=str(module), names=names):
                full = (f"{module}.{each.name}" for each in names)
                found |= {each if each in modules else module for each in full if module in modules}
            case _:
                found |= imported(node, modules)
    return found


def foreign_private_names(path: Path) -> set[str]:
    """Private attributes that a module uses and does not define."""
    tree = ast.parse(path.read_text())
    used, defined = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Attribute(attr=name):
                used.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined.add(name)
            case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
                defined.add(name)
    return {name for name in used - defined if name.startswith("_") and not name.startswith("__")}


@pytest.mark.slow
@pytest.mark.parametrize("package", ["aiobotocore", "botocore", "aiohttp", "h2", "hyperframe", "asyncio"])
def test_no_private_names_of_the_sdk_are_used(package: str) -> None:
    """A version of the SDK may change them without a word, and pip would install that version beside this library."""
    library = ROOT / "lib"
    imports = re.compile(rf"^\s*(?:from|import) {re.escape(package)}\b", re.MULTILINE)
    found = {
        str(path.relative_to(library)): names
        for path in library.rglob("*.py")
        if imports.search(path.read_text()) and (names := foreign_private_names(path))
    }
    assert not found
