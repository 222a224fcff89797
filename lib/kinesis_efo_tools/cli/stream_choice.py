"""Finds the stream that `--stream` names: by its name in a manifest, its name in Kinesis, or its ARN."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from kinesis_efo.aws import COMMAND_SECONDS, INTERACTIVE_CONFIG, SyncClients
from kinesis_efo.aws_errors import CALL_ERRORS, Cause, cause_of, describe
from kinesis_efo.errors import StreamError, StreamNotFoundError, UsageError
from kinesis_efo.manifest import Manifest, StreamRef, arn_faults
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli import arguments


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen stream, and how to read it.

    `ref` includes a consumer only if the command line names one. `application` is the manifest's application if it owns that consumer.
    `source` describes, for error messages, where the ARN came from.
    """

    ref: StreamRef
    region: str
    source: str
    application: str | None = None


def choose(aws: AwsSettings, stream: str, location: str | None, consumer_arn: str | None = None) -> Choice:
    """Find the stream that the command line names.

    `stream` is a logical name in the manifest at `location`, a name in Kinesis, or an ARN. Raises UsageError if the names, ARNs and region
    contradict each other, StreamError if there is no such stream or its ARN cannot be looked up.
    """
    manifest = arguments.load(location, aws) if location is not None else None
    known = _known(manifest, stream) if manifest else None
    if known is not None and manifest is not None:
        choice = Choice(replace(known, consumer_arn=None), manifest.region, manifest.source)
    else:
        arn = stream if stream.startswith("arn:") else _look_up(aws, stream, manifest)
        region = arn.split(":")[3] if arn.count(":") >= 5 else ""
        ref = StreamRef(arn.rpartition("/")[2], arn.rpartition("/")[2], arn, None)
        choice = Choice(ref, region, "the command line")
    if choice.region and aws.region not in (None, choice.region):
        raise UsageError(
            f"--region is {aws.region!r}, but stream {choice.ref.stream_arn} is in {choice.region!r}; omit it"
        )
    if consumer_arn is not None:
        choice = replace(
            choice, ref=replace(choice.ref, consumer_arn=consumer_arn), application=_owner(manifest, consumer_arn)
        )
    if faults := arn_faults(choice.ref, ""):
        raise UsageError("; ".join(faults))
    return choice


def _known(manifest: Manifest, stream: str) -> StreamRef | None:
    matches: list[Callable[[StreamRef], bool]] = [
        lambda ref: ref.name == stream,
        lambda ref: stream in (ref.stream_name, ref.stream_arn),
    ]
    found = (ref for fits in matches for ref in manifest.streams.values() if fits(ref))
    return next(found, None)


def _look_up(aws: AwsSettings, name: str, manifest: Manifest | None) -> str:
    region = manifest.region if manifest else None
    try:
        with closing(SyncClients(aws, region, INTERACTIVE_CONFIG, seconds=COMMAND_SECONDS).client("kinesis")) as client:
            return str(client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"])
    except CALL_ERRORS as error:
        if cause_of(error) is Cause.MISSING:
            known = f"; the manifest {manifest.source} has {', '.join(sorted(manifest.streams))}" if manifest else ""
            raise StreamNotFoundError(f"there is no stream {name!r} in this account and region{known}") from error
        raise StreamError(
            f"stream {name!r} cannot be looked up: {describe(error)}. Use its ARN if kinesis:DescribeStreamSummary is not allowed"
        ) from error


def _owner(manifest: Manifest | None, consumer_arn: str) -> str | None:
    if manifest is None:
        return None
    owned = any(ref.consumer_arn == consumer_arn for ref in manifest.streams.values())
    return manifest.application if owned else None
