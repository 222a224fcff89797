"""Names that others wrote reach the terminal without commands to it, forged lines or reversed text."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kinesis_efo.errors import KinesisEfoError, ManifestError, visible
from kinesis_efo.fetcher.status import QueryStatus, RunStatus, ShardStatus
from kinesis_efo.leases.row import Lease
from kinesis_efo.manifest import parse_manifest
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.app import COMMANDS, load
from kinesis_efo_tools.cli.failing import CommandExit, fail
from kinesis_efo_tools.cli.top.terminal import show
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.pulse import Pulse
from kinesis_efo_tools.operate.record_format import Format, TailRecord
from tests.integration.cli.conftest import Cli
from tests.support.world import World

CONTROLS = "\x1b]0;owned\x07\x1b[2J\x9b31m\x85\x7f\u202e\u2066\u2028\r\nFORGED line\n"
HOSTILE = CONTROLS + "y" * 30_000


def assert_harmless(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable(), repr(line[:200])
        assert not line.startswith("FORGED")
        assert len(line) < 12_000


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[Any]:
    below = getattr(command, "commands", None)
    if below is None:
        yield pytest.param(command, path, id=" ".join(path))
        return
    for name, each in below.items():
        yield from _leaves(each, (*path, name))


LEAVES = [leaf for name, entry in COMMANDS.items() for leaf in _leaves(load(name, entry), (name,))]


@pytest.mark.parametrize(("command", "path"), LEAVES)
def test_every_command_shows_hostile_arguments_harmlessly(
    cli: Cli, command: Any, path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    manifest = tmp_path / "m\x1b[2J\u202e.json"
    document = {"schemaVersion": 1, "application": HOSTILE, "streams": {HOSTILE: {"streamName": HOSTILE}}}
    manifest.write_text(json.dumps(document))
    options: list[str] = []
    for each in command.params:
        if each.name == "manifest" and path != ("quickstart",):
            options += ["--manifest", str(manifest)]
        elif each.required or each.name == "stream":
            options += [HOSTILE] if each.param_type_name == "argument" else [each.opts[0], HOSTILE]
    if not any(each == HOSTILE for each in options):
        options.append("--unknown")
    found = cli.run(*path, *options)
    assert found.code
    assert_harmless(found.out + found.err)


@pytest.fixture
def hostile(world: Callable[..., World]) -> World:
    """A lease table whose rows anyone with write access to it may have written."""
    here = world({"orders": 1})
    shard = here.shards()[0]["ShardId"]
    for key in ("#run:orders", f"orders:{shard}"):
        row = {"leaseKey": {"S": key}, "leaseCounter": {"N": "1"}, "checkpoint": {"S": "TRIM_HORIZON"}}
        row |= {name: {"S": HOSTILE} for name in ("leaseOwner", "endpoint", "fetcher", "status")}
        here.dynamodb.put_item(TableName=here.lease_table, Item=row)
    unreadable = {"leaseKey": {"S": f"orders:{HOSTILE[:900]}"}, "x": {"S": "x"}}
    here.dynamodb.put_item(TableName=here.lease_table, Item=unreadable)
    return here


@pytest.mark.parametrize(
    "command",
    [
        "lag --lease-timeout 1s",
        "lag --lease-timeout 1s --json",
        "leases list",
        "leases list --json",
        "leases release --dry-run --lease-timeout 1s",
        "leases reset --to LATEST --dry-run --lease-timeout 1s",
        "leases export",
        "doctor",
        "manifest check",
    ],
)
def test_hostile_rows_are_shown_harmlessly(cli: Cli, command: str, hostile: World) -> None:
    found = cli.run(*command.split(), "--manifest", hostile.manifest)
    assert_harmless(found.err)
    if "--json" in command:
        assert found.out.replace("\n", " ").isascii()
        assert found.out.replace("\n", " ").isprintable()
        assert json.dumps(HOSTILE)[1:-1] in json.dumps(found.data)
    else:
        assert_harmless(found.out)


def test_hostile_status_is_shown_harmlessly_by_top() -> None:
    status = RunStatus(
        1.0,
        [ShardStatus(HOSTILE, HOSTILE, "TRIM_HORIZON", 1, 1, 1.0, 1, HOSTILE)],
        1,
        0.1,
        [QueryStatus(each, [HOSTILE], HOSTILE, 1, HOSTILE, HOSTILE, name=HOSTILE) for each in (1, 2)],
    )
    pulse = Pulse()
    look = Observation(
        1.0, {HOSTILE: Lease(HOSTILE, owner=HOSTILE)}, pulse.add(status), 1.0, HOSTILE, ((1.0, HOSTILE),)
    )
    for width in (80, output.WIDE):
        console = Console(width=width, force_terminal=False, color_system=None)
        with console.capture() as captured:
            console.print(show(HOSTILE, look, width, 40))
        assert_harmless("\n".join(line.rstrip() for line in captured.get().split("\n")))


@pytest.mark.parametrize("how", [Format.JSON, Format.HEX])
def test_hostile_records_are_shown_harmlessly(how: Format) -> None:
    data = json.dumps({CONTROLS: "\U000e0001é"}, ensure_ascii=False).encode()
    shown = how.write(TailRecord(CONTROLS, CONTROLS, 0, CONTROLS, None, data)).decode()
    assert_harmless(shown)
    if how is Format.JSON:
        assert json.loads(shown)["data"] == {CONTROLS: "\U000e0001é"}
        assert "é" in shown


def test_raw_records_are_made_visible_on_a_terminal(cli: Cli) -> None:
    here = cli.world({"orders": 1})
    here.put([("key", CONTROLS.encode())])
    ours, theirs = pty.openpty()
    command = [
        *(sys.executable, "-c", "from kinesis_efo_tools.cli import main; main()"),
        *("tail", "--manifest", str(here.manifest), "--stream", "orders", "--from", "TRIM_HORIZON", "--limit", "1"),
    ]
    subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, check=True, timeout=60)
    assert "\\x1b[2J" in (shown := os.read(ours, 1 << 16).decode())
    assert "\x1b" not in shown
    os.close(ours), os.close(theirs)


@pytest.mark.parametrize("key", ["application", "environment", "region"])
def test_manifests_with_control_characters_are_refused(key: str) -> None:
    with pytest.raises(ManifestError, match=f"'{key}' has characters that are not printable"):
        parse_manifest(json.dumps({"schemaVersion": 1, key: CONTROLS, "streams": {}}), "m.json")


def test_remarks_and_failures_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    output.remark(CONTROLS)
    with pytest.raises(SystemExit):
        fail(CommandExit(output.ExitCode.REFUSED, CONTROLS.replace("\n", "")), as_json=False)
    assert_harmless(capsys.readouterr().err)


def test_errors_are_harmless_in_any_log() -> None:
    assert "\x1b" not in str(KinesisEfoError(HOSTILE))
    assert visible("plain é 日本") == "plain é 日本"
