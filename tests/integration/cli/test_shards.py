"""`kinesis-efo shards`: the lineage of a stream that was split and merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.integration.cli.conftest import Result, Switch
from tests.integration.cli.test_manifest import Refusing
from tests.support.world import World

Run = Callable[..., Result]


def _reshard(here: World) -> tuple[str, str, str, str]:
    """Split the only shard and merge its children again; the ids of all, in order."""
    name = here.streams["orders"]
    parent = here.shards()[0]["ShardId"]
    here.kinesis.split_shard(StreamName=name, ShardToSplit=parent, NewStartingHashKey=str(2**127))
    here.wait_active()
    left, right = (shard["ShardId"] for shard in here.shards()[1:])
    here.kinesis.merge_shards(StreamName=name, ShardToMerge=left, AdjacentShardToMerge=right)
    here.wait_active()
    return parent, left, right, here.shards()[-1]["ShardId"]


def test_the_tree_shows_each_shard_below_its_parent(run: Run, world: Callable[..., World]) -> None:
    here = world()
    parent, left, right, merged = _reshard(here)
    found = run("shards", "--manifest", here.manifest)
    lines = [line for line in found.out.splitlines() if "shardId" in line]
    assert [line.split("shardId-")[1][:12] for line in lines] == [
        each.removeprefix("shardId-") for each in (parent, left, merged, right, merged)
    ]
    assert [line.index("shardId") for line in lines] == [4, 8, 12, 8, 12]
    assert "closed  100.0% of the hash keys" in lines[0]
    assert "open  100.0% of the hash keys" in lines[2]
    assert lines[4].endswith("see above: it continues two shards")
    assert f"orders ({here.streams['orders']}): 4 shards, 1 open" in found.out


def test_open_shards_only(run: Run, world: Callable[..., World]) -> None:
    here = world()
    *_, merged = _reshard(here)
    shown = run("shards", "--manifest", here.manifest, "--open").out
    assert [line.split()[1] for line in shown.splitlines() if "shardId" in line] == [merged]
    [shard] = run("shards", "--manifest", here.manifest, "--open", "--json").data["streams"]["orders"]
    assert (shard["shardId"], shard["open"], len(shard["parents"])) == (merged, True, 2)


def test_bad_input(run: Run, world: Callable[..., World], switch: Switch, aws: Any) -> None:
    here = world({"orders": 1, "clicks": 1})
    wrong = run("shards", "--manifest", here.manifest, "--stream", "order")
    assert (wrong.code, wrong.out) == (2, "")
    assert "'order', but the manifest" in wrong.err
    assert "'clicks', 'orders'" in wrong.err
    here.kinesis.delete_stream(StreamName=here.streams["clicks"], EnforceConsumerDeletion=True)
    gone = run("shards", "--manifest", here.manifest, "--json")
    assert (gone.code, list(gone.data["streams"])) == (5, ["orders"])
    [missing] = gone.data["missing"]
    assert (missing["stream"], missing["error"] in gone.err) == ("clicks", True)
    assert "does not exist (any more)" in missing["error"]
    assert run("shards", "--manifest", here.manifest, "--stream", "clicks").code == 1
    switch.faults = Refusing("ListShards")
    refused = run("shards", "--manifest", here.manifest, "--stream", "orders")
    assert refused.code == 1
    assert "The role needs kinesis:ListShards" in refused.err
