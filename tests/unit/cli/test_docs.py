"""The page about the command line names every command and every exit code."""

import re
from pathlib import Path

import typer

from kinesis_efo_tools.cli import app as cli
from kinesis_efo_tools.cli.output import ExitCode

PAGE = (Path(__file__).parents[3] / "docs/command-line.md").read_text()


def test_page_names_every_command_and_code_and_no_other_option() -> None:
    text, known = " ".join(PAGE.split()), {"--install-completion", "--help", "--debug"}

    def gather(words: str, command: typer.core.TyperCommand | typer.core.TyperGroup) -> None:
        known.update(option for parameter in command.params for option in parameter.opts)
        if not words.startswith(("emr ", "glue ")):  # they have pages of their own
            assert f"kinesis-efo {words}" in text
        for name, each in getattr(command, "commands", {}).items():
            gather(f"{words} {name}", each)

    for name, entry in cli.COMMANDS.items():
        gather(name, cli.load(name, entry))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known
    assert {str(code.value) for code in ExitCode} <= set(re.findall(r"^\| (\d+) \| ", PAGE, re.MULTILINE))
