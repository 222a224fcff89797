"""``kinesis-efo local``: runs the local AWS as a process, and declares an application in it. Needs the extra ``local``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import typer
from botocore.exceptions import BotoCoreError, ClientError

from kinesis_efo.cli import local_process, output
from kinesis_efo.cli.ending import Asked, End
from kinesis_efo.cli.local_options import Wanted, merged, parse_settings, wanted, write_manifest
from kinesis_efo.cli.local_process import ChildFailed, Ready
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.local import DataError, LocalAws, declare

TLS_URL = "KINESIS_EFO_LOCAL_TLS_URL"
"""Names the TLS port for whoever wants it; no SDK reads it."""


def serve(
    *,
    host: str,
    port: int,
    tls_port: int | None,
    region: str | None,
    stream: list[str] | None,
    app: str | None,
    manifest: Path | None,
    manifest_out: Path | None,
    data_dir: Path | None,
    ready_file: list[Path] | None,
    detach: bool,
    env: bool,
    max_concurrent_streams: int | None,
    setting: list[str] | None,
) -> None:
    """Carry out the command, with its options as `commands.local` declares them."""
    pairs = list(setting or [])
    if max_concurrent_streams is not None:
        pairs.append(f"max_concurrent_streams={max_concurrent_streams}")
    asked = wanted(stream or [], app, manifest, manifest_out)
    settings = merged(asked, parse_settings(pairs), region)
    say: Callable[[str], None] = (lambda _: None) if env else output.remark
    if detach:
        options: dict[str, Sequence[object]] = {
            "host": [host],
            "port": [port],
            "tls-port": [] if tls_port is None else [tls_port],
            "region": [settings.region],
            "stream": stream or [],
            "app": [] if app is None else [app],
            "manifest": [] if manifest is None else [manifest],
            "manifest-out": [] if manifest_out is None else [manifest_out],
            "data-dir": [] if data_dir is None else [data_dir],
            "ready-file": ready_file or [],
            "set": pairs,
        }
        _detach(options, asked, say)
        return
    aws = LocalAws(settings=settings, host=host, port=port, tls_port=tls_port, data_dir=data_dir)
    end = End()
    with suppress(Asked), ExitStack() as stack:
        try:
            aws.start()
        except DataError as error:
            raise ConfigurationError(f"local cannot start: {error}") from None
        except OSError as error:
            ports = str(port) if tls_port is None else f"{port} and {tls_port}"
            flags = "--port" if tls_port is None else "--port, --tls-port"
            raise ConfigurationError(
                f"local cannot listen on {host}:{ports}: {error.strerror or error}; choose another {flags} or --host"
            ) from None
        stack.callback(_stop, aws)
        tls = {} if tls_port is None else {TLS_URL: aws.tls_endpoint_url}
        with end.at_once():
            declared = _declare(aws, asked) if asked else None
        ready = Ready.of_this_process(
            aws.endpoint_url, {**aws.environment, **tls}, declared, asked.names if asked else []
        )
        _show(ready, asked, say)
        for path in ready_file or []:
            stack.callback(path.unlink, missing_ok=True)
            ready.write(path)
        end.wait()


def stop(*, port: int | None, every: bool) -> None:
    """Carry out the command, with its options as `commands.local` declares them."""
    found = local_process.running(local_process.state_directory())
    chosen = {path: ready for path, ready in found.items() if port in (None, ready.port)}
    if not chosen:
        where = "" if port is None else f" on port {port}"
        raise ConfigurationError(
            f"no local AWS runs in the background{where}; start one with `kinesis-efo local --detach`"
        )
    if len(chosen) > 1 and not every:
        ports = ", ".join(str(ready.port) for ready in chosen.values())
        raise ConfigurationError(
            f"several local AWS run in the background: name one with --port ({ports}), or say --all"
        )
    for path, ready in chosen.items():
        local_process.stop(path, ready)
        typer.echo(f"the local AWS at {ready.endpointUrl} has ended")


def _detach(options: Mapping[str, Sequence[object]], asked: Wanted | None, say: Callable[[str], None]) -> None:
    """Serve in the background, and say how to end it."""
    arguments = [f"--{name}={value}" for name, values in options.items() for value in values]
    try:
        ready, log = local_process.start(arguments, local_process.state_directory())
    except ChildFailed as failed:
        output.remark(failed.said)
        raise typer.Exit(failed.code if failed.code > 0 else output.ExitCode.FAILED) from None
    except KeyboardInterrupt:
        raise output.stop(output.ExitCode.INTERRUPTED) from None
    _show(ready, asked, say)
    say(f"it runs in the background as process {ready.pid}, with its log in {log}")
    say(f"to end it: kinesis-efo local stop --port {ready.port}")


def _stop(aws: LocalAws) -> None:
    try:
        aws.stop()
    except DataError as error:
        raise ConfigurationError(f"local has ended, but {error}") from None


def _declare(aws: LocalAws, asked: Wanted) -> Path:
    """Declare the application, and return the path of its manifest.

    Raises:
        ConfigurationError: The local AWS refuses it.
    """
    try:
        return write_manifest(asked, declare(aws, asked.application))
    except (ClientError, BotoCoreError, TimeoutError) as error:
        raise ConfigurationError(f"local cannot declare {', '.join(asked.names)}: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"the manifest {asked.manifest} cannot be written: {error}") from None


def _show(ready: Ready, asked: Wanted | None, say: Callable[[str], None]) -> None:
    """Print lines that a shell can evaluate, and say what to do next."""
    # SDKs stay with the port in the clear unless they are told the other one.
    typer.echo("\n".join(f"export {each}" for each in ready.assignments))
    sys.stdout.flush()
    if ready.manifest is None or asked is None:
        return
    if asked.rewritten(Path(ready.manifest)):
        say(
            f"the local AWS cannot have the ARNs of {asked.given}: they are of another partition, or of several accounts; "
            f"{ready.manifest} has those of the local AWS"
        )
    first = ready.streams[0]
    say(f"declared {', '.join(ready.streams)}; manifest {ready.manifest}")
    say("next, in another shell:")
    say(f"  export {' '.join(ready.assignments)}")
    say(f'  echo \'{{"hello": "world"}}\' | kinesis-efo put -s {first}')
    say("  kinesis-efo doctor")
