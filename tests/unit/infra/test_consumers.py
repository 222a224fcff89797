"""A consumer has one application that declares it, and one that reads it, in one file and across files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.errors import SettingsError
from infra.settings.load import load_environment, load_environments

Write = Callable[..., Path]

STREAM = "arn:aws:kinesis:eu-west-1:111122223333:stream/payments"
LAKE = f"{STREAM}/consumer/lake:1700000000"


def adopted(**consumers: str) -> dict[str, Any]:
    return {"payments": {"existing_arn": STREAM, **({"consumers": consumers} if consumers else {})}}


def reading(*applications: str, **settings: Any) -> dict[str, Any]:
    return {name: {"streams": ["payments"], **settings} for name in applications}


def faults(load: Callable[[], object]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load()
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize("other", [LAKE, LAKE.replace("1700000000", "1800000000")], ids=["same ARN", "created again"])
def test_two_applications_are_not_given_one_consumer(other: str, write: Write) -> None:
    path = write(streams=adopted(lake=LAKE, pond=other), applications=reading("lake", "pond"))
    (fault,) = faults(lambda: load_environment(path))
    assert "streams.payments.consumers.pond: is given to streams.payments.consumers.lake too" in fault
    assert fault.endswith(f"got '{STREAM}/consumer/lake'")


@pytest.mark.parametrize("order", [("lake", "pond"), ("pond", "lake")])
def test_a_declared_consumer_is_not_named_like_a_given_one(order: tuple[str, str], write: Write) -> None:
    path = write(streams=adopted(pond=LAKE), applications=reading(*order))
    (fault,) = faults(lambda: load_environment(path))
    assert "streams.payments.consumers.pond: is declared by applications.lake.streams payments too" in fault


def test_two_environments_do_not_declare_one_consumer_of_a_stream_that_both_adopt(write: Write, tmp_path: Path) -> None:
    write(environment="dev", streams=adopted(), applications=reading("lake"))
    write(environment="qa", streams=adopted(), applications=reading("lake"))
    (fault,) = faults(lambda: load_environments(tmp_path))
    assert (
        "qa.yaml applications.lake.streams payments: is declared by dev.yaml applications.lake.streams payments"
        in fault
    )
    write(environment="qa", streams=adopted(), applications=reading("lake", name="lake-qa"))
    assert len(load_environments(tmp_path)) == 2


def test_nor_one_on_a_stream_that_one_declares_and_the_other_adopts(write: Write, tmp_path: Path) -> None:
    write(environment="dev", streams={"payments": {"name": "payments"}}, applications=reading("lake"))
    write(environment="qa", streams=adopted(), applications=reading("lake"))
    (fault,) = faults(lambda: load_environments(tmp_path))
    assert "a stream has one consumer of a name; give one of the applications another `name:`" in fault


def test_two_environments_do_not_read_one_consumer(write: Write, tmp_path: Path) -> None:
    write(environment="dev", streams=adopted(lake=LAKE), applications=reading("lake"))
    write(environment="qa", streams=adopted(pond=LAKE), applications=reading("pond"))
    (fault,) = faults(lambda: load_environments(tmp_path))
    assert "qa.yaml streams.payments.consumers.pond: is read by dev.yaml streams.payments.consumers.lake too" in fault


def test_nor_does_one_read_what_another_declares_for_itself(write: Write, tmp_path: Path) -> None:
    write(environment="dev", streams={"payments": {"name": "payments"}}, applications=reading("lake"))
    write(environment="qa", streams=adopted(pond=LAKE), applications=reading("pond"))
    (fault,) = faults(lambda: load_environments(tmp_path))
    assert (
        "qa.yaml streams.payments.consumers.pond: is read by dev.yaml applications.lake.streams payments too" in fault
    )


def test_the_owner_declares_for_another_account_what_that_account_is_given(write: Write, tmp_path: Path) -> None:
    shared = {"kind": "other-account", "principals": ["arn:aws:iam::777788889999:root"]}
    write(environment="owner", streams={"payments": {"name": "payments"}}, applications=reading("lake", access=shared))
    write(environment="reader", account_id="777788889999", streams=adopted(lake=LAKE), applications=reading("lake"))
    assert len(load_environments(tmp_path)) == 2
