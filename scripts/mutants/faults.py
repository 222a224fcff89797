"""The one-line faults of a module: comparisons, `and` and `or`, `not`, statements, results and constants."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_REMOVED: Final = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break)


_Path = tuple[tuple[str, int | None], ...]


@dataclass(frozen=True)
class Mutant:
    """A module with one fault.

    Attributes:
        lines: Where the fault is: the lines of what was changed.
        where: The function that has it, or `<module>`.
        fault: What is changed, in one line.
        inside: Whether it is in a function; what is not runs when the module is imported.
    """

    lines: range
    where: str
    fault: str
    inside: bool
    _module: ast.Module
    _path: _Path
    _changed: ast.AST

    @property
    def name(self) -> str:
        """What it is called in the list of survivors: it does not change with lines above it."""
        return f"{self.where}: {self.fault}"

    @property
    def tree(self) -> ast.Module:
        """The changed module."""
        copied = copy.deepcopy(self._module)
        _put(copied, self._path, self._changed)
        return ast.fix_missing_locations(copied)


def mutants(source: str) -> Iterator[Mutant]:
    """Every fault of a module, one at a time.

    >>> [each.name for each in mutants("def f(a):\\n    return a < 1 and not a")]
    ['f: return None instead of a < 1 and (not a)', 'f: or in: a < 1 and (not a)', 'f: a <= 1 instead of a < 1', 'f: without not: not a']
    """
    tree = ast.parse(source)
    seen: dict[str, int] = {}
    for lines, where, fault, path, changed, inside in _faults(tree):
        name = f"{where}: {fault}"
        seen[name] = seen.get(name, 0) + 1
        which = f" ({seen[name]})" if seen[name] > 1 else ""
        yield Mutant(lines, where, fault + which, inside, tree, path, changed)


def _faults(tree: ast.Module) -> Iterator[tuple[range, str, str, _Path, ast.AST, bool]]:
    for node, path, where, inside in _walk(tree, (), "<module>"):
        for fault, changed in _of(node, inside=inside):
            ast.copy_location(changed, node)
            changes = node.test if isinstance(node, ast.If | ast.While) else node
            lines = range(node.lineno, (changes.end_lineno or changes.lineno) + 1)
            yield lines, where, " ".join(fault.split()), path, changed, inside


def _walk(
    node: ast.AST, path: _Path, where: str, *, inside: bool = False
) -> Iterator[tuple[ast.expr | ast.stmt, _Path, str, bool]]:
    """Statements and expressions: each with its place in the tree, its function's name, and whether it is inside of one at all.

    Annotations and decorators are left out.
    """
    if isinstance(node, ast.expr | ast.stmt):
        yield node, path, where, inside
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        where = node.name if where == "<module>" else f"{where}.{node.name}"
        inside = not isinstance(node, ast.ClassDef)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(node, ast.Call):
            continue
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if isinstance(child, ast.AST) and not _is_left_alone(child):
                yield from _walk(child, (*path, (name, index)), where, inside=inside)


def _is_left_alone(node: ast.AST) -> bool:
    """Docstrings and log lines say something, and do nothing; what only type checkers see does not run."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if not isinstance(node, ast.Expr):
        return isinstance(node, ast.Assert)
    return isinstance(node.value, ast.Constant) or ast.unparse(node.value).startswith("logger.")


def _of(node: ast.expr | ast.stmt, *, inside: bool) -> Iterator[tuple[str, ast.AST]]:
    text = ast.unparse(node)
    match node:
        case ast.Compare(left, ops, comparators):
            for index, op in enumerate(ops):
                changed = ast.Compare(left, [*ops[:index], _COMPARISONS[type(op)](), *ops[index + 1 :]], comparators)
                yield f"{ast.unparse(changed)} instead of {text}", changed
        case ast.BoolOp(op, values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"{'or' if isinstance(op, ast.And) else 'and'} in: {text}", ast.BoolOp(other, values)
        case ast.UnaryOp(ast.Not(), operand):
            yield f"without not: {text}", operand
        case ast.IfExp(ast.Name() | ast.Attribute() | ast.Call() as test, body, orelse):
            yield f"not {ast.unparse(test)} in: {text}", ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Return(ast.Constant(bool() as value)):
            yield f"return {not value} instead of {value}", ast.Return(ast.Constant(not value))
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield f"return None instead of {ast.unparse(value)}", ast.Return(ast.Constant(None))
        case ast.If(ast.Name() | ast.Attribute() | ast.Call() | ast.Await() | ast.NamedExpr() as test, body, orelse):
            yield f"if not {ast.unparse(test)}", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.While(ast.Name() | ast.Attribute() | ast.Call() as test, body, orelse):
            yield f"while not {ast.unparse(test)}", ast.While(ast.UnaryOp(ast.Not(), test), body, orelse)
    if inside and isinstance(node, _REMOVED) and not (isinstance(node, ast.AnnAssign) and node.value is None):
        yield f"removed: {text}", ast.Pass()
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
        value = node.value.value
        if isinstance(value, int | float) and not isinstance(value, bool) and not inside:
            changed = copy.copy(node)
            changed.value = ast.Constant(value - 1 if isinstance(value, int) else value / 2)
            yield f"{ast.unparse(changed.value)} instead of {text}", changed


def _put(tree: ast.AST, path: _Path, changed: ast.AST) -> None:
    at = tree
    for name, index in path[:-1]:
        value = getattr(at, name)
        at = value if index is None else value[index]
    name, index = path[-1]
    if index is None:
        setattr(at, name, changed)
    else:
        getattr(at, name)[index] = changed
