"""Rules that span several environment files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import permutations

from infra.errors import Fault
from infra.settings import consumers, locations, pods
from infra.settings.access import OtherAccount, RoleAccess
from infra.settings.model import Environment, OwnStream
from infra.settings.names import Names
from kinesis_efo_infra.pipeline.environment import declared_once


def between_environments(environments: Mapping[str, Environment]) -> list[Fault]:
    """Faults between files: what two of them declare, consumers that two read, pipelines in each other's way."""
    used: dict[str, list[str]] = defaultdict(list)
    for name, environment in environments.items():
        for key, stream in environment.streams.items():
            if isinstance(stream, OwnStream):
                used[Names(environment).stream_arn(key)].append(f"{name}.yaml streams.{key}")
        for key, application in environment.applications.items():
            if not isinstance(application.access, OtherAccount):
                used[Names(environment).lease_table_arn(key)].append(f"{name}.yaml applications.{key}")
                used[Names(environment).policy_arn(key)].append(f"{name}.yaml applications.{key}")
            if service_account := pods.associated(application):
                used[Names(environment).arn("eks", f"service account {service_account}")].append(
                    f"{name}.yaml applications.{key}"
                )
            if isinstance(application.access, RoleAccess):
                used[Names(environment).role_arn(key)].append(f"{name}.yaml applications.{key}")
    declared_twice = [
        Fault(places[-1], arn, f"is declared by {' and '.join(places[:-1])} too; each must be declared once")
        for arn, places in used.items()
        if len(places) > 1
    ]
    twice = {str(fault.value) for fault in declared_twice}
    return [
        *declared_twice,
        *consumers.between(environments, but_on=twice),
        *_buckets(environments),
        *locations.between(environments),
        *_prefixes(environments),
        *_pipelines(environments),
    ]


def _prefixes(environments: Mapping[str, Environment]) -> Iterator[Fault]:
    """Faults of names that begin like another environment's: a pipeline's roles reach what begins with its name.

    In whatever regions: names of IAM are the same in all of them. Those of two projects never begin alike.
    """
    for (short, one), (long, other) in permutations(environments.items(), 2):
        if not one.pipeline or (one.account_id, one.project) != (other.account_id, other.project):
            continue
        if long.startswith(f"{short}-"):
            rule = (
                f"begins like {short}, whose role for applying could change what belongs to {long}: "
                "use another name or account"
            )
            yield Fault(f"{long}.yaml environment", long, rule)


def _buckets(environments: Mapping[str, Environment]) -> Iterator[Fault]:
    """Faults of buckets: jobs use none of states, and none is of two environments' artifacts, as each may change its policy."""
    states = {environment.state_bucket: name for name, environment in environments.items()}
    used: dict[str, str] = {}
    for name, environment in environments.items():
        for bucket in dict.fromkeys((*Names(environment).job_buckets, Names(environment).manifest_bucket)):
            if bucket in states:
                rule = f"must not be used by jobs, because it holds the state of {states[bucket]}; use another bucket"
                yield Fault(f"{name}.yaml", bucket, rule)
        artifacts = Names(environment).artifacts_bucket
        if environment.emr and (first := used.setdefault(artifacts, name)) != name:
            rule = f"must be a bucket of its own; {first} has the same"
            yield Fault(f"{name}.yaml emr.artifacts_bucket", artifacts, rule)


def _pipelines(environments: Mapping[str, Environment]) -> Iterator[Fault]:
    """Faults between pipelines: a resource declared twice, a wrong order."""
    for name, setting, rule in declared_once(environments):
        yield Fault(f"{name}.yaml pipeline.{setting}", None, rule)
    for name, environment in environments.items():
        pipeline = environment.pipeline
        if pipeline is None:
            continue
        seen = [name]
        after = pipeline.after
        while after is not None:
            follows = environments[after].pipeline if after in environments else None
            if follows is None or after in seen:
                rule = (
                    "must be another environment with a pipeline"
                    if after not in seen[1:]
                    else "must not lead back here"
                )
                yield Fault(f"{name}.yaml pipeline.after", after, rule)
                break
            seen.append(after)
            after = follows.after
