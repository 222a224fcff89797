"""`kinesis-efo doctor --checkpoint`: what the next start of a query would do, where streams, leases and retention have changed."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.row import Lease
from kinesis_efo.options import SourceOptions
from kinesis_efo.positions import TRIM_HORIZON, Mark, Offset, Position, ShardKey
from kinesis_efo_local.sequence import Numbering
from kinesis_efo_tools.operate.lease_edits import moved
from tests.integration.cli.conftest import Cli, Here
from tests.support.world import World

FIRST, SECOND = (f"shardId-00000000000{number}" for number in range(2))


def write(
    world: World,
    folder: Path,
    positions: dict[str, dict[str, Position]],
    *,
    finished: bool = True,
    mark: Mark | None = None,
) -> Path:
    """Write the checkpoint of a query as Spark writes one, with one micro-batch."""
    known = {ShardKey(name, shard): at for name, shards in positions.items() for shard, at in shards.items()}
    offset = Offset(known, mark=mark)
    text = json.dumps(offset.to_dict(world.consumers), separators=(",", ":"))
    for name, content in (("offsets", f'v1\n{{"conf":{{}}}}\n{text}'), ("commits", "v1\n{}")):
        (folder / name).mkdir(parents=True)
        if name == "offsets" or finished:
            (folder / name / "0").write_text(content)
    (folder / "metadata").write_text('{"id":"86f1b4a9-7d4b-4ea9-8aa4-3ed7ad1c3e33"}')
    return folder


def numbers(world: World, stream: str, count: int) -> list[int]:
    """Put records into the first shard, and return their sequence numbers."""
    shard = world.shards(stream)[0]["HashKeyRange"]["StartingHashKey"]
    name = world.streams[stream]
    answers = [
        world.kinesis.put_record(StreamName=name, PartitionKey="k", ExplicitHashKey=shard, Data=b"x")
        for _ in range(count)
    ]
    return [int(answer["SequenceNumber"]) for answer in answers]


def said(world: Here, checkpoint: object, *more: str) -> dict[str, tuple[str, str, str]]:
    """The findings on the checkpoint, by subject: status, detail and fix."""
    found = world.run("doctor", "--checkpoint", checkpoint, "--json", *more)
    lines = {line["subject"]: (line["status"], line["detail"], line["fix"]) for line in found.data["findings"]}
    assert found.code == any(status == "failed" for status, _, _ in lines.values())
    return {name: line for name, line in lines.items() if name.startswith(("checkpoint", "streams of", "restart of"))}


def test_query_with_a_new_stream_continues(cli: Cli, tmp_path: Path) -> None:
    w = cli.world({"orders": 2, "clicks": 1})
    (number,) = numbers(w, "orders", 1)
    here = write(w, tmp_path / "c", {"orders": {FIRST: Position.after(number), SECOND: TRIM_HORIZON}})
    found = said(w, here)
    assert {name: status for name, (status, _, _) in found.items()} == dict.fromkeys(
        ("checkpoint", "restart of orders", "restart of clicks"), "passed"
    )
    assert found["checkpoint"][1] == f"{here}: micro-batch 0 is finished, and the next start continues after it"
    assert found["restart of orders"][1].startswith("goes on with 2 shards, read up to 20")
    assert found["restart of clicks"][1].startswith(
        "is new to the checkpoint: its shards (1) begin at 'newStreamPosition'"
    )


def test_unfinished_or_missing_checkpoint_is_reported(cli: Cli, tmp_path: Path) -> None:
    w = cli.world()
    here = write(w, tmp_path / "c", {"orders": {FIRST: TRIM_HORIZON}}, finished=False)
    status, detail, _ = said(w, here)["checkpoint"]
    assert status == "passed"
    assert "micro-batch 0 is not finished: the next start repeats it, from where the query began" in detail
    status, detail, fix = said(w, tmp_path / "nothing")["checkpoint"]
    assert (status, "checkpointLocation" in fix) == ("failed", True)
    assert detail.startswith("there is nothing at ")


def test_checkpoint_on_s3_is_read(cli: Cli, tmp_path: Path) -> None:
    w = cli.world()
    (number,) = numbers(w, "orders", 1)
    here = write(w, tmp_path / "c", {"orders": {FIRST: Position.after(number)}})
    s3 = w.aws.client("s3")
    s3.create_bucket(Bucket="checkpoints")
    for file in (file for file in here.rglob("*") if file.is_file()):
        s3.put_object(Bucket="checkpoints", Key=f"lake/{file.relative_to(here)}", Body=file.read_bytes())
    found = said(w, "s3a://checkpoints/lake/")
    assert found["restart of orders"][1].startswith("goes on with 1 shard, read up to 20")


def test_missing_renamed_and_replaced_streams_are_all_named(cli: Cli, tmp_path: Path) -> None:
    w = cli.world({"orders": 1, "clicks": 1, "visits": 1})
    here = write(w, tmp_path / "c", {name: {FIRST: TRIM_HORIZON} for name in ("orders", "clicks", "visits")})

    def change(streams: dict[str, Any]) -> None:
        del streams["orders"]
        streams["hits"] = streams.pop("clicks")
        for part in ("streamArn", "consumerArn"):
            streams["visits"][part] = streams["visits"][part].replace(":123456789012:", ":210987654321:")

    w.change(change)
    found = w.run("doctor", "--checkpoint", here, "--json").data["findings"]
    faults = {line["detail"]: line["fix"] for line in found if line["subject"] == "streams of the checkpoint"}
    for said, remedy in (
        ("names stream 'orders'", "Where a stream was renamed"),
        ("is called 'hits'", "Call it 'clicks' again"),
        (":210987654321:", "Give the new stream another"),
    ):
        assert [fix.startswith(remedy) for text, fix in faults.items() if said in text] == [True]
    assert len(faults) == 3
    # Nothing is said of their shards: a start ends before it lists them.
    assert not [line for line in found if line["subject"].startswith("restart of")]


def test_stream_that_was_created_again_fails(cli: Cli, tmp_path: Path) -> None:
    w = cli.world()
    here = write(w, tmp_path / "c", {"orders": {FIRST: TRIM_HORIZON}})
    arn = w.consumers["orders"].partition("/consumer/")[0]
    row = replace(moved(Lease(f"orders:{FIRST}"), Position.after(7)), stream=StreamIdentity(arn, 1_600_000_000))
    w.rows(row)
    status, detail, fix = said(w, here)["restart of orders"]
    assert status == "failed"
    assert f"checkpoint orders:{FIRST} is from another stream: {arn}, created 2020-09-13T12:26:40+00:00" in detail
    assert "start the query with a new one, at TRIM_HORIZON" in fix


def test_records_lost_to_retention_fail_with_the_option(cli: Cli, tmp_path: Path) -> None:
    w = cli.world({"orders": 3})
    for shard in w.aws.kinesis.stream({"StreamName": w.streams["orders"]}).shards.values():
        shard.numbering = Numbering(shard.index, round(time.time()) - 40 * 3600)  # older than the checkpoint
    second, third = (f"shardId-00000000000{number}" for number in (1, 2))
    thirty_hours_ago, now = (Position.at_timestamp(round((time.time() - age) * 1000)) for age in (30 * 3600, 0))
    positions = {FIRST: thirty_hours_ago, second: now, third: thirty_hours_ago}
    here = write(w, tmp_path / "c", {"orders": positions})
    status, detail, fix = said(w, here)["restart of orders"]
    assert status == "failed"
    assert detail.startswith("the next start fails for 2 shards; ")
    assert f"shard {FIRST} was read up to {thirty_hours_ago} only" in detail
    value = json.loads(fix.partition(" with the value ")[2])
    assert value == {"orders": {FIRST: str(thirty_hours_ago), third: str(thirty_hours_ago)}}
    accepted = SourceOptions.parse({"manifest": "m.json", "acceptDataLoss": json.dumps(value)}).accepted_losses
    assert set(accepted) == {ShardKey("orders", FIRST), ShardKey("orders", third)}


def test_checkpoint_behind_the_leases_is_reported(cli: Cli, tmp_path: Path) -> None:
    w = cli.world()
    first, second, third = numbers(w, "orders", 3)
    here = write(w, tmp_path / "c", {"orders": {FIRST: Position.after(second)}})
    for number, status in ((first, "passed"), (second, "passed"), (third, "unknown")):
        w.rows(moved(Lease(f"orders:{FIRST}"), Position.after(number)))
        found = said(w, here)["restart of orders"]
        assert found[0] == status, found
    assert f"ahead of the checkpoint in 1 of 1 shards ({FIRST} is at AFTER:{third}" in found[1]
    assert "If it is from a backup, give the query a new output directory" in found[2]


@pytest.mark.parametrize(("moves", "status"), [(11, "unknown"), (12, "passed")])
def test_checkpoint_behind_its_mark_is_reported(cli: Cli, tmp_path: Path, moves: int, status: str) -> None:
    w = cli.world({"orders": 1, "clicks": 1})
    first, further = numbers(w, "orders", 2)
    positions = {"orders": {FIRST: Position.after(first)}, "clicks": {FIRST: TRIM_HORIZON}}
    here = write(w, tmp_path / "c", positions, mark=Mark("7c1f", moves))
    run_row = Lease(run_key("clicks"), checkpoint=None, marks=(CheckpointMark(Mark("7c1f", 12), 1_790_000_000_000),))
    w.rows(run_row, moved(Lease(f"orders:{FIRST}"), Position.after(further)))
    found = said(w, here)
    assert found["checkpoint"][0] == status
    assert {found["restart of orders"][0], found["restart of clicks"][0]} == {"passed"}, "the rows are another query's"
    if status == "unknown":
        assert "this checkpoint had been further by 1 micro-batch, at 2026-09-21 14:13:20 UTC" in found["checkpoint"][1]
        assert "(option asyncProgressTrackingEnabled)" in found["checkpoint"][1]
        assert "or give the query a new output directory" in found["checkpoint"][2]


def test_stream_selects_one_of_two_sources(cli: Cli, tmp_path: Path) -> None:
    w = cli.world({"orders": 1, "clicks": 1})
    here = write(w, tmp_path / "c", {"orders": {FIRST: TRIM_HORIZON}})
    log = here / "offsets" / "0"
    other = Offset({ShardKey("clicks", FIRST): TRIM_HORIZON}).to_json()
    log.write_text(f"{log.read_text()}\n{other}")
    assert "2 kinesis-efo sources, which read orders; clicks" in said(w, here)["checkpoint"][1]
    found = said(w, here, "--stream", "clicks")
    assert found["restart of clicks"][0] == "passed"
    assert "restart of orders" not in found
    log.write_text('v1\n{}\n{"orders":{"0":12}}')
    status, detail, _ = said(w, here)["checkpoint"]
    assert (status, "without a kinesis-efo source" in detail) == ("failed", True)
