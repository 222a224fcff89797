"""Options that commands share: the application's manifest, streams and shards, and how to reach AWS."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from kinesis_efo.errors import ManifestError, UsageError
from kinesis_efo.manifest import Manifest, load_manifest, parse_manifest
from kinesis_efo.options import AwsSettings
from kinesis_efo.units import parse_duration
from kinesis_efo_tools.cli import times
from kinesis_efo_tools.cli.declaring import Group

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
"""The AWS SDK's environment variable for `--endpoint-url`."""

_LOAD_SECONDS: Final = 30.0
"""Timeout in seconds for loading a manifest. It limits the total time, even if the response keeps arriving slowly."""

MANIFEST_VARIABLE = "KINESIS_EFO_MANIFEST"
"""Environment variable for `--manifest`."""


def manifest_files(incomplete: str) -> list[str]:
    """Complete a manifest's location: suggest directories, JSON files and the schemes of remote locations. Does not call AWS."""
    schemes = [scheme for scheme in ("ssm:///", "s3://") if scheme.startswith(incomplete)]
    folder = Path(incomplete or ".") if incomplete.endswith("/") or not incomplete else Path(incomplete).parent
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return schemes
    names = [f"{path}/" if path.is_dir() else str(path) for path in found if path.is_dir() or path.suffix == ".json"]
    return schemes + [name for name in names if name.startswith(incomplete)]


def stream_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a stream's name from the manifest on the command line, if the manifest is a local file."""
    location = ctx.params.get("manifest")
    if not isinstance(location, str) or "://" in location:
        return []
    try:
        manifest = parse_manifest(Path(location).read_bytes(), location)
    except (OSError, ManifestError):
        return []
    return [name for name in sorted(manifest.streams) if name.startswith(incomplete)]


def manifest_option(text: str) -> Any:
    """Create a `--manifest` option with the help `text`."""
    return typer.Option(
        "--manifest", "-m",
        envvar=MANIFEST_VARIABLE, metavar="LOCATION", help=text, autocompletion=manifest_files,
    )  # fmt: skip


def _stream_option(text: str) -> Any:
    return typer.Option("--stream", "-s", metavar="NAME", help=text, autocompletion=stream_names)


ManifestOption: TypeAlias = Annotated[
    str, manifest_option("The application's manifest: a path, ssm:///name or s3://bucket/key.")
]
OptionalManifestOption: TypeAlias = Annotated[
    str | None, manifest_option("A manifest; --stream may then be one of its names.")
]
StreamOption: TypeAlias = Annotated[
    str, _stream_option("The stream: its name in the manifest, its name in Kinesis, or its ARN.")
]
StreamsOption: TypeAlias = Annotated[
    list[str] | None, _stream_option("Only this stream of the manifest; may be repeated.")
]


def shard_ids(texts: list[str] | None) -> list[str] | None:
    """Expand shard numbers to shard ids.

    >>> shard_ids(["3", "shardId-000000000004"])
    ['shardId-000000000003', 'shardId-000000000004']
    """
    return texts and [f"shardId-{int(text):012}" if text.isdecimal() else text for text in texts]


ShardsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shard",
        metavar="ID",
        callback=shard_ids,
        help="Only this shard, such as 3 for shardId-000000000003; may be repeated.",
    ),
]

TimeoutOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--lease-timeout",
        metavar="DURATION",
        help="A worker that has not renewed a lease for this long is dead. The query's leaseTimeout, or KCL's failover time.",
    ),
]


def _aws_option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="AWS")


def aws_settings(
    *,
    profile: Annotated[str | None, _aws_option("--profile", "NAME", "Profile of ~/.aws, like AWS_PROFILE.")] = None,
    region: Annotated[str | None, _aws_option("--region", "REGION", "AWS region; the manifest's by default.")] = None,
    role_arn: Annotated[str | None, _aws_option("--role-arn", "ARN", "Role to assume, such as the job's own.")] = None,
    external_id: Annotated[str | None, _aws_option("--external-id", "ID", "External ID for --role-arn.")] = None,
    endpoint_url: Annotated[
        str | None,
        _aws_option("--endpoint-url", "URL", "One endpoint for every AWS service, like AWS_ENDPOINT_URL."),
    ] = None,
) -> AwsSettings:
    """Return the AWS settings that the options describe. `profile` also sets AWS_PROFILE, for the whole process.

    Raises UsageError if the options contradict each other or an option is not valid.
    """
    if external_id and not role_arn:
        raise UsageError("--external-id goes with --role-arn: give both")
    for name, url in (("--endpoint-url", endpoint_url), (ENDPOINT_VARIABLE, os.environ.get(ENDPOINT_VARIABLE))):
        if url and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
            raise UsageError(f"{name} must be a URL such as http://127.0.0.1:4566; got {url!r}")
    if region and not re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", region):
        raise UsageError(f"--region must be a region such as eu-west-1; got {region!r}")
    if profile:
        # As in the AWS CLI, an explicit profile overrides keys in the environment.
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            os.environ.pop(name, None)
        os.environ["AWS_PROFILE"] = profile
    return AwsSettings(region=region, endpoint_url=endpoint_url, role_arn=role_arn, external_id=external_id)


Aws: TypeAlias = Annotated[AwsSettings, Group(aws_settings)]


def seconds(option: str, text: str) -> float:
    """Parse the value of an option, such as `10s`, into seconds.

    Raises UsageError if it is not a duration, or has no unit.
    """
    times.check_unit(option, text)
    try:
        return parse_duration(text) / 1000
    except ValueError:
        raise UsageError(f"{option} must be a duration such as 10s; got {text!r}") from None


def whole_seconds(name: str, text: str, default: str) -> Any:
    """Create an option for a duration. A number without a unit means seconds, as in versions up to 0.2, and prints a warning."""

    def parse(value: int | str) -> int:
        if isinstance(value, str) and value.isdecimal() and value != "0":
            typer.echo(f"kinesis-efo: {name} {value} is {name} {value}s now", err=True)
            value = f"{value}s"
        return value if isinstance(value, int) else round(seconds(name, value))

    return typer.Option(name, parser=parse, metavar="DURATION", help=text, show_default=default)


def load(
    location: str, aws: AwsSettings, streams: list[str] | None = None, *, seconds: float = _LOAD_SECONDS
) -> Manifest:
    """Load a manifest within `seconds`, and select the given streams (None: all).

    Raises ManifestError if the manifest cannot be loaded or is not valid, UsageError if it lacks one of the streams.
    """
    from kinesis_efo.aws import COMMAND_SECONDS, INTERACTIVE_CONFIG, SyncClients
    from kinesis_efo.aws_errors import describe, is_foreign
    from kinesis_efo.clock import in_thread

    try:
        clients = SyncClients(aws, config=INTERACTIVE_CONFIG, seconds=COMMAND_SECONDS)
        loaded = in_thread(load_manifest, location, clients.client)
        found = loaded.result(seconds).in_region(aws.region)
    except TimeoutError:
        raise ManifestError(
            f"manifest {location}: not loaded within {seconds:.0f} s; check the endpoint, the proxy and the network"
        ) from None
    except ManifestError as error:
        cause = error.__cause__
        if isinstance(cause, Exception) and is_foreign(cause):
            raise ManifestError(f"manifest {location} cannot be loaded: {describe(cause)}") from cause
        raise
    if unknown := [name for name in streams or () if name not in found.streams]:
        raise UsageError(
            f"--stream names {', '.join(map(repr, unknown))}, but the manifest {found.source} has "
            f"{', '.join(map(repr, sorted(found.streams)))}"
        )
    return found.select(streams)
