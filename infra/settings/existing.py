"""Rules for existing resources: consumers that a stream's owner registered, and imported streams, consumers and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from infra.errors import Fault
from infra.settings.model import AdoptedStream, Application, Environment, OwnStream, Stream
from infra.settings.names import Names, application_name

_MOVED = (
    "must not be given with moved_from: what was moved is in Terraform's state, and what is imported is not; leave out "
    "what was deployed already"
)


def given(
    streams: Mapping[str, Stream], applications: Mapping[str, Application], written: Collection[str]
) -> Iterator[Fault]:
    """Yield faults of the settings that name consumers registered by streams' owners.

    Args:
        streams: The valid streams of a file, by key.
        applications: The valid applications of the file, by key.
        written: The keys of all applications in the file, including invalid ones.
    """
    for key, stream in streams.items():
        if isinstance(stream, AdoptedStream):
            for application, consumer in stream.consumers.items():
                path = f"streams.{key}.consumers.{application}"
                yield from _consumer(path, consumer, stream.existing_arn, application, applications, written)


def imported(environment: Environment, written: Collection[str]) -> Iterator[Fault]:
    """Yield faults of resources to import: those that Terraform would replace, or already has in its state.

    Args:
        environment: The valid entries of a file.
        written: The keys of all applications in the file, including invalid ones.
    """
    for key, stream in environment.streams.items():
        if isinstance(stream, OwnStream) and stream.import_existing and stream.moved_from:
            yield Fault(f"streams.{key}.import_existing", True, _MOVED)
        for name, consumer in stream.import_consumers.items():
            path, arn = f"streams.{key}.import_consumers.{name}", Names(environment).stream_arn(key)
            yield from _consumer(path, consumer, arn, name, environment.applications, written)
            if name in environment.applications:
                yield from _imported(path, consumer, environment, key, name)
    for key, application in environment.applications.items():
        path = f"applications.{key}"
        if application.import_lease_table and application.lease_table is None:
            yield Fault(f"{path}.lease_table", None, "is missing: import_lease_table needs the name of the table")
        if application.import_lease_table and application.moved_from:
            yield Fault(f"{path}.import_lease_table", True, _MOVED)


def _consumer(
    path: str,
    consumer: str,
    stream_arn: str,
    key: str,
    applications: Mapping[str, Application],
    written: Collection[str],
) -> Iterator[Fault]:
    if key not in written:
        yield Fault(path, key, "names an application that this file does not have")
    elif key in applications and not applications[key].subscribes:
        yield Fault(path, consumer, f"must not be given: {key} says polling: only, and reads without consumers")
    if not consumer.startswith(f"{stream_arn}/consumer/"):
        yield Fault(path, consumer, f"must be a consumer of {stream_arn}")


def _imported(path: str, consumer: str, environment: Environment, stream_key: str, key: str) -> Iterator[Fault]:
    stream, application = environment.streams[stream_key], environment.applications[key]
    name = application_name(key, application)
    if stream_key not in application.streams:
        yield Fault(path, consumer, f"must be of an application that reads {stream_key}, which {key} does not")
    # Terraform would replace a consumer with another name, because consumers cannot be renamed.
    if consumer.rpartition("/")[2].partition(":")[0] != name:
        rule = f"must be called {name}, as the application and its consumers are; say applications.{key}.name:"
        yield Fault(path, consumer, rule)
    if isinstance(stream, AdoptedStream) and key in stream.consumers:
        rule = "must not be given with consumers, which says that its owner declares it; leave one of them out"
        yield Fault(path, consumer, rule)
    if not Names(environment).is_ours(stream_key):
        yield Fault(path, consumer, f"must be in account {environment.account_id}: its owner declares it elsewhere")
    if stream.moved_from or application.moved_from:
        yield Fault(path, consumer, _MOVED)
