"""Every block of code in docs/ fits the library: its names, options, commands and settings exist.

Blocks that are to be run are run in tests/integration/spark/test_pages.py.
"""

import ast
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml

import kinesis_efo
from infra.settings.load import load_environment
from kinesis_efo.options import SOURCE_OPTIONS
from kinesis_efo.spark.sink import SINK_OPTIONS
from kinesis_efo_infra.pipeline import __main__ as infra_cli
from kinesis_efo_tools.cli import app as cli
from tests.support.pages import MARKERS, PAGES, ROOT, Block, blocks

OURS: Final = {option.name.lower(): option for option in (*SINK_OPTIONS, *SOURCE_OPTIONS)}
SPARKS: Final = {"path", "checkpointlocation", "truncate", "txnappid", "txnversion", "snapshot-property.orders-1"}
HEAD: Final = {
    "environment": "dev",
    "region": "us-east-1",
    "account_id": "123456789012",
    "state_bucket": "acme-terraform-state",
}
SHELLS_OWN: Final = {"cd", "check-jsonschema", "curl", "echo", "eval", "export", "pkill", "sed"}
VALUE: Final = "<value>"


def of(*languages: str) -> Any:
    return pytest.mark.parametrize("block", list(blocks(*languages)), ids=str)


@of("python", "sh", "yaml", "json")
def test_a_block_that_is_not_run_gives_a_reason(block: Block) -> None:
    assert block.marker is None or MARKERS.fullmatch(block.marker)


def test_blocks_are_in_known_languages() -> None:
    fences = {
        line
        for page in (ROOT / "docs").rglob("*.md")
        for line in re.findall(r"^ *```(.+)$", page.read_text(), re.MULTILINE)
    }
    assert fences <= {"python", "sh", "yaml", "json", "dockerfile", "hcl", "sql", "text"}


# Python


@of("python")
def test_names_and_options_in_python_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(f"_{block.text}" if block.text.startswith(".") else block.text)):
        match node:
            case ast.Import(names):
                for alias in names:
                    _imported(block, alias.name)
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    _imported(block, module, alias.name)
            case ast.Attribute(ast.Name("kinesis_efo"), name):
                _imported(block, "kinesis_efo", name)
            case ast.Call(func=ast.Attribute(ast.Name("kinesis_efo"), "low_latency")):
                assert {each.arg for each in node.keywords} == {"checkpoint"}
            case ast.Call(func=ast.Name("read_stream" | "read") | ast.Attribute(ast.Name("kinesis_efo"), _)):
                for each in node.keywords:
                    if each.arg not in (None, "manifest", "streams", "since", "until", "name"):
                        _option(str(each.arg).replace("_", "."), each.value, OURS)
            case ast.Call(func=ast.Attribute(_, "option"), args=[ast.Constant(str(name)), value]):
                _option(name, value, OURS.keys() | SPARKS)


def _imported(block: Block, module: str, name: str | None = None) -> None:
    if block.marker is not None and module.split(".")[0] not in ("kinesis_efo", "pyspark"):
        return
    found = importlib.import_module(module)
    assert name is None or hasattr(found, name) or importlib.import_module(f"{module}.{name}")
    assert module != "kinesis_efo" or name is None or name in kinesis_efo.__all__, "it is not public"


def _option(name: str, value: ast.expr, known: Iterable[str]) -> None:
    assert name.lower() in known
    if name.lower() in OURS and isinstance(value, ast.Constant) and "..." not in str(value.value):
        OURS[name.lower()].read(str(value.value))


def test_available_now_programs_set_catch_up() -> None:
    """Spark before 4.2 runs one micro-batch: whatever has come by then, without the option `catchUp`."""
    texts = {str(block): block.text for block in blocks("python")}
    texts |= {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "examples").rglob("*.py")}
    ending = {name: text for name, text in texts.items() if re.search(r"\.trigger\(availableNow\b", text)}
    assert "examples/tests/test_big_orders.py" in ending
    assert [name for name, text in ending.items() if "catchUp=True" not in text] == []


def test_boto_page_names_the_versions_that_are_allowed() -> None:
    (allowed,) = (each for each in metadata.requires("aiobotocore") or () if each.startswith("botocore"))
    parts = re.fullmatch(r"botocore<1\.43\.(\d+),>=([\d.]+)", allowed)
    assert parts is not None
    version = metadata.version("aiobotocore").removesuffix(".0")
    said = f"{version} allows {parts[2]} to 1.43.{int(parts[1]) - 1}"
    assert said in " ".join((ROOT / "docs/how-to/boto.md").read_text().split())


# Shell


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a script, each as its words.

    >>> list(commands("echo a | kinesis-efo put -s b && make \\\\\\n  synth  # all"))
    [['echo', 'a'], ['kinesis-efo', 'put', '-s', 'b'], ['make', 'synth']]
    """
    for line in re.sub(r"[<>]+ *\S+", "", text.replace("\\\n", " ")).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in ("|", "&&", "||", "&", ";"):
                while words and re.match(r"\w+=", words[0]):
                    del words[0]
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def kinesis_efo_takes(words: list[str], _: str, *, whole: bool = True) -> None:
    """Command and options exist, and, in a whole command, what is required is there."""
    command, parent = typer.main.get_command(cli.app), None
    while True:
        # What is parsed are only the words: no file has to be there, nothing is called.
        context = command.make_context(command.name, [], parent, resilient_parsing=True)
        context.resilient_parsing = False
        # Prose names an option without its value.
        given, rest, _order = command.make_parser(context).parse_args([*words, *([] if whole else [VALUE])])
        rest = [word for word in rest if word != VALUE]
        missing = [each.name for each in command.params if each.required and each.name not in given and not each.envvar]
        assert not whole or missing == []
        group = getattr(command, "get_command", None)
        if group is None or not rest:
            assert context.allow_extra_args or not rest
            return
        if not whole and rest[0].isupper():
            return
        found = group(context, rest[0])
        assert found is not None, f"there is no command {rest[0]}"
        command, words, parent = found, rest[1:], context


def make_has(words: list[str], _: str) -> None:
    rules = "".join((ROOT / name).read_text() for name in ("Makefile", "scripts/ci.mk", "infra/Makefile.inc"))
    for target in (word for word in words if "=" not in word):
        assert re.search(rf"^{target}:", rules, re.MULTILINE), f"there is no target {target}"


def pip_finds(words: list[str], _: str) -> None:
    projects = {r"\.|kinesis-efo": ROOT, r"(?:\./packages/)?kinesis-efo-infra": ROOT / "packages" / "kinesis-efo-infra"}
    for name, project in projects.items():
        known = tomllib.loads((project / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extras in (extras for word in words for extras in re.findall(rf"^(?:{name})\[(.*)\]$", word)):
            assert set(extras.split(",")) <= set(known)


def python_finds(words: list[str], page: str) -> None:
    if words[0] == "-c":
        ast.parse(words[1])
    elif words[0] == "-m":
        importlib.import_module(words[1])
    else:
        assert (ROOT / words[0]).exists() or f"`{words[0]}`" in page, f"the page does not say what {words[0]} is"


def spark_submit_finds(words: list[str], page: str) -> None:
    position = next(place for place, word in enumerate(words) if word.endswith(".py"))
    # What is in an image is a job of ours.
    program = re.sub(r"^local://.*/", "jobs/", words[position])
    arguments = words[position + 1 :]
    python_finds([program], page)
    source = (ROOT / program).read_text() if (ROOT / program).exists() else page
    for word in arguments:
        if flag := re.match(r"--([a-z-]+)", word):
            assert f"{flag[1].replace('-', '_')}: Annotated" in source or f'"--{flag[1]}"' in source, word
        elif option := re.match(r"(?:to\.)?([\w.]+)=", word):
            assert option[1].lower() in OURS or f'"{option[1]}"' in source, word


def infra_takes(words: list[str], _: str) -> None:
    infra_cli.command_line().parse_args(words)


PROGRAMS: Final[dict[str, Callable[[list[str], str], None]]] = {
    "kinesis-efo": kinesis_efo_takes,
    "kinesis-efo-infra": infra_takes,
    "make": make_has,
    "pip": pip_finds,
    "python": python_finds,
    "spark-submit": spark_submit_finds,
}


@of("sh")
def test_commands_in_shells_exist(block: Block) -> None:
    page = (ROOT / block.page).read_text()
    for program, *words in commands(block.text):
        if program in PROGRAMS and "..." not in words:
            PROGRAMS[program](words, page)
        else:
            assert block.marker is not None or program in SHELLS_OWN, (
                f"nobody checks {program}: say why above the block"
            )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_in_prose_and_output_exist(page: Path) -> None:
    text = page.read_text()
    output = re.findall(r"^ *\$ (kinesis-efo .*)$", text, re.MULTILINE)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    for command in [*output, *re.findall(r"`(kinesis-efo\s[^`]+)`", prose)]:
        for _, *words in commands(" ".join(command.split())):
            kinesis_efo_takes(words, "", whole=False)


# Settings


@of("yaml")
def test_yaml_is_an_environment_or_kubernetes(block: Block, tmp_path: Path) -> None:
    document = yaml.safe_load(block.text)
    if block.marker is not None:
        return
    if "apiVersion" in document:
        assert {"kind", "metadata", "spec"} <= document.keys()
        return
    # What the page leaves out.
    applications = document.get("applications", {"lake": {"streams": ["orders"]}})
    streams = {name: {} for each in applications.values() for name in each["streams"]}
    whole = {**HEAD, "streams": streams, "applications": applications, **document}
    path = tmp_path / f"{whole['environment']}.yaml"
    path.write_text(yaml.safe_dump(whole))
    load_environment(path)


@of("json")
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)
