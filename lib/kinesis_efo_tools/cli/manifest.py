"""``kinesis-efo manifest``: writes a manifest from the resources in an account, shows one, and checks it against AWS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType

from kinesis_efo.aws import SyncClients
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.commands.manifest import STDOUT, Check, Init, Show
from kinesis_efo_tools.cli.findings import report
from kinesis_efo_tools.manifest_schema import SCHEMA
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.checkup import consumer, stream
from kinesis_efo_tools.operate.lease_checkup import lease_table
from kinesis_efo_tools.operate.manifest_search import Search, SearchResult, StreamSpec, document, search


def init(given: Init) -> None:
    file = None if given.out == STDOUT else _file(given.out)
    if file is not None and file.exists() and not given.force:
        raise _kept(file)
    streams = [StreamSpec.parse(each) for each in given.stream]
    _refuse_repeated(each.name for each in streams)
    _refuse_repeated(each.stream_name for each in streams)
    wanted = Search(
        given.application, given.environment, _region(given.aws, streams), streams, given.consumer, given.table
    )

    async def look() -> SearchResult:
        async with Access(given.aws, wanted.region) as access:
            return await search(access, wanted)

    found = asyncio.run(look())
    text = json.dumps(found.document, indent=2)
    if file is None:
        typer.echo(text)
    else:
        _write(file, f"{text}\n", force=given.force)
        output.remark(f"kinesis-efo: wrote {file}: {output.count(len(streams), 'stream')}, lease table {given.table}")


def show(given: Show) -> None:
    found = arguments.load(given.manifest, given.aws)
    output.answer(given.as_json, {**document(found, found.lease_table), "source": found.source}, lambda: _view(found))


def check(given: Check) -> None:
    found = arguments.load(given.manifest, given.aws)

    async def examine() -> list[Any]:
        async with Access(given.aws, found.region) as access:
            checks = [
                check(access, ref)
                for ref in found.streams.values()
                for check in ((stream,) if ref.polled else (stream, consumer))
            ]
            return [*await asyncio.gather(*checks), await lease_table(access, found)]

    report(given.as_json, asyncio.run(examine()))


def schema() -> None:
    typer.echo(json.dumps(SCHEMA, indent=2))


def _view(found: Manifest) -> RenderableType:
    head = output.table(
        ("manifest", found.source),
        [
            ("application", found.application),
            ("environment", found.environment),
            ("region", found.region),
            ("lease table", found.lease_table),
        ],
    )
    streams = output.table(
        ("stream", "name in Kinesis", "consumer"),
        [(name, ref.stream_name, ref.consumer_arn or "none: it is polled") for name, ref in found.streams.items()],
    )
    return Group(head, "", streams)


def _file(out: str) -> Path:
    if "://" in out:
        raise ConfigurationError(
            f"--out must be a file; got {out!r}. Write one, and put it there with `aws ssm put-parameter` or `aws s3 cp`"
        )
    return Path(out)


def _kept(file: Path) -> typer.Exit:
    output.remark(f"kinesis-efo: {file} exists: nothing was changed. Use --force to overwrite it")
    return output.stop(output.ExitCode.REFUSED)


def _write(file: Path, text: str, *, force: bool) -> None:
    try:
        with file.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise _kept(file) from None
    except OSError as error:
        raise ConfigurationError(f"--out {file} cannot be written: {error.strerror}; name another file") from error


def _refuse_repeated(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(f"--stream names {name!r} twice; name each stream once, each by a name of its own")
        seen.add(name)


def _region(aws: AwsSettings, streams: Sequence[StreamSpec]) -> str:
    """Return the region of all resources: from the ARNs, else from the command line, else from the environment."""
    regions = {each.region for each in streams if each.region is not None}
    if aws.region is not None:
        regions.add(aws.region)
    if len(regions) > 1:
        raise ConfigurationError(
            f"--stream and --region name several regions: {', '.join(sorted(regions))}; a manifest is of one region"
        )
    region = next(iter(regions), None) or SyncClients(aws).region
    if region is None:
        raise ConfigurationError("no AWS region: give --region, or set AWS_REGION")
    return region
