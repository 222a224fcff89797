"""Serves an environment in a local AWS emulator, so that a job can be tried before anything is deployed.

`up` declares what jobs need with API calls; `apply_local` applies the stack with Terraform. Both leave out EMR, because jobs run elsewhere.
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from botocore.exceptions import BotoCoreError, ClientError

from infra.errors import UpError
from infra.settings import pods
from infra.settings.access import EmrServerless, OtherAccount, RoleAccess
from infra.settings.load import load_environments
from infra.settings.model import AdoptedStream, Application, Environment, OwnStream
from infra.settings.names import Names, application_name
from kinesis_efo_local import LocalApplication, LocalAws, LocalStream, Settings, declare, declare_stream

logger = logging.getLogger(__name__)


def up(directory: Path, name: str, port: int) -> None:
    """Serve a local AWS emulator with what an environment file declares, until Ctrl-C.

    Args:
        directory: Directory of the environment files.
        name: Name of the environment.
        port: Port of the emulator; 0 picks a free one.

    Raises:
        SettingsError: The environment file has faults.
        UpError: The port is in use, or the emulator rejects a request.
    """
    environment = localized(*load_environments(directory, [name]))
    with serving(environment, port) as aws:
        declare_in(aws, environment)
        _ready(aws, environment)


def apply_local(directory: Path, name: str, port: int) -> None:
    """Serve a local AWS emulator to which Terraform has applied the stack of an environment, until Ctrl-C.

    Args:
        directory: Directory of the environment files.
        name: Name of the environment.
        port: Port of the emulator; 0 picks a free one.

    Raises:
        SettingsError: The environment file has faults.
        UpError: The port is in use.
        PipelineError: Terraform is missing or fails.
    """
    environment = localized(*load_environments(directory, [name]))
    with serving(environment, port) as aws:
        apply_in(aws, environment, directory)
        _ready(aws, environment)


@contextmanager
def serving(environment: Environment, port: int = 0) -> Iterator[LocalAws]:
    """Run a local AWS emulator with the account and region of an environment.

    Raises:
        UpError: The port is in use.
    """
    aws = LocalAws(settings=Settings(region=environment.region, account_id=environment.account_id), port=port)
    try:
        aws.start()
    except OSError as error:
        raise UpError(f"local AWS cannot listen on port {port}: {error.strerror}; choose another PORT") from None
    try:
        yield aws
    finally:
        aws.stop()


def declare_in(aws: LocalAws, environment: Environment) -> None:
    """Declare a localized environment's streams, and consumers, lease tables and manifests of applications that run in its account.

    Raises:
        UpError: The emulator rejects a request.
    """
    names = Names(environment)
    streams = {key: _stream(environment, key) for key in environment.streams}
    try:
        for each in streams.values():
            declare_stream(aws, each)
        for key, application in environment.applications.items():
            if isinstance(application.access, OtherAccount):
                continue
            read = [streams[each] for each in application.streams]
            if not application.subscribes:
                read = [LocalStream(each.name, each.stream_name, polled=True) for each in read]
            wanted = LocalApplication(
                application_name(key, application), read, names.qualified, names.lease_table_name(key)
            )
            _store(aws, names, key, json.dumps(declare(aws, wanted), separators=(",", ":"), sort_keys=True))
    except (ClientError, BotoCoreError, TimeoutError) as error:
        raise UpError(f"local AWS cannot have {environment.environment}: {error}") from error


def apply_in(aws: LocalAws, environment: Environment, directory: Path) -> None:
    """Apply the stack of a localized environment with Terraform.

    Raises:
        PipelineError: Terraform is missing or fails.
    """
    from infra.stacks.app import synthesize
    from kinesis_efo_infra.pipeline.local import apply_local as apply_stack

    if environment.manifest_bucket is not None:
        _bucket(aws, environment.manifest_bucket)
    with TemporaryDirectory(prefix="kinesis-efo-local-") as scratch:
        written = synthesize([environment], directory, outdir=Path(scratch), accepting=True)
        apply_stack(written / "stacks" / Names(environment).stack_name, aws.endpoint_url)


def localized(environment: Environment) -> Environment:
    """Return an environment for the emulator: without jobs, and with adopted and imported resources replaced by newly declared ones.

    Raises:
        UpError: Two streams, of different accounts, have the same name. The emulator has only one account.
    """
    streams: dict[str, OwnStream] = {}
    for key, stream in environment.streams.items():
        own = stream
        if isinstance(own, AdoptedStream):
            own = OwnStream(name=Names(environment).stream_name(key), mode="provisioned", shards=1)
        streams[key] = own.model_copy(update={"import_existing": False, "import_consumers": {}})
    emr = environment.emr and environment.emr.model_copy(update={"serverless": None})
    applications = {key: _application(each) for key, each in environment.applications.items()}
    changes = {"streams": streams, "applications": applications, "emr": emr, "jobs": []}
    local = pods.without_associations(environment.model_copy(update=changes))
    used: dict[str, str] = {}
    for key in streams:
        name = Names(local).stream_name(key)
        if name in used:
            raise UpError(
                f"streams.{used[name]} and streams.{key} are both called {name}, in different accounts; local AWS is "
                "one account: leave one of them out"
            )
        used[name] = key
    return local


def _application(application: Application) -> Application:
    access = application.access
    if isinstance(access, RoleAccess):
        # Leave out additional policies: they do not exist in the emulator.
        access = access.model_copy(update={"policies": []})
    if isinstance(access, EmrServerless):
        access = access.model_copy(update={"application_id": None})
    return application.model_copy(update={"import_lease_table": False, "access": access})


def _stream(environment: Environment, key: str) -> LocalStream:
    stream = environment.streams[key]
    assert isinstance(stream, OwnStream), "localized"
    return LocalStream(
        key,
        Names(environment).stream_name(key),
        None if stream.mode == "on-demand" else stream.shards,
        retention_hours=stream.retention_hours,
        max_record_kib=stream.max_record_kib,
    )


def _store(aws: LocalAws, names: Names, key: str, manifest: str) -> None:
    if (bucket := names.manifest_bucket) is None:
        name = names.parameter_name(key)
        aws.client("ssm").put_parameter(Name=name, Type="SecureString", Value=manifest, Overwrite=True)
    else:
        _bucket(aws, bucket)
        at = names.manifest_key(key)
        aws.client("s3").put_object(Bucket=bucket, Key=at, Body=manifest.encode(), ContentType="application/json")


def _bucket(aws: LocalAws, name: str) -> None:
    region = aws.settings.region
    # S3 rejects us-east-1 as a location constraint; a bucket without a constraint is created there.
    elsewhere = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3 = aws.client("s3")
    # Two applications may share a bucket; in all regions but us-east-1, creating it again is an error.
    with suppress(s3.exceptions.BucketAlreadyOwnedByYou):
        s3.create_bucket(Bucket=name, **elsewhere)


def _ready(aws: LocalAws, environment: Environment) -> None:
    """Print `export` lines for a shell to evaluate, log the locations of the manifests, and wait for Ctrl-C."""
    print("\n".join(f"export {name}={value}" for name, value in aws.environment.items()), flush=True)  # noqa: T201
    for key, application in environment.applications.items():
        if not isinstance(application.access, OtherAccount):
            logger.info("%s: .option(%r, %r)", key, "manifest", Names(environment).manifest_location(key))
    logger.info("local AWS with %s runs until Ctrl-C", environment.environment)
    # Handle SIGINT explicitly: shells start background processes with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        signal.pause()
