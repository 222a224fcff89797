"""An application's manifest, policy and job description with literal values instead of CDKTF tokens, to check sizes before deployment."""

from __future__ import annotations

import json

from infra.settings import schedules
from infra.settings.artifacts import use_artifacts, use_locations
from infra.settings.manifest import Scheduling, deployment, manifest, runtime_role
from infra.settings.model import AdoptedStream, Environment
from infra.settings.names import Names, application_name
from kinesis_efo_infra.document import StreamRef
from kinesis_efo_infra.iam import Policy


def literal_manifest(environment: Environment, key: str) -> str:
    """Return an application's manifest, with the length that Terraform will write. Creation times of new consumers are placeholders."""
    names = Names(environment)
    document = manifest(
        environment,
        key,
        table_arn=names.lease_table_arn(key),
        table_name=names.lease_table_name(key),
        streams={
            stream_key: StreamRef(
                names.stream_name(stream_key),
                names.stream_arn(stream_key),
                literal_consumer_arn(environment, stream_key, key),
            )
            for stream_key in environment.applications[key].streams
        },
    )
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def literal_policy(environment: Environment, key: str) -> Policy:
    """Return the policy of an application, with the length that Terraform will write."""
    names = Names(environment)
    application = environment.applications[key]
    policy = Policy(environment.region)
    for stream_key in application.streams:
        consumer_arn = literal_consumer_arn(environment, stream_key, key)
        stream_arn, (key_arn, *former) = names.stream_arn(stream_key), _literal_keys(environment, stream_key)
        if consumer_arn is None:
            policy.poll_stream(stream_arn, key_arn, former_keys=former)
        else:
            polling = application.gets_records
            policy.read_stream(stream_arn, consumer_arn, key_arn, former_keys=former, polling=polling)
    for stream_key in application.writes:
        policy.write_stream(names.stream_arn(stream_key), _literal_keys(environment, stream_key)[0])
    policy.read_write_leases(names.lease_table_arn(key), _some_key(environment))
    in_s3 = names.manifest_bucket is not None
    policy.read_manifest(names.manifest_arn(key), _some_key(environment), in_s3=in_s3)
    if environment.emr is not None:
        bucket = names.bucket_arn(names.artifacts_bucket)
        name = application_name(key, application)
        use_artifacts(policy, bucket, names.prefix, name, _some_key(environment))
    use_locations(policy, environment, key)
    policy.deny_registration()
    return policy


def literal_deployment(environment: Environment, key: str) -> str:
    """Return the description of an application's jobs, with at least the length that Terraform will write."""
    names = Names(environment)
    job, access = environment.job(key), environment.applications[key].access
    document = deployment(
        environment,
        key,
        bucket=names.artifacts_bucket,
        key_arn=_some_key(environment),
        target=(job.target if job else None) or f"serverless:{'0' * 16}",
        role_arn=runtime_role(access, names.role_arn(key)),
        schedules=_scheduling(environment),
    )
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def _scheduling(environment: Environment) -> Scheduling | None:
    names = Names(environment)
    if not schedules.scheduled(environment):
        return None
    role_arn = names.iam_arn(f"role/{names.schedules_role_name}")
    return Scheduling(names.schedule_group, role_arn)


def literal_consumer_arn(environment: Environment, stream_key: str, key: str) -> str | None:
    """Return the ARN of a consumer; a new one has ten zeros as its creation time. None if the application only polls."""
    names = Names(environment)
    if not environment.applications[key].subscribes:
        return None
    stream = environment.streams[stream_key]
    if key in stream.import_consumers:
        return stream.import_consumers[key]
    if isinstance(stream, AdoptedStream) and key in stream.consumers:
        return stream.consumers[key]
    name = names.consumer_name(stream_key, key)
    return f"{names.stream_arn(stream_key)}/consumer/{name}:{'0' * 10}"


def _literal_keys(environment: Environment, stream_key: str) -> list[str]:
    """Return the ARN of a stream's customer key, which is empty if it has none, followed by those of its former keys."""
    stream, own = (
        environment.streams[stream_key],
        _some_key(environment, 1 + list(environment.streams).index(stream_key)),
    )
    key = stream.key if stream.key and stream.key != "aws-managed" else ""
    return [own if each == "own" else each for each in (key, *stream.former_keys)]


def _some_key(environment: Environment, number: int = 0) -> str:
    """Return a placeholder for the ARN of a key, with the length of a real one. Each number results in a different ARN."""
    return Names(environment).arn("kms", f"key/{number:036}")
