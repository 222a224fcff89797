"""Writes the first file of an environment, with comments, for somebody to change."""

from __future__ import annotations

from pathlib import Path
from string import Template

from pydantic import TypeAdapter, ValidationError

from infra.errors import Fault, SettingsError
from infra.load import shown
from infra.rules import looks_like_production
from infra.settings import EnvironmentName

_TEMPLATE = Path(__file__).with_suffix(".yaml")
_PROTECTED = "protected: true         # nothing with an identity can be destroyed\n"


def write_first(directory: Path, name: str) -> Path:
    """Write `<name>.yaml`, a small valid environment, and return its path.

    Args:
        directory: Directory of the environment files; made where it is missing.
        name: Name of the environment.

    Raises:
        SettingsError: There is such a file already, or no environment can have that name.
    """
    try:
        TypeAdapter(EnvironmentName).validate_python(name)
    except ValidationError as error:
        rule = f"no environment can have this name: it must match {error.errors()[0]['ctx']['pattern']}"
        raise SettingsError([Fault("environment", name, rule)]) from None
    path = directory / f"{name}.yaml"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            protected = _PROTECTED if looks_like_production(name) else ""
            template = Template(_TEMPLATE.read_text(encoding="utf-8"))
            file.write(template.substitute(environment=name, protected=protected))
    except FileExistsError:
        raise SettingsError(
            [Fault("", None, "is there already; change it, or choose another name", shown(path))]
        ) from None
    return path
