"""The option `credentialProvider`, in every process that calls AWS: driver, planner, run and tasks."""

import os
import re
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

import kinesis_efo
from tests.support.cutting_proxy import CuttingProxy
from tests.support.world import World, wait_for_rows

from .conftest import Queries


def keys_in(proxy: CuttingProxy) -> dict[int, set[str]]:
    """The keys that have signed requests since the last call, by process."""
    found = set(re.findall(rb"Credential=([^/]+)/", bytes(proxy.passed)))
    proxy.passed.clear()
    parts = [re.fullmatch(r"P(\d+)N\d+", key.decode()) for key in found]
    assert found and all(parts), found
    keys: dict[int, set[str]] = {}
    for part in filter(None, parts):
        keys.setdefault(int(part[1]), set()).add(part[0])
    return keys


@pytest.mark.spark40
def test_all_calls_are_signed_with_the_providers_keys(
    spark: SparkSession, world: Callable[..., World], queries: Queries
) -> None:
    w = world({"orders": 2, "copies": 1})
    w.put((f"k{n}", b"data") for n in range(20))
    with CuttingProxy(int(w.aws.endpoint_url.rpartition(":")[2]), lambda _: None) as proxy:
        given = {
            "credentialProvider": "tests.support.provided_keys:keys",
            "endpointUrl": f"http://127.0.0.1:{proxy.port}",
        }
        for mode in ("efo", "polling"):
            query = queries.start(queries.load(w, streams="orders", readMode=mode, **given), mode)
            wait_for_rows(query, 20)
            reader = w.reader().pid
            query.stop()
            assert len(keys_in(proxy)[reader]) > 1, "the run renews them"
        rows = kinesis_efo.read(spark, manifest=str(w.manifest), streams="orders", **given)
        assert rows.count() == 20
        assert len(keys_in(proxy).keys() - {os.getpid()}) > 1, "of the planner and of a task"
        rows.select("data", "partitionKey").write.format("kinesis-efo").mode("append").options(
            manifest=str(w.manifest), stream="copies", **given
        ).save()
        assert keys_in(proxy).keys() - {os.getpid()}
    assert (
        kinesis_efo.read(spark, manifest=str(w.manifest), streams="copies", endpointUrl=w.aws.endpoint_url).count()
        == 20
    )
