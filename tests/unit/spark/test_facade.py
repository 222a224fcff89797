"""What `read_stream` tells the source of its session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.options import SourceOptions
from kinesis_efo.options.source import DRIVER_HOST
from kinesis_efo.spark.facade import read_stream

pytestmark = pytest.mark.spark


class Spark:
    """A session that remembers the options of what is read; also its own reader."""

    def __init__(self, **conf: str) -> None:
        self.conf = {name.replace("_", "."): value for name, value in conf.items()}
        self.options: dict[str, str] = {}
        self.dataSource = SimpleNamespace(register=lambda _: None)
        self.readStream = self

    def format(self, name: str) -> Spark:
        return self

    def option(self, name: str, value: str) -> Spark:
        self.options[name] = value
        return self

    def load(self) -> dict[str, str]:
        return self.options


def told(spark: Any, **options: object) -> dict[str, str]:
    found: Any = read_stream(spark, manifest="m.json", **options)
    SourceOptions.parse(found)
    return {name: value for name, value in found.items() if name != "manifest"}


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,3]"])
def test_in_local_mode_all_is_on_this_host(master: str) -> None:
    assert told(Spark(spark_master=master, spark_driver_host="10.0.0.7")) == {DRIVER_HOST: "localhost"}


@pytest.mark.parametrize(
    "master", ["local-cluster[2,1,1024]", "spark://m:7077", "yarn", "k8s://https://api", "custom:emr-serverless"]
)
def test_elsewhere_the_drivers_address_is_told(master: str) -> None:
    assert told(Spark(spark_master=master, spark_driver_host="10.0.0.7")) == {DRIVER_HOST: "10.0.0.7"}


def test_a_session_that_does_not_know_tells_nothing() -> None:
    assert told(Spark()) == {}


def test_options_are_passed_on() -> None:
    given = told(
        Spark(spark_master="yarn"), streams=["a", "b"], catchUp=True, subscribe_maxRetries=3, fetcherHost="gateway"
    )
    assert given == {"streams": "a,b", "catchUp": "true", "subscribe.maxRetries": "3", "fetcherHost": "gateway"}
