"""Writes a new repository for a team: a CDKTF app with a stream and an application, its environment, and the pipeline that deploys it."""

from __future__ import annotations

import re
from pathlib import Path

from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.pipeline import publisher

_TEMPLATE = Path(__file__).parent / "template"
_SUFFIX = ".template"
_ENVIRONMENT = re.compile(r"[a-z][a-z0-9-]{0,31}")
_REPOSITORY = re.compile(r"[A-Za-z0-9-]{1,39}/[A-Za-z0-9_.-]{1,100}")
_TAG = re.compile(r"v\d+\.\d+\.\d+\w*")


def write(
    to: Path,
    environment: str = "streaming-dev",
    repository: str = publisher.REPOSITORY,
    tag: str = publisher.TAG,
    engine: str = "cdktf",
) -> list[Path]:
    """Write the files of a repository, and return their paths.

    Args:
        to: Directory of the new repository.
        environment: Name of the first environment.
        repository: Repository with the reusable workflows that the pipeline calls, as `owner/name`.
        tag: Version of the workflows and of the package.
        engine: The package for synthesis: `cdktf`, or its fork `cdktn`.

    Raises:
        ArgumentError: A file exists already or cannot be written, or a name is invalid.
    """
    if not _ENVIRONMENT.fullmatch(environment):
        raise ArgumentError(
            f"new-repository: the environment must be 1 to 32 of a-z, 0-9 and -, and begin with a letter; got {environment!r}"
        )
    if not _REPOSITORY.fullmatch(repository):
        raise ArgumentError(f"new-repository: the publisher must be a repository, as owner/name; got {repository!r}")
    if not _TAG.fullmatch(tag):
        raise ArgumentError(
            f"new-repository: the tag must be that of a release, as {publisher.TAG}, since the package of that version is "
            f"installed; got {tag!r}"
        )
    values = {
        "ENVIRONMENT": environment,
        "ENGINE": engine,
        "PUBLISHER": repository,
        "TAG": tag,
        "VERSION": tag.removeprefix("v"),
        "TRUSTED": publisher.trusted(repository, tag),
    }
    texts = {
        to / _filled(_hidden(path.relative_to(_TEMPLATE)), values): _filled(path.read_text(encoding="utf-8"), values)
        for path in sorted(_TEMPLATE.rglob(f"*{_SUFFIX}"))
    }
    if there := [str(path) for path in texts if path.exists()]:
        raise ArgumentError(
            f"new-repository: nothing is overwritten, and {there[0]} is there: choose another directory"
        )
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"new-repository: {to} cannot be written: {error}; choose another directory") from None
    return list(texts)


def _hidden(path: Path) -> str:
    """Return a template's path in the new repository: adds the leading dot of `.git...` files, which the templates' names lack."""
    name = str(path).removesuffix(_SUFFIX)
    return f".{name}" if name.startswith("git") else name


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@@(\w+)@@", lambda found: values[found[1]], text)
