"""Rules that span several environment files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from infra.errors import Fault
from infra.settings import consumers, locations, pods
from infra.settings.access import OtherAccount, RoleAccess
from infra.settings.model import Environment, OwnStream
from infra.settings.names import Names
from kinesis_efo_infra.pipeline.environment import between


def between_environments(environments: Mapping[str, Environment]) -> list[Fault]:
    """Return faults between files: resources declared twice, consumers read by two applications, buckets used twice, conflicting names."""
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
        *(Fault(f"{name}.yaml {setting}", value, rule) for name, setting, value, rule in between(environments)),
    ]


def _buckets(environments: Mapping[str, Environment]) -> Iterator[Fault]:
    """Yield faults of buckets: jobs must not use a state bucket, and two environments must not share a bucket for artifacts."""
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
