"""The catalog of error messages: every place in `lib` that makes an error, with the examples that tests assert.

Messages are written where they are raised, and examples in the tests that raise them; the catalog reads both.
"""

from __future__ import annotations

import ast
import html
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kinesis_efo import errors

ROOT: Final = Path(__file__).resolve().parents[1]
KINDS: Final = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.KinesisEfoError)
}
"""The classes of errors, in the order of their module."""
FIELD: Final = "{}"
ANY: Final = "..."
"""In an example, the text that differs from run to run."""
_SHORTEST: Final = 10
"""Below this many characters of its own, a place passes on a text that comes from elsewhere."""


@dataclass(frozen=True)
class Origin:
    """A place that makes an error.

    Attributes:
        kind: The name of the error's class.
        path: The module, below the root of the repository.
        function: The function or method.
        message: The message, with `{}` for each field.
        fields: The expression of each field.
    """

    kind: str
    path: str
    function: str
    message: str
    fields: tuple[str, ...] = ()

    @property
    def own(self) -> int:
        """The number of characters that are not in fields."""
        return len(self.message.replace(FIELD, ""))

    def values(self, text: str) -> dict[str, str] | None:
        """Return the value of each field in `text`, or None if it is not this message.

        >>> place = Origin("StreamError", "", "", "stream {} is gone{}", ("name", "since"))
        >>> place.values("stream 'a' is gone since 8:00"), place.values("shard 'a' is gone")
        ({'name': "'a'", 'since': ' since 8:00'}, None)
        """
        start, *parts = self.message.split(FIELD)
        if not text.startswith(start):
            return None
        values, at = [], len(start)
        for part in parts[:-1]:
            end = text.find(part, at)
            if end < 0:
                return None
            values.append(text[at:end])
            at = end + len(part)
        if parts:
            end = len(text) - len(parts[-1])
            if end < at or not text.endswith(parts[-1]):
                return None
            values.append(text[at:end])
            at = len(text)
        return dict(zip(self.fields, values, strict=True)) if at == len(text) else None


@dataclass(frozen=True)
class Example:
    """The text of a message, and the test that asserts it."""

    text: str
    path: str
    test: str


def places(folder: Path = ROOT / "lib") -> list[Origin]:
    """Return every place that makes an error with a text of its own."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for name, function in _functions(ast.parse(path.read_text())):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and node.args and (kind := _kind(node.func)):
                    message, fields = _text(node.args[0])
                    for line in node.args[1:] if _last(node.func) == "of_lines" else ():
                        message, fields = f"{message}\n{FIELD}", [*fields, ast.unparse(line)]
                    for remedy, more in (_text(each.value) for each in node.keywords if each.arg == "remedy"):
                        # As KinesisEfoError joins them; a remedy from elsewhere begins in either way.
                        joint = "" if remedy[0] == FIELD[0] else ". " if remedy[0].isupper() else "; "
                        message, fields = f"{message}{joint}{remedy}", [*fields, *more]
                    place = Origin(kind, str(path.relative_to(ROOT)), name, message, tuple(fields))
                    if place.own >= _SHORTEST:
                        found.append(place)
    return found


def examples(folder: Path = ROOT / "tests") -> Iterator[Example]:
    """Return every text in a test that uses `raises` of `tests.support.messages`."""
    for path in sorted(folder.rglob("test_*.py")):
        source = path.read_text()
        if "tests.support.messages" not in source:
            continue
        for name, function in _functions(ast.parse(source)):
            nodes = list(ast.walk(function))
            if any(isinstance(node, ast.Call) and _last(node.func) == "raises" for node in nodes):
                parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
                for node in nodes:
                    if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in parts:
                        text, fields = _text(node)
                        for _ in fields:
                            text = text.replace(FIELD, ANY, 1)
                        yield Example(text, str(path.relative_to(ROOT)), name)


def catalog(places: Iterable[Origin], examples: Iterable[Example]) -> dict[Origin, list[Example]]:
    """Return the examples of each place. A text belongs to the place that has most of it as its own; fields may be messages, too."""
    found: dict[Origin, list[Example]] = {place: [] for place in places}
    ordered = sorted(found, key=lambda place: -place.own)
    waiting = list(examples)
    for example in waiting:
        for place in ordered:
            values = place.values(example.text)
            if values is not None:
                found[place].append(example)
                waiting += [replace(example, text=value) for value in values.values() if value != example.text]
                break
    return found


def page(catalog: Mapping[Origin, Sequence[Example]], text: str) -> str:
    """Return the page of errors for the site: `text` with the messages of each class in its section.

    `...` stands for what differs from run to run.
    """
    before, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return before + "".join(section + _messages(catalog, section.split("`")[1:2]) for section in sections)


def _messages(catalog: Mapping[Origin, Sequence[Example]], kinds: Sequence[str]) -> str:
    lines = []
    for place in sorted((place for place in catalog if place.kind in kinds), key=lambda place: place.message):
        text = next((example.text for example in catalog[place]), place.message.replace(FIELD, ANY))
        given = [f"{field} = {value}" for field, value in (place.values(text) or {}).items() if value != ANY]
        names = ", ".join(f"<code>{_escaped(each)}</code>" for each in (place.path, place.function, *given))
        lines += [f"<p>{_escaped(text)}</p>", f"<p>{names}</p>", ""]
    return "\n".join(["", *lines]) if lines else ""


def _escaped(text: str) -> str:
    return html.escape(text, quote=False).replace("\n", "<br>")


def _functions(module: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Return each function and method, without those inside others."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                yield f"{node.name}.{getattr(method, 'name', '')}", method
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node


def _last(called: ast.expr) -> str:
    match called:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _kind(called: ast.expr) -> str | None:
    """Return the class whose constructor, or whose `of_lines`, is called."""
    if isinstance(called, ast.Attribute) and called.attr == "of_lines":
        called = called.value
    return name if (name := _last(called)) in KINDS else None


def _text(node: ast.expr) -> tuple[str, list[str]]:
    """Return a text as it is written, with `{}` for each field, and the fields' expressions."""
    match node:
        case ast.Constant(value=str(text)):
            return text, []
        case ast.JoinedStr(values=parts):
            pieces = [_text(part) for part in parts]
            return "".join(text for text, _ in pieces), [field for _, fields in pieces for field in fields]
        case ast.FormattedValue(value=value):
            return FIELD, [ast.unparse(value)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            (before, first), (after, then) = _text(left), _text(right)
            return before + after, first + then
    return FIELD, [ast.unparse(node)]
