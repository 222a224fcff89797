"""Parses the options of `kinesis-efo local`: settings, streams, and an application's manifest."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import typer

from kinesis_efo.arns import STREAM_ARN, STREAM_NAME
from kinesis_efo.aws import SyncClients
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.manifest import load_manifest
from kinesis_efo.options import AwsSettings
from kinesis_efo_local import LocalApplication, LocalStream, Settings

ENVIRONMENT: Final = "local"
"""The `environment` in manifests that the local AWS writes."""

_TRUE: Final = frozenset({"true", "1", "yes", "on", "t", "y"})
_FALSE: Final = frozenset({"false", "0", "no", "off", "f", "n"})


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs into typed settings.

    Raises BadParameter if a name is not known, or a value is not valid.

    >>> parse_settings(["read-limit=no", "subscription_seconds=10"])
    {'read_limit': False, 'subscription_seconds': 10.0}
    """
    kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields(Settings)}
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        name = name.replace("-", "_")
        if not equals or name not in kinds:
            raise typer.BadParameter(
                f"{pair!r} is not a setting; write NAME=VALUE with one of: {', '.join(sorted(kinds))}"
            )
        try:
            found[name] = _value(kinds[name], text)
        except ValueError as wrong:
            raise typer.BadParameter(f"setting {name} must be {wrong}; got {text!r}") from None
    return found


def _value(kind: str, text: str) -> Any:
    match kind:
        case "bool":
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError("true or false")
            return text.lower() in _TRUE
        case "int":
            try:
                return int(text)
            except ValueError:
                raise ValueError("a whole number") from None
        case "float":
            try:
                number = float(text)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise ValueError("a number")
            return number
    return text


def parse_streams(texts: Sequence[str]) -> dict[str, int]:
    """Parse streams such as ``name:shards`` into shard counts by name; a name alone means one shard.

    Raises BadParameter if a text has a different form, or a stream is named twice.

    >>> parse_streams(["flights:4", "weather"])
    {'flights': 4, 'weather': 1}
    """
    found: dict[str, int] = {}
    for text in texts:
        name, colon, count = text.partition(":")
        shards = 1 if not colon else int(count) if count.isascii() and count.isdigit() else 0
        if not STREAM_NAME.fullmatch(name) or shards < 1:
            raise typer.BadParameter(
                f"--stream must be NAME or NAME:SHARDS, as flights:4, with a name of letters, digits, '_', '.' and '-'; got {text!r}"
            )
        if name in found:
            raise typer.BadParameter(f"--stream names {name!r} twice; name each stream once")
        found[name] = shards
    return found


@dataclass(frozen=True, slots=True)
class Declaration:
    """The application to declare in the local AWS.

    Attributes:
        settings: Settings of the local AWS that the existing manifest requires: region and account.
        manifest: Path of the manifest to write; equal to `given` if the existing manifest is used.
        given: Path of the existing manifest in --manifest, if any. It is reused if the local AWS can use its ARNs.
    """

    application: LocalApplication
    settings: dict[str, Any]
    manifest: Path
    given: Path | None = None

    @property
    def names(self) -> list[str]:
        """Names of the streams in the manifest."""
        return [stream.name for stream in self.application.streams]

    def rewritten(self, written: Path) -> bool:
        """Whether `written` is a second manifest, written because the local AWS could not use the ARNs of the existing one."""
        return self.manifest == self.given and written != self.manifest.absolute()


def wanted(
    streams: Sequence[str], app: str | None, manifest: Path | None, manifest_out: Path | None
) -> Declaration | None:
    """Return the application that the options describe; None if they do not name streams.

    Raises BadParameter if options contradict each other, ConfigurationError if a manifest cannot be read, a needed package is missing, or a
    file that the local AWS did not write would be overwritten.
    """
    shards = parse_streams(streams)
    if manifest is not None:
        if app is not None:
            raise typer.BadParameter(
                "--application and --manifest exclude each other: the manifest names the application"
            )
        found = _of_manifest(manifest, shards, manifest_out)
    elif shards:
        name = app or "app"
        if not STREAM_NAME.fullmatch(name):
            raise typer.BadParameter(f"--application must be a name of letters, digits, '_', '.' and '-'; got {name!r}")
        declared = [LocalStream(stream, stream, count) for stream, count in shards.items()]
        out = manifest_out or Path(f"{name}-{ENVIRONMENT}.json")
        found = Declaration(LocalApplication(name, declared, ENVIRONMENT), {}, out)
    elif app is not None or manifest_out is not None:
        raise typer.BadParameter("--application and --manifest-out go with --stream NAME:SHARDS, or --manifest FILE")
    else:
        return None
    _check_installed()
    if found.manifest != found.given:
        _check_ours(found.manifest)
    return found


def _check_installed() -> None:
    """Check that the packages for declaring an application are installed. Serving Kinesis alone does not need them."""
    for package in ("boto3", "moto"):
        if find_spec(package) is None:
            raise ConfigurationError(
                f"declaring in the local AWS needs the package {package!r}: pip install 'kinesis-efo[local]'"
            )


def _of_manifest(manifest: Path, shards: dict[str, int], out: Path | None) -> Declaration:
    given = load_manifest(str(manifest), SyncClients(AwsSettings()).client)
    unknown = shards.keys() - given.streams.keys()
    if unknown:
        raise typer.BadParameter(
            f"--stream says how many shards a stream of --manifest has; {manifest} has {', '.join(given.streams)}, "
            f"but not {', '.join(sorted(unknown))}"
        )
    by_name: dict[str, str] = {}
    for key, ref in given.streams.items():
        if ref.stream_name in by_name:
            raise ConfigurationError(
                f"manifest {manifest}: streams {by_name[ref.stream_name]!r} and {key!r} are both called {ref.stream_name}, in "
                "different accounts; the local AWS is one account: leave one of them out"
            )
        by_name[ref.stream_name] = key
    streams = [
        LocalStream(key, ref.stream_name, shards.get(key, 1), ref.consumer_arn, ref.polled)
        for key, ref in given.streams.items()
    ]
    arn = STREAM_ARN.fullmatch(next(iter(given.streams.values())).stream_arn)
    assert arn is not None, "checked by load_manifest"
    application = LocalApplication(given.application, streams, ENVIRONMENT, given.lease_table)
    settings = {"region": given.region, "account_id": arn["account"]}
    return Declaration(application, settings, out or manifest, manifest)


def _check_ours(path: Path) -> None:
    """Raise ConfigurationError if `path` exists and is not a manifest that the local AWS wrote."""
    if not path.exists():
        return
    try:
        ours = json.loads(path.read_bytes())["environment"] == ENVIRONMENT
    except (ValueError, LookupError, TypeError, OSError):
        ours = False
    if not ours:
        raise ConfigurationError(
            f"{path} is not a manifest that `kinesis-efo local` wrote, so it is not overwritten; name another file with --manifest-out"
        )


def write_manifest(asked: Declaration, document: dict[str, Any]) -> Path:
    """Write the manifest of the declared application. Returns its path.

    An existing manifest is not changed: if the local AWS cannot use its ARNs, a manifest with other ARNs is written next to it.
    """
    path = asked.manifest
    if path == asked.given:
        consumers = {name: entry.get("consumerArn") for name, entry in document["streams"].items()}
        if consumers == {stream.name: stream.consumer_arn for stream in asked.application.streams}:
            return path.absolute()
        path = path.with_name(f"{path.stem}-{ENVIRONMENT}.json")
        _check_ours(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path.absolute()


def merged(asked: Declaration | None, given: dict[str, Any], region: str | None) -> Settings:
    """Return the local AWS settings: settings on the command line override settings from a manifest.

    Raises BadParameter if a value is out of range.
    """
    settings = {**(asked.settings if asked else {}), **({"region": region} if region else {}), **given}
    try:
        return replace(Settings(), **settings)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
