"""Fetchers must leave cores for micro-batches."""

from __future__ import annotations

import pytest

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.spark.cores import check_cores


@pytest.mark.parametrize(
    ("master", "fetchers", "here"),
    [
        ("local[4]", 3, 1),
        ("local[*]", 7, 8),
        ("local-cluster[2,1,1024]", 9, 1),
        ("yarn", 9, 1),
        ("", 9, 1),
    ],
)
def test_where_cores_are_left_or_a_cluster_may_grow(master: str, fetchers: int, here: int) -> None:
    check_cores(master, fetchers, here)


@pytest.mark.parametrize(
    ("master", "fetchers", "here", "cores"),
    [("local", 1, 8, 1), ("local[4]", 4, 8, 4), ("local[4, 2]", 5, 8, 4), ("local[*]", 8, 8, 8)],
)
def test_where_none_is_left(master: str, fetchers: int, here: int, cores: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_cores(master, fetchers, here)
    assert f"option 'fetchers' is {fetchers}, but Spark has {cores} cores with master {master}: " in str(caught.value)
