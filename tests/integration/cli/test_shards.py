"""`kinesis-efo shards`: the lineage of a stream that was split and merged."""

from typing import Any

from tests.integration.cli.conftest import Cli, Here
from tests.support.world import World


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


def test_tree_shows_each_shard_below_its_parent(here: Here) -> None:
    parent, left, right, merged = _reshard(here)
    found = here.run("shards")
    lines = [line for line in found.out.splitlines() if "shardId" in line]
    assert [line.split("shardId-")[1][:12] for line in lines] == [
        each.removeprefix("shardId-") for each in (parent, left, merged, right, merged)
    ]
    assert [line.index("shardId") for line in lines] == [4, 8, 12, 8, 12]
    assert "closed  100.0% of the hash keys" in lines[0]
    assert "open  100.0% of the hash keys" in lines[2]
    assert lines[4].endswith("see above: it continues two shards")
    assert f"orders ({here.streams['orders']}): 4 shards, 1 open" in found.out


def test_option_shows_open_shards_only(here: Here) -> None:
    *_, merged = _reshard(here)
    shown = here.run("shards", "--open").out
    assert [line.split()[1] for line in shown.splitlines() if "shardId" in line] == [merged]
    [shard] = here.run("shards", "--open", "--json").data["streams"]["orders"]
    assert (shard["shardId"], shard["open"], len(shard["parents"])) == (merged, True, 2)


def test_missing_streams_and_permissions_are_named(cli: Cli, aws: Any) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    here.run("shards", "--stream", "order").ends(2, "'order', but the manifest", "'clicks', 'orders'", out="")
    here.kinesis.delete_stream(StreamName=here.streams["clicks"], EnforceConsumerDeletion=True)
    gone = here.run("shards", "--json")
    assert (gone.code, list(gone.data["streams"])) == (5, ["orders"])
    [missing] = gone.data["missing"]
    assert (missing["stream"], missing["error"] in gone.err) == ("clicks", True)
    assert "does not exist (any more)" in missing["error"]
    assert here.run("shards", "--stream", "clicks").code == 1
    cli.refuse("ListShards")
    here.run("shards", "--stream", "orders").ends(1, "The role needs kinesis:ListShards")
