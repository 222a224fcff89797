"""The benchmark of planning for many shards asks of a query what its reader asks."""

from __future__ import annotations

import pytest

from benchmarks import cluster
from tests.support.virtual_time import run


@pytest.mark.parametrize("fetchers", [0, 2])
def test_planning_is_measured_for_some_shards(fetchers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "WINDOWS", 1)
    found = run(cluster._measured(4, fetchers))
    assert all(load.latest for load in found.loads.values())
    assert found.loads["busy"].partitions
    assert found.offset_bytes > 0
