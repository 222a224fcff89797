"""Writes a first environment file from a template with comments, to be edited."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any

from pydantic import TypeAdapter, ValidationError

from infra.errors import Fault, SettingsError
from infra.settings.rules import looks_like_production
from infra.settings.values import DEFAULT_PROJECT, EnvironmentName, ProjectName
from kinesis_efo_infra.gate.files import shown

_TEMPLATE = Path(__file__).with_suffix(".yaml")
_PROTECTED = "protected: true         # nothing with an identity can be destroyed\n"


def write_first(directory: Path, name: str, project: str = DEFAULT_PROJECT) -> Path:
    """Write `<name>.yaml`, a small valid environment, and return its path.

    Args:
        directory: Directory of the environment files; created if it is missing.
        name: Name of the environment.
        project: Project of the environment; omitted from the file if it is the default.

    Raises:
        SettingsError: The file exists already, or the name of the environment or project is invalid.
    """
    _check("environment", EnvironmentName, name)
    _check("project", ProjectName, project)
    path = directory / f"{name}.yaml"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            protected = _PROTECTED if looks_like_production(name) else ""
            template = Template(_TEMPLATE.read_text(encoding="utf-8"))
            names = {"environment": name, "qualified": name, "bucket": name, "project": ""}
            if project != DEFAULT_PROJECT:
                names |= {"qualified": f"{project}.{name}", "bucket": f"{project}-{name}"}
                names["project"] = f"project: {project}             # what names begin with\n"
            file.write(template.substitute(names, protected=protected))
    except FileExistsError:
        raise SettingsError(
            [Fault("", None, "is there already; change it, or choose another name", shown(path))]
        ) from None
    return path


def _check(what: str, kind: Any, name: str) -> None:
    try:
        TypeAdapter(kind).validate_python(name)
    except ValidationError as error:
        (detail,) = error.errors()
        pattern = detail["ctx"].get("pattern")
        why = f"it must match {pattern}" if pattern else f"it {detail['ctx']['error']}"
        raise SettingsError([Fault(what, name, f"no {what} can have this name: {why}")]) from None
