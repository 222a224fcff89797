"""Programs of jobs take the arguments that files give them: those of the documentation by the programs themselves."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import SettingsError
from infra.settings.load import load_environment, load_environments
from infra.settings.model import Environment
from infra.settings.programs import Option, command_line
from jobs import archive
from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.pages import ROOT, blocks
from tests.unit.infra.conftest import Write, rows

LAKE = {"streams": ["orders"], "output": "s3://lake/raw", "access": {"kind": "emr-serverless"}}
PROGRAM = "jobs/archive.py"


def documented() -> Iterator[tuple[str, str, list[str]]]:
    """Place, program and arguments of each job in environment files and on pages."""
    files = [EXAMPLE, *DIRECTORY.glob("*.yaml"), *(ROOT / "examples" / "environments").glob("*.yaml")]
    texts = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in files]
    for place, text in [*texts, *((str(block), block.text) for block in blocks("yaml"))]:
        document = yaml.safe_load(text)
        for job in (document.get("jobs") or []) if isinstance(document, dict) else []:
            yield f"{place} {job['application']}", job["program"], job.get("arguments", [])
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:3] == ["kinesis-efo", "emr", "submit"] and "--" in words:
                program = f"jobs/{words[words.index('--job') + 1]}.py"
                yield str(block), program, words[words.index("--") + 1 :]


@pytest.mark.parametrize(("place", "program", "arguments"), list(documented()), ids=[each[0] for each in documented()])
def test_documented_job_has_arguments_of_its_program(place: str, program: str, arguments: list[str]) -> None:
    if program == PROGRAM:
        archive.command_line().parse_args(["--manifest", "ssm:///m", *arguments])
    else:
        (source,) = [block.text for block in blocks("python") if "ArgumentParser" in block.text]
        known = {name for each in command_line(source) or () for name in each.names}
        assert (program, {each for each in arguments if each.startswith("--")} - known) == ("orders.py", set()), place


def test_there_are_documented_jobs() -> None:
    assert {Path(place.partition(":")[0].partition(" ")[0]).name for place, _, _ in documented()} >= {
        "example.yaml", "dev.yaml", "prod.yaml", "run-on-emr.md",
    }  # fmt: skip


def test_options_of_the_archive_are_read_from_its_source() -> None:
    """The command line that is read from the source is that of the program."""
    usage = archive.command_line().format_usage()
    real = {
        ((name,), bool(value), not optional)
        for optional, name, value in re.findall(r"(\[)?(--[a-z-]+)(\s+[A-Z_=]+)?", usage)
    }
    read = command_line(Path(archive.__file__).read_text(encoding="utf-8"))
    assert read is not None
    assert {(each.names, each.takes_value, each.required) for each in read} == real


def declared(arguments: list[str], **changes: Any) -> dict[str, Any]:
    lake = LAKE | {"checkpoint": "s3://lake/checkpoints/raw"}
    job = {"application": "lake", "program": PROGRAM, "arguments": arguments, **changes}
    return {"emr": {}, "applications": {"lake": lake}, "jobs": [job]}


BOTH = ["--output", "$output", "--checkpoint=$checkpoint"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arguments": ["--output", "$output"]}, r"jobs\.0\.arguments: is missing --checkpoint, without which jobs/arch"),
        ({"arguments": [*BOTH, "--availble-now"]}, r"jobs\.0\.arguments\.3: is no option of jobs/archive.py, which takes --man"),
        ({"arguments": [*BOTH, "now"]}, r"jobs\.0\.arguments\.3: is the value of no option"),
        ({"arguments": [*BOTH, "--trigger"]}, r"jobs\.0\.arguments\.3: must be followed by a value"),
        ({"arguments": [*BOTH, "--available-now", "yes"]}, r"jobs\.0\.arguments\.4: is the value of no option"),
        ({"program": "jobs/archives.py"}, r"jobs\.0\.program: cannot be read in /.*No such file.*; got 'jobs/archives.py'"),
        ({"program": "jobs/wrong.py"}, r"jobs\.0\.program: is no Python: .* in line 1"),
        ({"program": "jobs/other.py"}, r"jobs\.0\.program: must take --manifest.*; it takes --output"),
    ],
)  # fmt: skip
def test_arguments_that_a_program_refuses_are_faults(
    write: Write, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    project(tmp_path)
    path = write(**declared(BOTH) | {"jobs": [declared(BOTH)["jobs"][0] | changes]})
    with pytest.raises(SettingsError, match=says) as caught:
        load_environment(path, tmp_path)
    assert len(caught.value.faults) == 1
    load_environment(path)


def project(directory: Path) -> None:
    (directory / "jobs").mkdir()
    (directory / PROGRAM).write_text(Path(archive.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (directory / "jobs" / "wrong.py").write_text("if:", encoding="utf-8")
    (directory / "jobs" / "other.py").write_text("p.add_argument('--output')\np.add_argument('--checkpoint')\n")


def test_arguments_of_a_program_are_valid(write: Write, tmp_path: Path) -> None:
    project(tmp_path)
    write(**declared([*BOTH, "--available-now", "--option", "a=b", "--option=c=d"]))
    assert len(load_environments(tmp_path, project=tmp_path)) == 1


SOURCES = r"""
p.add_argument('-o', '--output') => [Option(('--output', '-o'))]
p.add_argument('--now', action='store_true') => [Option(('--now',), takes_value=False)]
def f(now: Annotated[bool | None, typer.Option()] = None): ... => [Option(('--now', '--no-now'), False)]
def f(on: Annotated[bool, Option('--on/--off')]): ... => [Option(('--on', '--off'), False, True)]
def f(*, my_file: Annotated[str, Option()]): ... => [Option(('--my-file',), True, True)]
# Of these, nothing can be told.
p.add_argument(name) => None
p.add_argument('file') => None
p.add_argument('--files', nargs='+') => None
p.add_argument('--x', **more) => None
p.add_argument('--x', action=MyAction) => None
p.add_argument('--x', required=needed) => None
p.add_argument('--x'); p.parse_known_args() => None
p.add_argument('--x'); p.add_subparsers() => None
def f(file: Annotated[str, typer.Argument()]): ... => None
def f(x: Annotated[str, typer.Option()], ctx: typer.Context): ... => None
def f(x: Annotated[tuple[int, int], typer.Option()]): ... => None
def f(x: Annotated[int, typer.Option(count=True)]): ... => None
print('no command line') => None
"""
TWO = "def f(x: Annotated[int, Option()]): ...\ndef g(x: Annotated[int, Option()]): ..."


@pytest.mark.parametrize(("source", "expected"), [*rows(SOURCES), (TWO, "None")])
def test_command_line_is_read_from_the_source(source: str, expected: str) -> None:
    assert command_line(source) == eval(expected, {"Option": Option})


def test_unreadable_command_line_has_any_arguments(write: Write, tmp_path: Path) -> None:
    (tmp_path / "free.py").write_text("import sys\nprint(sys.argv)\n", encoding="utf-8")
    environment: Environment = load_environment(write(**declared(["whatever"], program="free.py")), tmp_path)
    assert environment.jobs[0].arguments == ["whatever"]
