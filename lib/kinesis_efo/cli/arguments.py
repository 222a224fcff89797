"""Options that commands share, and what they mean together: which application, and how AWS is reached.

Relies on the manifest and on the library's own validation of options.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from kinesis_efo.aws import SyncClients
from kinesis_efo.cli.completion import manifest_files, stream_names
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.manifest import Manifest, load_manifest
from kinesis_efo.options import AwsSettings

MANIFEST_VARIABLE = "KINESIS_EFO_MANIFEST"
"""Environment variable that stands in for `--manifest`."""

ManifestOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--manifest",
        "-m",
        envvar=MANIFEST_VARIABLE,
        metavar="LOCATION",
        help="The application's manifest: a path, ssm:///name or s3://bucket/key.",
        autocompletion=manifest_files,
    ),
]
StreamsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        "-s",
        metavar="NAME",
        help="Only this stream of the manifest; may be repeated.",
        autocompletion=stream_names,
    ),
]
RegionOption: TypeAlias = Annotated[str | None, typer.Option("--region", help="AWS region; the manifest's by default.")]
RoleOption: TypeAlias = Annotated[
    str | None, typer.Option("--role-arn", help="Role to assume, for example the job's own.")
]
ExternalIdOption: TypeAlias = Annotated[str | None, typer.Option("--external-id", help="Goes with --role-arn.")]
EndpointOption: TypeAlias = Annotated[
    str | None, typer.Option("--endpoint-url", help="One endpoint for every AWS service, as AWS_ENDPOINT_URL.")
]


def aws_settings(
    region: str | None, role_arn: str | None, external_id: str | None, endpoint_url: str | None
) -> AwsSettings:
    """How AWS is reached, from the command line.

    Raises:
        ConfigurationError: The options contradict each other.
    """
    if external_id and not role_arn:
        raise ConfigurationError("--external-id goes with --role-arn, which is missing")
    return AwsSettings(region=region, endpoint_url=endpoint_url, role_arn=role_arn, external_id=external_id)


def load(location: str, aws: AwsSettings, streams: list[str] | None = None) -> Manifest:
    """The manifest, with the streams that were asked for.

    Raises:
        ManifestError: It cannot be loaded or is not valid, or lacks a stream.
    """
    return load_manifest(location, SyncClients(aws)).select(streams)
