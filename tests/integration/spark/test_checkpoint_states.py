"""What Spark says to a start on each state of a checkpoint's log is what `doctor --checkpoint` is tested by, and what it says."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from kinesis_efo.tasks.compat import SPARK_VERSION
from tests.integration.spark.conftest import Queries
from tests.support.checkpoint_states import NEWEST, REFUSED, SINCE_42, STATES
from tests.support.next_start import next_start
from tests.support.world import World


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_spark_and_doctor_refuse_the_recorded_states(world: Callable[..., World], queries: Queries) -> None:
    w, whole = world(), queries.directory / "whole"

    def refusal(checkpoint: Path) -> str:
        w.put([("key", b"data")])
        writer = queries.load(w, readMode="polling").writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        try:
            query = writer.start()
            queries.started.append(query)
            assert query.awaitTermination(120)
        except (PySparkException, Py4JJavaError) as error:
            return str(error)
        return ""

    for _ in range(NEWEST + 1):
        assert not refusal(whole)
    assert {each.name for each in (whole / "commits").iterdir() if each.name.isdigit()} == {"0", "1", "2"}
    said, status = {}, {}
    for number, (name, change) in enumerate(STATES.items()):
        here = queries.directory / str(number)
        shutil.copytree(whole, here)
        change(here)
        status[name] = next_start(w, here)["checkpoint"].partition(":")[0]
        said[name] = refusal(here)
    refused = REFUSED if SPARK_VERSION >= (4, 2) else REFUSED - SINCE_42
    assert {name for name, words in said.items() if words} == refused, said
    assert {name for name, found in status.items() if found == "failed"} == REFUSED - SINCE_42, status
