"""A job's permissions in S3: for the artifacts bucket, which has archives, programs and logs, and for the locations that it writes to."""

from __future__ import annotations

from infra.settings.model import Environment
from infra.settings.names import ENVIRONMENTS, LOGS, PROGRAMS, STOPS, Names, locations
from kinesis_efo_infra.iam import Condition, Policy, Statement


def use_artifacts(policy: Policy, bucket_arn: str, prefix: str, application: str, key_arn: str) -> None:
    """Allow loading archives and programs, checking for the marker object that stops a job, and writing logs."""
    stops = f"{STOPS}{prefix}-*"
    readable = (f"{ENVIRONMENTS}*", f"{PROGRAMS}*", stops)
    policy.add(Statement("LoadPrograms", ("s3:GetObject",), tuple(f"{bucket_arn}/{each}" for each in readable)))
    # Without ListBucket, S3 responds with 403 instead of 404 if an object does not exist.
    listed = (Condition("StringLike", "s3:prefix", readable),)
    policy.add(Statement("FindPrograms", ("s3:ListBucket",), (bucket_arn,), conditions=listed))
    policy.add(Statement("WriteLogs", ("s3:PutObject",), (f"{bucket_arn}/{LOGS}{application}/*",)))
    actions = ("kms:Decrypt", "kms:GenerateDataKey")
    policy.add(Statement("EncryptArtifacts", actions, (key_arn,), conditions=policy.through("s3")))


def use_locations(policy: Policy, environment: Environment, key: str) -> None:
    """Allow an application to use the locations of its output and checkpoints, and no other locations in these buckets."""
    application = environment.applications[key]
    for setting, location in locations(application).items():
        bucket = Names(environment).bucket_arn(location.bucket)
        policy.use_location(setting.capitalize(), location, bucket, application.output_key)
