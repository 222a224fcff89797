"""The page about the command line names every command and every exit code."""

import re
from pathlib import Path

import pytest
import typer

from kinesis_efo_tools.cli import app as cli
from kinesis_efo_tools.cli.output import ExitCode

PAGE = (Path(__file__).parents[3] / "docs/command-line.md").read_text()
TEXT = " ".join(PAGE.split())


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_is_there(name: str) -> None:
    assert f"kinesis-efo {name}" in TEXT
    command = cli.load(name, cli.COMMANDS[name])
    if name not in ("emr", "glue"):  # they have pages of their own
        for each in getattr(command, "commands", {}):
            assert f"kinesis-efo {name} {each}" in TEXT


@pytest.mark.parametrize("code", list(ExitCode))
def test_every_exit_code_is_there(code: ExitCode) -> None:
    assert re.search(rf"^\| {code.value} \| ", PAGE, re.MULTILINE)


def test_every_option_that_the_page_names_exists() -> None:
    known = {"--install-completion", "--help", "--debug"}

    def gather(command: typer.core.TyperCommand | typer.core.TyperGroup) -> None:
        known.update(option for parameter in command.params for option in parameter.opts)
        for each in getattr(command, "commands", {}).values():
            gather(each)

    for name, entry in cli.COMMANDS.items():
        gather(cli.load(name, entry))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named <= known
