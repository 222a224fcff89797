"""``kinesis-efo local``: runs the local AWS as a process, and declares an application in it. Needs the extra ``local``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from errno import EADDRINUSE
from pathlib import Path

import typer
from botocore.exceptions import BotoCoreError, ClientError

from kinesis_efo.errors import ConfigurationError
from kinesis_efo_local import DataError, LocalAws, declare
from kinesis_efo_tools.cli import local_process, output
from kinesis_efo_tools.cli.commands.local import Serve, Stop
from kinesis_efo_tools.cli.ending import EndRequest, SignalWaiter
from kinesis_efo_tools.cli.local_options import Declaration, merged, parse_settings, wanted, write_manifest
from kinesis_efo_tools.cli.local_process import ChildFailed, Ready

TLS_URL = "KINESIS_EFO_LOCAL_TLS_URL"
"""Environment variable with the URL of the TLS port. It is for the user; SDKs do not read it."""


def serve(given: Serve) -> None:
    pairs = list(given.setting or [])
    if given.max_concurrent_streams is not None:
        pairs.append(f"max_concurrent_streams={given.max_concurrent_streams}")
    asked = wanted(given.stream or [], given.application, given.manifest, given.manifest_out)
    settings = merged(asked, parse_settings(pairs), given.region)
    say: Callable[[str], None] = (lambda _: None) if given.env else output.remark
    if given.detach:
        options: dict[str, Sequence[object]] = {
            "host": [given.host],
            "port": [given.port],
            "tls-port": [] if given.tls_port is None else [given.tls_port],
            "region": [settings.region],
            "stream": given.stream or [],
            "application": [] if given.application is None else [given.application],
            "manifest": [] if given.manifest is None else [given.manifest],
            "manifest-out": [] if given.manifest_out is None else [given.manifest_out],
            "data-dir": [] if given.data_dir is None else [given.data_dir],
            "ready-file": given.ready_file or [],
            "set": pairs,
        }
        _detach(options, asked, say)
        return
    aws = LocalAws(
        settings=settings, host=given.host, port=given.port, tls_port=given.tls_port, data_dir=given.data_dir
    )
    end = SignalWaiter()
    with suppress(EndRequest), ExitStack() as stack:
        try:
            aws.start()
        except DataError as error:
            raise ConfigurationError(f"local cannot start: {error}") from None
        except OSError as error:
            ports = str(given.port) if given.tls_port is None else f"{given.port} and {given.tls_port}"
            why = str(error.strerror or error).partition(" (while attempting")[0]  # the rest repeats the address
            failed = f"local cannot listen on {given.host}:{ports}: {why}; choose another --port, --tls-port or --host"
            if error.errno == EADDRINUSE:
                # If a local AWS already uses the port, the user may want to use that one: show its environment variables.
                for each in local_process.running(local_process.state_directory()).values():
                    if each.port == given.port:
                        failed += f"; or `kinesis-efo local stop --port {each.port}`, or use what runs there:"
                        raise ConfigurationError.of_lines(failed, f"  export {' '.join(each.assignments)}") from None
                failed += " (--port 0: any free port); or end what listens there, perhaps `kinesis-efo local` in another shell"
            raise ConfigurationError(failed) from None
        stack.callback(_stop, aws)
        tls = {} if given.tls_port is None else {TLS_URL: aws.tls_endpoint_url}
        with end.at_once():
            declared = _declare(aws, asked) if asked else None
        ready = Ready.of_this_process(
            aws.endpoint_url, {**aws.environment, **tls}, declared, asked.names if asked else []
        )
        _show(ready, asked, say)
        for path in given.ready_file or []:
            stack.callback(path.unlink, missing_ok=True)
            ready.write(path)
        end.wait()


def stop(given: Stop) -> None:
    directory = local_process.state_directory()
    found = local_process.running(directory)
    chosen = {path: ready for path, ready in found.items() if given.port in (None, ready.port)}
    if not chosen:
        where = "" if given.port is None else f" on port {given.port}"
        remedy = f"choose from {_listed(found.values())}" if found else "press Ctrl-C in the shell where one runs"
        raise ConfigurationError(
            f"no local AWS runs in the background{where} (looked into {directory}, which XDG_STATE_HOME and HOME decide on); {remedy}"
        )
    if len(chosen) > 1 and not given.every:
        raise ConfigurationError(
            f"several local AWS run in the background; choose one with --port from {_listed(chosen.values())}, or end all with --all"
        )
    for path, ready in chosen.items():
        local_process.stop(path, ready)
        typer.echo(f"the local AWS at {ready.endpointUrl} has ended")


def _listed(running: Iterable[Ready]) -> str:
    """List the ports of local AWS processes, each with its declared streams, such as "4566 (orders, flights), 4567"."""
    return ", ".join(str(each.port) + (f" ({', '.join(each.streams)})" if each.streams else "") for each in running)


def _detach(options: Mapping[str, Sequence[object]], asked: Declaration | None, say: Callable[[str], None]) -> None:
    """Start the local AWS in the background, and print how to stop it."""
    arguments = [f"--{name}={value}" for name, values in options.items() for value in values]
    try:
        ready, log = local_process.start(arguments, local_process.state_directory())
    except ChildFailed as failed:
        for line in failed.said.splitlines():
            output.remark(line)
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


def _declare(aws: LocalAws, asked: Declaration) -> Path:
    """Declare the application in the local AWS. Returns the path of its manifest.

    Raises ConfigurationError if the local AWS rejects a request, or the manifest cannot be written.
    """
    try:
        return write_manifest(asked, declare(aws, asked.application))
    except (ClientError, BotoCoreError, TimeoutError) as error:
        raise ConfigurationError(f"local cannot declare {', '.join(asked.names)}: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"the manifest {asked.manifest} cannot be written: {error}") from None


def _show(ready: Ready, asked: Declaration | None, say: Callable[[str], None]) -> None:
    """Print `export` lines for a shell on stdout, and the next steps."""
    # With these variables, SDKs use the port without TLS.
    typer.echo("\n".join(f"export {each}" for each in ready.assignments))
    sys.stdout.flush()
    if ready.manifest is None or asked is None:
        return
    if asked.rewritten(Path(ready.manifest)):
        say(
            f"the local AWS cannot have the ARNs of {asked.given}: they are of another region, or of several accounts; "
            f"{ready.manifest} has those of the local AWS"
        )
    first = ready.streams[0]
    say(f"declared {', '.join(ready.streams)}; manifest {ready.manifest}")
    say("next, in another shell:")
    say(f"  export {' '.join(ready.assignments)}")
    say(f'  echo \'{{"hello": "world"}}\' | kinesis-efo put -s {first}')
    say("  kinesis-efo doctor")
