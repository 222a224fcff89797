"""``kinesis-efo shards``: shows the shards of an application's streams as trees, children below their parents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.kinesis.topology import Topology, explained
from kinesis_efo.manifest import Manifest
from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.commands.shards import Shards
from kinesis_efo_tools.cli.failing import CommandExit
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.each_stream import Answers, of_each
from kinesis_efo_tools.operate.shard_tree import TreeEntry, share, tree


def shards(given: Shards) -> None:
    found = arguments.load(given.manifest, given.aws, given.stream)

    async def list_shards() -> Answers[list[Shard]]:
        async with Access(given.aws, found.region) as access:
            topology = Topology(await access.client("kinesis"))
            return await of_each(
                found.streams, lambda ref: explained(topology.shards(ref.stream_arn), ref, found.source)
            )

    listed = asyncio.run(list_shards())
    output.answer(
        given.as_json, _data(found, listed, given.open_only), lambda: _view(found, listed.found, given.open_only)
    )
    for error in listed.missing.values():
        output.remark(f"not shown: {error}")
    if listed.missing:
        names = ", ".join(listed.missing)
        raise CommandExit(output.ExitCode.INCOMPLETE, f"not all is shown: {names} could not be asked for")


def _data(manifest: Manifest, listed: Answers[list[Shard]], open_only: bool) -> dict[str, Any]:
    return {
        "application": manifest.application,
        "streams": {
            name: [
                {
                    "shardId": shard.shard_id,
                    "parents": list(shard.parents),
                    "open": shard.last is None,
                    "startingHashKey": str(shard.hash_range[0]),
                    "endingHashKey": str(shard.hash_range[1]),
                    "startingSequenceNumber": str(shard.first),
                    "endingSequenceNumber": None if shard.last is None else str(shard.last),
                }
                for shard in sorted(each, key=lambda shard: shard.shard_id)
                if shard.last is None or not open_only
            ]
            for name, each in listed.found.items()
        },
        "missing": output.missing_data(listed.missing),
    }


def _view(manifest: Manifest, listed: Mapping[str, list[Shard]], open_only: bool) -> RenderableType:
    trees: list[RenderableType] = []
    for name, each in listed.items():
        count = sum(shard.last is None for shard in each)
        root = Tree(
            output.text(
                f"{name} ({manifest.streams[name].stream_name}): {output.count(len(each), 'shard')}, {count} open"
            )
        )
        # `branches[depth]` is the latest branch at that depth. Entries one level deeper are added to it.
        branches = [root]
        for entry in tree(each):
            if entry.shard.last is not None and open_only:
                continue
            depth = 0 if open_only else entry.depth
            if not (entry.repeated and open_only):
                branches[depth + 1 :] = [branches[depth].add(_text(entry))]
        trees += [root, ""]
    return Group(*trees[:-1])


def _text(entry: TreeEntry) -> Text:
    shard = entry.shard
    if entry.repeated:
        return output.text(f"{shard.shard_id}  see above: it continues two shards", "dim")
    text = f"{shard.shard_id}  {'open' if shard.last is None else 'closed'}  {share(shard):.1%} of the hash keys"
    if entry.trimmed_parents:
        text += f"  continues {', '.join(entry.trimmed_parents)}, which retention removed"
    return output.text(text, "" if shard.last is None else "dim")
