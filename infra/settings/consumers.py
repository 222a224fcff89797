"""Rules of consumers: only one application may use a consumer, because two would keep ending each other's subscriptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from infra.errors import Fault
from infra.settings.access import OtherAccount
from infra.settings.model import AdoptedStream, Environment
from infra.settings.names import Names

_OWN = "must be read by one application: two that read it take its subscriptions from each other"


@dataclass(frozen=True, slots=True)
class _Use:
    """An application's use of a consumer.

    Attributes:
        stream_arn: ARN of the stream.
        name: Name of the consumer, which is unique within the stream.
        place: Path of the setting in the environment file, for messages.
        declared: Whether the application declares the consumer; otherwise, the stream's owner has registered it.
        read: Whether a job of this file reads through the consumer; False if it is declared here for a job in another account.
    """

    stream_arn: str
    name: str
    place: str
    declared: bool
    read: bool

    @property
    def consumer(self) -> str:
        """ARN of the consumer without its creation time."""
        return f"{self.stream_arn}/consumer/{self.name}"


def within(environment: Environment) -> Iterator[Fault]:
    """Yield faults in one file: consumers that two applications use."""
    for first, *others in _by_consumer(_uses(environment)):
        for other in others:
            # Report the setting that names a registered consumer: that is the one to change.
            wrong, right = (first, other) if other.declared else (other, first)
            what = "is declared by" if right.declared else "is given to"
            rule = f"{what} {right.place} too, and {_OWN}; name another consumer, or leave it out to declare one"
            yield Fault(wrong.place, wrong.consumer, rule)


def between(environments: Mapping[str, Environment], *, but_on: Collection[str] = ()) -> Iterator[Fault]:
    """Yield faults between files: consumers of the same stream and name that two files declare, and consumers that two files read.

    A file may declare a consumer for another account; then that account's file, if it is in this directory, may name the consumer.

    Args:
        environments: The environments of one directory, by name.
        but_on: ARNs of streams to skip, because another fault was found for them.
    """
    uses = [
        _Use(each.stream_arn, each.name, f"{name}.yaml {each.place}", each.declared, each.read)
        for name, environment in environments.items()
        for each in _uses(environment)
        if each.stream_arn not in but_on
    ]
    for same in _by_consumer(uses):
        declaring, reading = [each for each in same if each.declared], [each for each in same if each.read]
        if len({_file(each) for each in declaring}) > 1:
            rule = "a stream has one consumer of a name; give one of the applications another `name:`"
            yield Fault(declaring[-1].place, same[0].consumer, f"is declared by {_others(declaring)} too; {rule}")
        elif len({_file(each) for each in reading}) > 1:
            rule = f"is read by {_others(reading)} too, and {_OWN}; name or declare another consumer"
            yield Fault(reading[-1].place, same[0].consumer, rule)


def _uses(environment: Environment) -> Iterator[_Use]:
    names = Names(environment)
    for key, application in environment.applications.items():
        for stream_key in dict.fromkeys(application.streams if application.subscribes else ()):
            stream = environment.streams.get(stream_key)
            if stream is None:
                continue
            given = isinstance(stream, AdoptedStream) and key in stream.consumers
            yield _Use(
                names.stream_arn(stream_key),
                names.consumer_name(stream_key, key),
                f"streams.{stream_key}.consumers.{key}" if given else f"applications.{key}.streams {stream_key}",
                declared=not given,
                read=given or not isinstance(application.access, OtherAccount),
            )


def _by_consumer(uses: Iterator[_Use] | list[_Use]) -> list[list[_Use]]:
    """Return the uses of each consumer that is used more than once."""
    found: dict[str, list[_Use]] = defaultdict(list)
    for each in uses:
        found[each.consumer].append(each)
    return [same for same in found.values() if len(same) > 1]


def _file(use: _Use) -> str:
    return use.place.partition(" ")[0]


def _others(uses: list[_Use]) -> str:
    return " and ".join(each.place for each in uses[:-1])
