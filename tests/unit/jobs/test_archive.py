"""The parts of the archive job that need no Spark session."""

import ast
import sys
from pathlib import Path

import pytest

from jobs import archive
from jobs.archive import WrongArgument, pairs, refuse_if_ahead
from kinesis_efo import ConfigurationError


def test_options_may_hold_equals_signs() -> None:
    assert pairs(["externalId=a=b", "pollTimeout=1s"]) == {"externalId": "a=b", "pollTimeout": "1s"}


@pytest.mark.parametrize("text", ["bufferBytes", "=64m", ""])
def test_an_option_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(WrongArgument, match="NAME=VALUE") as refused:
        pairs([text])
    assert repr(text) in str(refused.value)


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(WrongArgument, match="given twice: '64m' and '1g'"):
        pairs(["bufferBytes=64m", "BufferBytes=1g"])


@pytest.mark.parametrize(
    ("written", "planned", "left_out"),
    [
        (["9.compact", "10", ".10.crc"], ["7", "8"], "9 to 10"),
        (["19.compact"], ["18", ".18.crc"], "19 to 19"),
        (["0"], [], "0 to 0"),
    ],
)
def test_checkpoint_older_than_its_output_is_refused(written: list[str], planned: list[str], left_out: str) -> None:
    with pytest.raises(ConfigurationError, match=f"would leave out what is read in micro-batches {left_out}"):
        refuse_if_ahead(written, planned, "s3://lake/raw", "s3://lake/checkpoints/raw")


@pytest.mark.parametrize(
    ("written", "planned"),
    [([], []), ([], ["0"]), (["9.compact", "10"], ["10"]), (["9.compact", "10"], ["10", "11"]), (["_tmp"], [])],
)
def test_checkpoint_that_planned_the_output_is_accepted(written: list[str], planned: list[str]) -> None:
    refuse_if_ahead(written, planned, "out", "checkpoint")


def test_retention_is_an_argument_and_not_set_by_default() -> None:
    required = ["--manifest", "m", "--output", "o", "--checkpoint", "c"]
    assert archive.command_line().parse_args(required).retention is None
    assert archive.command_line().parse_args([*required, "--retention", "30d"]).retention == "30d"


def test_it_imports_nothing_that_an_environment_archive_has_not() -> None:
    tree = ast.parse(Path(archive.__file__).read_text())
    imported = {alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names}
    imported |= {each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {"pyspark", "kinesis_efo"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: --manifest, --output, --checkpoint"),
        (["--option", "bufferBytes"], "--option must be NAME=VALUE, such as bufferBytes=64m; got 'bufferBytes'"),
        (["--avail"], "unrecognized arguments: --avail"),
    ],
)
def test_wrong_argument_fails_before_spark_starts(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ["--manifest", "m.json", "--output", "out", "--checkpoint", "checkpoint"] if arguments else []
    monkeypatch.setattr(sys, "argv", ["archive.py", *needed, *arguments])
    with pytest.raises(SystemExit) as ended:
        archive.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
