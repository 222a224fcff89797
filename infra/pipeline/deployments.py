"""Converts environments to the deployments that the pipeline's steps use."""

from __future__ import annotations

from collections.abc import Iterable

from infra.gate.named import named_by
from infra.settings import addresses
from infra.settings.model import Environment, OwnStream
from infra.settings.names import Names
from kinesis_efo_infra.pipeline.deployment import Deployment


def deployment_of(environment: Environment, all_of_them: Iterable[Environment] = ()) -> Deployment:
    """Return the deployment of an environment.

    Args:
        environment: The environment.
        all_of_them: All environments, to include the consumers that others declare on its streams.
    """
    names, pipeline = Names(environment), environment.pipeline
    own = {key: stream for key, stream in environment.streams.items() if isinstance(stream, OwnStream)}
    consumers = {each for one in (environment, *all_of_them) for each in _declared(one)}
    expected = {(names.stream_arn(key), each) for key, stream in own.items() for each in stream.other_consumers}
    return Deployment(
        environment=environment.environment,
        github_environment=names.qualified,
        stack=names.stack_name,
        region=environment.region,
        account_id=environment.account_id,
        state_bucket=environment.state_bucket,
        state_key=names.state_key,
        record_key=names.record_key,
        named=named_by(environment),
        state_region=environment.state_region or "",
        repository=pipeline.repository if pipeline else "",
        branch=pipeline.branch if pipeline else "main",
        after=(pipeline.after if pipeline else None) or "",
        plan_role=names.pipeline_role_arn("plan"),
        apply_role=names.pipeline_role_arn("apply"),
        protected=environment.protected,
        imports=frozenset(addresses.imports(environment)),
        scaled=frozenset(addresses.scaled_elsewhere(environment)),
        on_demand_advantage=environment.on_demand_advantage,
        streams={names.stream_arn(key): names.stream_name(key) for key in own},
        consumers=frozenset(consumers | expected),
    )


def _declared(environment: Environment) -> Iterable[tuple[str, str]]:
    """Return the stream's ARN and the consumer's name for each consumer of an application, declared here or by the stream's owner."""
    names = Names(environment)
    for key, application in environment.applications.items():
        for stream in application.streams if application.subscribes else ():
            yield names.stream_arn(stream), names.consumer_name(stream, key)
