"""Rules between environment files: nothing is declared twice, and no pipeline reaches what belongs to another's environment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from infra import names
from infra.errors import Fault
from infra.settings import Environment, OtherAccount, OwnStream


def faults(environments: Mapping[str, Environment]) -> list[Fault]:
    """What two files declare, each of which must be declared once, and pipelines that get in each other's way."""
    used: dict[str, list[str]] = defaultdict(list)
    for name, environment in environments.items():
        for key, stream in environment.streams.items():
            if isinstance(stream, OwnStream):
                used[names.stream_arn(environment, key)].append(f"{name}.yaml streams.{key}")
        for key, application in environment.applications.items():
            if not isinstance(application.access, OtherAccount):
                used[names.lease_table_arn(environment, key)].append(f"{name}.yaml applications.{key}")
    return [
        *(
            Fault(places[-1], arn, f"is declared by {' and '.join(places[:-1])} too; each must be declared once")
            for arn, places in used.items()
            if len(places) > 1
        ),
        *_buckets(environments),
        *_pipelines(environments),
    ]


def _buckets(environments: Mapping[str, Environment]) -> Iterator[Fault]:
    """Faults of buckets of artifacts: who applies an environment may change the policy of its bucket."""
    states = {environment.state_bucket: name for name, environment in environments.items()}
    used: dict[str, str] = {}
    for name, environment in environments.items():
        if environment.emr is None:
            continue
        bucket, path = names.artifacts_bucket(environment), f"{name}.yaml emr.artifacts_bucket"
        if bucket in states:
            rule = f"must not be a bucket of states; it is that of {states[bucket]}: use another"
            yield Fault(path, bucket, rule)
        if (first := used.setdefault(bucket, name)) != name:
            yield Fault(path, bucket, f"must be a bucket of its own; {first} has the same")


def _pipelines(environments: Mapping[str, Environment]) -> Iterator[Fault]:
    """Faults between pipelines: a resource declared twice, a name that begins like another's, a wrong order."""
    declared: dict[tuple[str, str, str], str] = {}
    scopes: list[tuple[str, str, str]] = []
    for name, environment in environments.items():
        pipeline = environment.pipeline
        if pipeline is None:
            continue
        path = f"{name}.yaml pipeline"
        for setting, what, wanted in (
            ("oidc_provider_arn", "the OIDC provider", pipeline.oidc_provider_arn is None),
            ("adopt_state_bucket", environment.state_bucket, not pipeline.adopt_state_bucket),
        ):
            first = declared.setdefault((environment.account_id, setting, what), name) if wanted else name
            if first != name:
                rule = f"is missing: the bootstrap stack of {first} declares {what} in this account already"
                yield Fault(f"{path}.{setting}", None, rule)
        for other, account, other_region in scopes:
            short, long = sorted((name, other), key=len)
            same_place = account == environment.account_id and other_region == environment.region
            if same_place and long.startswith(f"{short}-"):
                rule = (
                    f"begins like {short}, whose role for applying could change what belongs to {long}: "
                    "use another name or account"
                )
                yield Fault(path, long, rule)
        scopes.append((name, environment.account_id, environment.region))
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
                yield Fault(f"{path}.after", after, rule)
                break
            seen.append(after)
            after = follows.after
