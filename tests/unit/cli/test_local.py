"""`kinesis-efo local` where a port is in use, and `local stop` with several local AWS."""

import socket
from pathlib import Path

import click
import pytest
import typer

from kinesis_efo.errors import ConfigurationError
from kinesis_efo_tools.cli.commands.local import Serve, Stop
from kinesis_efo_tools.cli.local import serve, stop
from kinesis_efo_tools.cli.local_process import Ready
from tests.support.messages import raises


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "kinesis-efo"


def in_background(directory: Path, port: int, *streams: str) -> None:
    Ready.of_this_process(f"http://127.0.0.1:{port}", {"AWS_REGION": "us-east-1"}, None, streams).write(
        directory / f"local-{port}.json"
    )


def serving(port: int) -> Serve:
    return Serve(context=typer.Context(click.Command("local")), port=port)


def test_port_in_use_names_the_ways_out(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with raises(
            ConfigurationError,
            f"local cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port, --tls-port or --host "
            "(--port 0: any free port); or end what listens there, perhaps `kinesis-efo local` in another shell",
        ):
            serve(serving(port))
        in_background(directory, port)
        with raises(
            ConfigurationError,
            f"local cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port, --tls-port or --host; "
            f"or `kinesis-efo local stop --port {port}`, or use what runs there:\n  export AWS_REGION=us-east-1",
        ):
            serve(serving(port))


def test_stop_lists_what_runs(directory: Path) -> None:
    with raises(
        ConfigurationError,
        f"no local AWS runs in the background (looked into {directory}, which XDG_STATE_HOME and HOME decide on); "
        "press Ctrl-C in the shell where one runs",
    ):
        stop(Stop())
    in_background(directory, 4566, "orders", "flights")
    in_background(directory, 4567)
    with raises(
        ConfigurationError,
        "several local AWS run in the background; choose one with --port from 4566 (orders, flights), 4567, or end all with --all",
    ):
        stop(Stop())
    with raises(
        ConfigurationError,
        f"no local AWS runs in the background on port 4568 (looked into {directory}, which XDG_STATE_HOME and HOME decide on); "
        "choose from 4566 (orders, flights), 4567",
    ):
        stop(Stop(port=4568))
