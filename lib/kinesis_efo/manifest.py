"""Loads and validates the manifest: the document from which a query gets the ARNs of the deployed resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kinesis_efo.arns import CONSUMER_ARN, STREAM_ARN
from kinesis_efo.errors import ManifestError, OptionsError

if TYPE_CHECKING:
    from kinesis_efo.options import SourceOptions

SCHEMA_VERSION = 1
"""The only manifest version that this library supports."""

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamRef:
    """One stream that an application reads."""

    name: str  # The stream's logical name, its key in the manifest
    stream_name: str  # The stream's name in Kinesis
    stream_arn: str
    consumer_arn: str | None  # The registered consumer; None if the stream is read with GetRecords

    @property
    def polled(self) -> bool:
        """Whether the stream is read with GetRecords, without a consumer."""
        return self.consumer_arn is None

    @property
    def reader(self) -> str:
        """Text for messages that names the consumer, or the stream if it is polled."""
        return f"stream {self.stream_arn}" if self.polled else f"consumer {self.consumer_arn}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The resources of an application, all in one AWS region."""

    application: str  # The name of the application and of its consumers
    environment: str  # Name of the environment; empty if the options contain ARNs instead of a manifest
    region: str
    lease_table: str  # Name of the lease table; empty if the query does not use one
    streams: Mapping[str, StreamRef]  # The selected streams, by logical name
    source: str  # Where the manifest was loaded from, for messages
    stream_names: Mapping[str, str]  # Kinesis names of all streams of the application, by logical name

    @property
    def declared_by(self) -> str:
        """Where the resources are declared, for messages."""
        if not self.environment:  # there is no manifest: the options contain the ARNs
            return f"the deployment of the resources in {self.source}"
        return f"application {self.application!r} in environment {self.environment!r} (manifest {self.source})"

    def select(self, names: Sequence[str] | None) -> Manifest:
        """Return the manifest with only these streams, or with all if `names` is None or `*`. Raises ManifestError for unknown streams."""
        if names is None or tuple(names) == ("*",):
            return self
        unknown = [name for name in names if name not in self.streams]
        if unknown:
            raise ManifestError(
                f"kinesis-efo option 'streams' names {', '.join(map(repr, unknown))}, "
                f"but the manifest {self.source} has {', '.join(map(repr, sorted(self.streams)))}"
            )
        chosen = {name: self.streams[name] for name in names}
        return replace(self, streams=chosen)

    def check_choice(self) -> None:
        """Raise OptionsError if the manifest has several streams. Called for reads whose options do not select streams."""
        if len(self.streams) > 1 and self.environment:
            has = f"the manifest {self.source} has {', '.join(map(repr, sorted(self.streams)))}"
            raise OptionsError([f"kinesis-efo needs option 'streams': {has}; name those to read, or give * for all"])

    def in_region(self, region: str | None) -> Manifest:
        """Return this manifest. Raises ManifestError if `region` (the option) is set and is not the manifest's region."""
        if region not in (None, self.region):
            raise ManifestError(
                f"kinesis-efo option 'region' (on the command line, --region) is {region!r}, but the resources of "
                f"{'the manifest ' if self.environment else ''}{self.source} are in {self.region!r}; omit the option"
                + (
                    f". If only the manifest itself is in {region!r}, set AWS_REGION in its place"
                    if self.environment
                    else ""
                )
            )
        return self


def parse_manifest(text: str | bytes, source: str) -> Manifest:
    """Parse and validate the JSON text of a manifest. Unknown keys are ignored.

    Raises `ManifestError` listing all errors, such as missing keys or ARNs that contradict each other.
    """
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # Do not quote the text: if the manifest's location is wrong, the text may be a secret.
        raise ManifestError(f"manifest {source} is not valid JSON (truncated?): {error}") from None
    if not isinstance(data, dict):
        raise ManifestError(f"manifest {source} must be a JSON object; got {type(data).__name__}")
    version = data.get("schemaVersion")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise ManifestError(
            f"manifest {source} has schemaVersion {_kind(version)}; this version of kinesis-efo reads {SCHEMA_VERSION}. "
            "Deploy the infrastructure and run the job with the same release"
        )
    reader = _Reader(source)
    region = reader.text(data, "region")
    streams = {
        name: reader.stream(name, entry, region)
        for name, entry in sorted(reader.table(data, "streams").items())
        if isinstance(entry, dict) or reader.fault(f"'streams.{name}' must be an object; got {_kind(entry)}")
    }
    manifest = Manifest(
        application=reader.text(data, "application"),
        environment=reader.text(data, "environment"),
        region=region,
        lease_table=reader.lease_table(data),
        streams=streams,
        source=source,
        stream_names={name: ref.stream_name for name, ref in streams.items()},
    )
    if isinstance(data.get("streams"), dict) and not data["streams"]:
        reader.fault("'streams' is empty: the application consumes nothing")
    reader.finish()
    return manifest


def _kind(value: object) -> str:
    """Describe a JSON value for messages. Text is not quoted, because it may be a secret."""
    if not value or isinstance(value, bool | int | float):
        return repr(value)
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a text"


class _Reader:
    """Extracts values from a manifest document, and collects all errors to raise them together."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._faults: list[str] = []

    def fault(self, message: str) -> bool:
        self._faults.append(message)
        return False

    def text(self, data: Mapping[str, Any], path: str) -> str:
        key = path.rpartition(".")[2]
        value = data.get(key)
        if key not in data:
            self.fault(f"key '{path}' is missing")
        elif not isinstance(value, str) or not value:
            self.fault(f"'{path}' must be a text that is not empty; got {_kind(value)}")
        elif not value.isprintable():
            self.fault(f"'{path}' has characters that are not printable")
        return value if isinstance(value, str) else ""

    def table(self, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = data.get(key)
        if key not in data:
            self.fault(f"key '{key}' is missing")
        elif not isinstance(value, dict):
            self.fault(f"'{key}' must be an object; got {_kind(value)}")
        return value if isinstance(value, dict) else {}

    def lease_table(self, data: Mapping[str, Any]) -> str:
        # Also accept the table's name as a plain string, as printed by `manifest show --json`.
        given = data.get("leaseTable")
        if isinstance(given, str):
            return self.text(data, "leaseTable")
        return self.text(self.table(data, "leaseTable"), "leaseTable.name")

    def stream(self, name: str, entry: Mapping[str, Any], region: str) -> StreamRef:
        path = f"streams.{name}"
        before = len(self._faults)
        if not name.isprintable():
            self.fault(f"'{path}' has characters that are not printable")
        ref = StreamRef(
            name,
            self.text(entry, f"{path}.streamName"),
            self.text(entry, f"{path}.streamArn"),
            self.text(entry, f"{path}.consumerArn") if "consumerArn" in entry else None,
        )
        if len(self._faults) == before:
            for message in arn_faults(ref, region):
                self.fault(f"'{path}': {message}")
        return ref

    def finish(self) -> None:
        if self._faults:
            faults = list(dict.fromkeys(self._faults))
            # If the lease table is missing, do not also report that its name is missing.
            if "key 'leaseTable' is missing" in faults:
                faults.remove("key 'leaseTable.name' is missing")
            raise ManifestError(f"manifest {self._source}: " + "; ".join(faults))


def arn_faults(ref: StreamRef, region: str) -> list[str]:
    """Return the contradictions between a stream's name and ARNs, one sentence each."""
    faults = []
    stream = STREAM_ARN.fullmatch(ref.stream_arn)
    if not stream:
        faults.append(f"streamArn {ref.stream_arn!r} is not the ARN of a Kinesis stream")
    else:
        if region and stream["region"] != region:
            faults.append(
                f"streamArn {ref.stream_arn!r} is in region {stream['region']!r}, but the manifest's region is {region!r}: "
                "a consumer and its lease table live in the stream's region"
            )
        if stream["name"] != ref.stream_name:
            faults.append(f"streamArn {ref.stream_arn!r} does not belong to streamName {ref.stream_name!r}")
    if ref.consumer_arn is None:
        return faults
    consumer = CONSUMER_ARN.fullmatch(ref.consumer_arn)
    if not consumer:
        faults.append(
            f"consumerArn {ref.consumer_arn!r} is not the ARN of a stream consumer (.../consumer/<name>:<creation time>)"
        )
    elif stream and consumer["stream"] != ref.stream_arn:
        faults.append(
            f"consumerArn {ref.consumer_arn!r} is not a consumer of streamArn {ref.stream_arn!r}, but of {consumer['stream']!r}. "
            "Give a consumerArn that begins with this streamArn, or this consumer's stream as streamArn"
        )
    return faults


def load_manifest(location: str, client: Callable[[str], Any]) -> Manifest:
    """Load a manifest from a local path, `ssm:///name` or `s3://bucket/key`. `client` creates an AWS client. Raises `ManifestError`."""
    scheme, separator, rest = location.partition("://")
    try:
        if not separator:
            with Path(location).open("rb") as file:
                text: str | bytes = file.read(_MOST_BYTES + 1)
        elif scheme == "ssm":
            text = client("ssm").get_parameter(Name=rest, WithDecryption=True)["Parameter"]["Value"]
        elif scheme == "s3":
            bucket, _, key = rest.partition("/")
            if not bucket or not key:
                raise ManifestError(f"manifest {location} must be s3://bucket/key")
            text = client("s3").get_object(Bucket=bucket, Key=key)["Body"].read(_MOST_BYTES + 1)
        else:
            raise ManifestError(
                f"manifest {location}: unknown scheme {scheme!r}; give a path, ssm:///name or s3://bucket/key"
            )
    except ManifestError:
        raise
    except FileNotFoundError:
        raise ManifestError(f"manifest {location}: there is no such file ({Path(location).absolute()})") from None
    except OSError as error:
        raise ManifestError(f"manifest {location} cannot be read: {error}") from error
    except Exception as error:
        raise ManifestError(f"manifest {location} cannot be loaded: {_remedy(error, location)}") from error
    if len(text) > _MOST_BYTES:
        raise ManifestError(
            f"manifest {location} has more than {_MOST_BYTES >> 20} MiB, which no manifest has; give the right location"
        )
    return parse_manifest(text, location)


def _remedy(error: Exception, location: str) -> str:
    code = (getattr(error, "response", None) or {}).get("Error", {}).get("Code", "")
    if code in ("ParameterNotFound", "NoSuchKey", "NoSuchBucket"):
        return f"{code}. Was the environment deployed (`cdktf deploy`), and to this account and region?"
    if "AccessDenied" in code:
        action = "ssm:GetParameter" if location.startswith("ssm:") else "s3:GetObject"
        return f"{str(error).rstrip('.')}. The job's role needs {action} on it"
    if type(error).__name__ == "SignInError":  # compare names: importing the class would be slow
        return f"{error}; correct that, or log in"
    return f"{type(error).__name__}: {error}"


def resolve_manifest(options: SourceOptions, client: Callable[[str], Any]) -> Manifest:
    """Load the manifest of a query from the location in its options or, without a location, create it from the ARNs in the options.

    Raises `ManifestError` if that fails, or if a stream lacks a consumer and `readMode` is not `polling`.
    """
    if options.manifest:
        manifest = load_manifest(options.manifest, client).in_region(options.aws.region).select(options.streams)
        if options.batch and options.streams is None:
            manifest.check_choice()
    else:
        manifest = manifest_of_arns(options).in_region(options.aws.region)
    if options.read_mode == "polling":
        polled = {name: replace(ref, consumer_arn=None) for name, ref in manifest.streams.items()}
        return replace(manifest, streams=polled)
    if polled_only := [name for name, ref in manifest.streams.items() if ref.polled]:
        raise ManifestError(
            f"the manifest {manifest.source} names no consumer (consumerArn) for {', '.join(map(repr, polled_only))}, so "
            "that only GetRecords can read it: set readMode=polling. For readMode=efo, declare a consumer "
            "(the application's `polling: true` in place of `polling: only`), and deploy"
        )
    return manifest


def manifest_of_arns(options: SourceOptions) -> Manifest:
    """Create a manifest from the ARNs in validated options. The streams' logical names are their Kinesis names."""
    consumers = {each.partition("/consumer/")[0]: each for each in options.consumer_arns}
    refs = {
        name: StreamRef(name, name, arn, consumers.get(arn))
        for arn in options.stream_arns
        for name in (arn.rpartition("/")[2],)
    }
    given = {"streamArn": refs, "consumerArn": consumers, "leaseTable": options.lease_table}
    *most, last = [name for name, value in given.items() if value]
    consumer = "".join(options.consumer_arns[:1]).rpartition("/")[2].partition(":")[0]
    return Manifest(
        # For messages and metrics only: name the application after its consumer, lease table or first stream.
        application=consumer or options.lease_table or ("" if options.batch else next(iter(refs))),
        environment="",
        region=options.stream_arns[0].split(":")[3],
        lease_table=options.lease_table or "",
        streams=refs,
        source=f"the options {', '.join(most)} and {last}" if most else f"the option {last}",
        stream_names={name: name for name in refs},
    )
