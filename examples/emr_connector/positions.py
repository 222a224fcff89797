"""Print where a query of AWS's Spark connector stopped, as the option `startingPosition`: see docs/how-to/emr-connector.md.

    python positions.py CHECKPOINT STREAM NAME > start.json

CHECKPOINT is a copy of the query's checkpointLocation, STREAM the stream's name in Kinesis, and NAME what the new query calls it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def starting_position(checkpoint: Path, name: str, shards: Iterable[Mapping[str, Any]]) -> str:
    """Return where a query of `aws-kinesis` stopped. `shards` are those of the stream, as ListShards gives them."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    _, batch, offset = (checkpoint / "offsets" / str(last)).read_text().splitlines()
    stopped = {shard: at for shard, at in json.loads(offset).items() if shard != "metadata"}
    read = list((checkpoint / "sources" / "0" / "shard-source" / str(last)).glob("shardId-*"))
    if not read:
        raise SystemExit(f"{checkpoint} does not say what micro-batch {last} has read")
    stopped |= {path.name: json.loads(path.read_text()) for path in read}
    started, over = {}, set()
    for shard, at in stopped.items():
        number, inner = at["iteratorPosition"], int(at["subSequenceNumber"])
        match at["iteratorType"]:
            case "AFTER_SEQUENCE_NUMBER" if inner >= 0 and str(at["isLast"]).lower() == "false":
                started[shard] = f"INSIDE:{number}:{inner}"  # within a KPL aggregate
            case "AFTER_SEQUENCE_NUMBER":
                started[shard] = f"AFTER:{number}"
            case "AT_TIMESTAMP":
                started[shard] = f"AT_TIMESTAMP:{number}"
            case "LATEST":  # nothing had come when this micro-batch was read
                started[shard] = f"AT_TIMESTAMP:{json.loads(batch)['batchTimestampMs']}"
            case "TRIM_HORIZON":
                started[shard] = "TRIM_HORIZON"
            case "SHARD_END":
                over.add(shard)
            case other:
                raise SystemExit(f"shard {shard} stands at {other}, which this program does not know")
    for shard in shards:
        parents = {shard.get("ParentShardId"), shard.get("AdjacentParentShardId")}
        # The children of a shard that is named follow it by themselves.
        if parents & over and not parents & started.keys():
            started.setdefault(shard["ShardId"], "TRIM_HORIZON")
    return json.dumps({name: started})


if __name__ == "__main__" and len(sys.argv) == 4:
    import boto3

    kinesis, shards = boto3.client("kinesis"), []
    more: dict[str, str] | None = {"StreamName": sys.argv[2]}
    while more:
        answer = kinesis.list_shards(**more)
        shards += answer["Shards"]
        more = {"NextToken": answer["NextToken"]} if answer.get("NextToken") else None
    sys.stdout.write(starting_position(Path(sys.argv[1]), sys.argv[3], shards) + "\n")
