"""Programs of jobs take the arguments that files give them: those of the documentation by the programs themselves."""

import re
from pathlib import Path
from typing import Any

import pytest

from infra.errors import SettingsError
from infra.settings.load import load_environment
from infra.settings.programs import Option, command_line
from jobs import archive
from tests.unit.infra.conftest import Write, rows

LAKE = {"streams": ["orders"], "output": "s3://lake/raw", "access": {"kind": "emr-serverless"}}
PROGRAM = "jobs/archive.py"


def test_options_of_the_archive_are_read_from_its_source() -> None:
    """The command line that is read from the source is that of the program."""
    usage = archive.command_line().format_usage()
    real = {
        ((name,), bool(value), not optional)
        for optional, name, value in re.findall(r"(\[)?(--[a-z-]+)(\s+[A-Z_=]+)?", usage)
    }
    read = command_line(Path(archive.__file__).read_text(encoding="utf-8"))
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
    (tmp_path / "jobs").mkdir()
    (tmp_path / PROGRAM).write_text(Path(archive.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "jobs" / "wrong.py").write_text("if:", encoding="utf-8")
    (tmp_path / "jobs" / "other.py").write_text("p.add_argument('--output')\np.add_argument('--checkpoint')\n")
    path = write(**declared(BOTH) | {"jobs": [declared(BOTH)["jobs"][0] | changes]})
    with pytest.raises(SettingsError, match=says) as caught:
        load_environment(path, tmp_path)
    assert len(caught.value.faults) == 1
    load_environment(path)


SOURCES = r"""
p.add_argument('-o', '--output') => [Option(('--output', '-o'))]
p.add_argument('--now', action='store_true') => [Option(('--now',), takes_value=False)]
def f(now: Annotated[bool | None, typer.Option()] = None): ... => [Option(('--now', '--no-now'), False)]
def f(*, my_file: Annotated[str, Option()]): ... => [Option(('--my-file',), True, True)]
# Of these, nothing can be told.
p.add_argument(name) => None
p.add_argument('--files', nargs='+') => None
p.add_argument('--x', **more) => None
p.add_argument('--x'); p.parse_known_args() => None
def f(file: Annotated[str, typer.Argument()]): ... => None
def f(x: Annotated[str, typer.Option()], ctx: typer.Context): ... => None
def f(x: Annotated[int, typer.Option(count=True)]): ... => None
print('no command line') => None
"""
TWO = "def f(x: Annotated[int, Option()]): ...\ndef g(x: Annotated[int, Option()]): ..."


@pytest.mark.parametrize(("source", "expected"), [*rows(SOURCES), (TWO, "None")])
def test_command_line_is_read_from_the_source(source: str, expected: str) -> None:
    assert command_line(source) == eval(expected, {"Option": Option})
