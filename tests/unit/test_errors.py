"""The tree of exceptions: what a user may catch."""

import asyncio
import inspect
import pickle
import re
from pathlib import Path

import pytest

from kinesis_efo import errors
from kinesis_efo.calls.wire import pack_error, unpack_error
from kinesis_efo.driver.job import INTERRUPTED
from kinesis_efo.errors import FetcherError, KinesisEfoError, OptionsError
from kinesis_efo_tools.cli.output import ExitCode

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


def test_exit_codes_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/orchestrators.md").read_text()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \| ", page, re.MULTILINE)}
    assert {kind.exit_code for kind in ALL if issubclass(kind, KinesisEfoError)} | {0, INTERRUPTED} == listed
    # Commands mean the same by a code, or do not use it.
    assert {code.value for code in ExitCode} & listed == {0, 1, 2, 3, INTERRUPTED}


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not OptionsError])
def test_errors_cross_the_wire_with_their_type(kind: type[Exception]) -> None:
    again = unpack_error(pack_error(kind("what happened: ä", remedy="wait").about("orders")))  # type: ignore[call-arg, attr-defined]
    assert (type(again), str(again)) == (kind, "what happened: ä; wait")
    assert (again.stream, again.shard_id, again.remedy) == ("orders", None, "wait")


def test_an_unreadable_error_is_still_an_error() -> None:
    assert "without an error message" in str(unpack_error(b"\x00garbage"))
    assert str(unpack_error(b'["SystemExit","m",{}]')) == "m"
    several = unpack_error(pack_error(OptionsError(["one", "two"])))
    assert (type(several), str(several)) == (FetcherError, "one; two")


def test_several_faults_survive_pickling() -> None:
    again = pickle.loads(pickle.dumps(OptionsError(["one", "two"])))
    assert (again.faults, str(again)) == (("one", "two"), "one\ntwo")


def test_the_first_library_error_of_a_group_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    ours, again = errors.DataLossError("a shard is gone"), errors.DataLossError("a shard is gone")
    group = BaseExceptionGroup("two", [OSError("no route"), ours, again, errors.StreamError("another shard")])
    assert errors.first_of(group) is ours
    assert caplog.messages == ["failed as well: OSError: no route", "failed as well: StreamError: another shard"]
    alone = asyncio.CancelledError()
    assert errors.first_of(BaseExceptionGroup("one", [alone])) is alone
