"""The environment file as typed settings. Relies on pydantic; rules across entries are in `rules`, reading in `load`.

Limits and name patterns are those of the AWS API references of Kinesis, DynamoDB, IAM, KMS and Systems Manager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

_KINESIS_NAME = r"[a-zA-Z0-9_.-]{1,128}"
_OWNER, _NAME = "[A-Za-z0-9-]{1,39}", "[A-Za-z0-9_.-]{1,100}"
_STREAM_ARN = rf"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:\d{{12}}:stream/{_KINESIS_NAME}"

Key = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
"""Name of an entry in this file; part of Terraform addresses, so it must not change (see `moved_from`)."""
KinesisName = Annotated[str, StringConstraints(pattern=rf"^{_KINESIS_NAME}$")]
TableName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{3,255}$")]
RoleName = Annotated[str, StringConstraints(pattern=r"^[\w+=,.@-]{1,64}$")]
StreamArn = Annotated[str, StringConstraints(pattern=rf"^{_STREAM_ARN}$")]
ConsumerArn = Annotated[str, StringConstraints(pattern=rf"^{_STREAM_ARN}/consumer/{_KINESIS_NAME}:\d+$")]
KeyArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[a-zA-Z0-9-]+$")]
TopicArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[a-zA-Z0-9_.-]+$")]
PolicyArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:iam::(aws|\d{12}):policy/[\w+=,.@/-]+$")]
PrincipalArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:(root|role/[\w+=,.@/-]+)$")]
OidcArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:oidc-provider/[\w./-]+$")]
AccountId = Annotated[str, StringConstraints(pattern=r"^\d{12}$")]
Region = Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")]

BucketName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
SubnetId = Annotated[str, StringConstraints(pattern=r"^subnet-[0-9a-f]{8,17}$")]
SecurityGroupId = Annotated[str, StringConstraints(pattern=r"^sg-[0-9a-f]{8,17}$")]

ShardMetric = Literal[
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
]


def _tags(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > 40:
        raise ValueError("must be at most 40 tags (AWS allows 50 per resource, and this code adds its own)")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or key.lower().startswith("aws:"):
            raise ValueError(
                f"a tag's key must have 1 to 128 characters and not begin with 'aws:', which {key!r} does not keep"
            )
        if len(value) > 256:
            raise ValueError(f"a tag's value must have at most 256 characters; that of {key!r} has {len(value)}")
    return tags


Tags = Annotated[dict[str, str], AfterValidator(_tags)]


class Settings(BaseModel):
    """Base of every entry: nothing unknown, nothing converted silently, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OwnStream(Settings):
    """A stream that this environment declares.

    Attributes:
        name: Name in Kinesis; default `<environment>-<key of the entry>`.
        mode: Capacity mode.
        shards: Number of shards, with mode `provisioned` only.
        retention_hours: How long records stay readable, 24 hours to 365 days.
        key: What encrypts it: `own` (a customer key declared here), the ARN of a key, or `aws-managed`
            (free, but unusable from other accounts).
        shard_metrics: Metrics CloudWatch gets per shard; billed per shard and metric.
        max_record_kib: Largest record in KiB (1024 to 10240).
        tags: On top of the environment's.
        moved_from: Key this entry had before. Emits a Terraform `moved` block, so that nothing is replaced.
    """

    name: KinesisName | None = None
    mode: Literal["on-demand", "provisioned"] = "on-demand"
    shards: Annotated[int, Field(ge=1, le=10_000)] | None = None
    retention_hours: Annotated[int, Field(ge=24, le=8760)] = 24
    key: Literal["own", "aws-managed"] | KeyArn = "own"
    shard_metrics: list[ShardMetric] = []
    max_record_kib: Annotated[int, Field(ge=1024, le=10_240)] = 1024
    tags: Tags = {}
    moved_from: Key | None = None


class AdoptedStream(Settings):
    """A stream that exists and belongs to someone else: only consumers on it are declared.

    Attributes:
        existing_arn: The stream. In another account, `consumers` must name a consumer for each application.
        key: ARN of the customer key that encrypts it, so that readers may decrypt; leave it out for `aws/kinesis` or none.
        consumers: Consumers that its owner registered, by application key: taken as they are, never declared.
        moved_from: Key this entry had before.
    """

    existing_arn: StreamArn
    key: KeyArn | None = None
    consumers: dict[Key, ConsumerArn] = {}
    moved_from: Key | None = None


Stream = OwnStream | AdoptedStream


class PolicyOnly(Settings):
    """A managed policy and nothing else: attach it to a role of your own."""

    kind: Literal["policy"] = "policy"


class _Role(Settings):
    """What every kind of role takes.

    Attributes:
        role_name: Default `kinesis-efo-<environment>-<application>`.
        policies: More managed policies to attach, for checkpoint and output buckets.
        permissions_boundary: ARN of the policy that bounds the role; where there is a pipeline, default its own.
    """

    role_name: RoleName | None = None
    policies: list[PolicyArn] = []
    permissions_boundary: PolicyArn | None = None


class EmrEc2(_Role):
    """An instance role with its profile, for EMR on EC2."""

    kind: Literal["emr-ec2"]


class EmrServerless(_Role):
    """A job runtime role for EMR Serverless.

    Attributes:
        application_id: The only EMR Serverless application that may assume it; default any of the account.
    """

    kind: Literal["emr-serverless"]
    application_id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,64}$")] | None = None


class Eks(_Role):
    """A role for a Kubernetes service account, through the cluster's OIDC provider.

    Attributes:
        oidc_provider_arn: The cluster's IAM OIDC provider.
        namespace: Kubernetes namespace.
        service_account: Its name; `*` stands for any characters, as EMR on EKS needs.
    """

    kind: Literal["eks"]
    oidc_provider_arn: OidcArn
    namespace: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    service_account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9*]([a-z0-9.*-]{0,251}[a-z0-9*])?$")]


class OtherAccount(Settings):
    """The job runs in another account: consumers and resource policies are declared here, everything else there.

    Attributes:
        principals: Roles (or account roots) that may read.
    """

    kind: Literal["other-account"]
    principals: Annotated[list[PrincipalArn], Field(min_length=1)]


Access = Annotated[PolicyOnly | EmrEc2 | EmrServerless | Eks | OtherAccount, Field(discriminator="kind")]
RoleAccess = EmrEc2 | EmrServerless | Eks


class Application(Settings):
    """A consumer of one or more streams.

    Attributes:
        name: Its name: that of its Kinesis consumers, lease table and manifest. Default: the key of the entry.
        streams: Keys of the streams it consumes.
        writes: Keys of streams of this environment it may put records into.
        lag_threshold_seconds: How far behind it may be, for five minutes, before the alarm.
        continuous: False for jobs that run now and then: silence is then no alarm.
        polling: Also allow GetRecords (`readMode=polling`).
        access: Who runs it.
        lease_table: Name of the lease table; default `kinesis-efo-<environment>-<application>`.
        adopt_lease_table: The table exists (a KCL application's): import it instead of creating it.
        moved_from: Key this entry had before.
    """

    name: KinesisName | None = None
    streams: list[Key]
    writes: list[Key] = []
    lag_threshold_seconds: Annotated[int, Field(ge=1, le=31_536_000)] = 300
    continuous: bool = True
    polling: bool = False
    access: Access = PolicyOnly()
    lease_table: TableName | None = None
    adopt_lease_table: bool = False
    moved_from: Key | None = None


class Alarms(Settings):
    """Who is told, and whether there is a dashboard.

    Attributes:
        sns_topic: Topic that every alarm notifies; without one, alarms only show in CloudWatch.
        dashboard: Declare the dashboard.
    """

    sns_topic: TopicArn | None = None
    dashboard: bool = True


class ServerlessApplication(Settings):
    """An application of EMR Serverless, on which the jobs of this environment run.

    Attributes:
        maximum_vcpu: What all its jobs together may use; the bound of its costs.
        maximum_memory_gb: The same in GB.
        subnets: Subnets that jobs are placed in; without them, jobs reach services of AWS in this region only.
        security_groups: Theirs; goes with `subnets`.
    """

    maximum_vcpu: Annotated[int, Field(ge=1, le=10_000)] = 64
    maximum_memory_gb: Annotated[int, Field(ge=2, le=100_000)] = 256
    subnets: list[SubnetId] = []
    security_groups: list[SecurityGroupId] = []


class Emr(Settings):
    """Where jobs run, and where what they are made of is kept. Without it, only streams and access are declared.

    Attributes:
        release_label: Release of EMR; one with Spark 4.
        architecture: Of its processors: `arm64` is Graviton.
        python: Version of Python that jobs are packaged for; one that the release has.
        artifacts_bucket: S3 bucket for archives, programs and logs; default `kinesis-efo-<environment>-<account>`.
        log_days: How long logs are kept.
        serverless: The application of EMR Serverless; null for none, where jobs run on clusters or EKS.
    """

    release_label: Annotated[str, StringConstraints(pattern=r"^emr-spark-([89]|[1-9]\d)[.][0-9.]+(-[a-z0-9]+)?$")] = (
        "emr-spark-8.0.0"
    )
    architecture: Literal["arm64", "x86_64"] = "arm64"
    python: Literal["3.11", "3.12", "3.13"] = "3.11"
    artifacts_bucket: BucketName | None = None
    log_days: Annotated[int, Field(ge=1, le=3650)] = 30
    serverless: ServerlessApplication | None = ServerlessApplication()


class Job(Settings):
    """A program that should run, all the time, for an application.

    Attributes:
        application: Key of the application. It has one job at most: its leases let one run read.
        program: The program, relative to the project; it takes `--manifest`, which is added.
        arguments: Its arguments.
        spark: Settings of Spark, beside those that submission chooses.
        target: `cluster:<id>`, `serverless:<application id>` or `eks:<virtual cluster id>`; default: this environment's
            application of EMR Serverless, where the access is that of EMR Serverless.
    """

    application: Key
    program: Annotated[str, StringConstraints(pattern=r"^[\w][\w./-]*\.py$")]
    arguments: list[str] = []
    spark: dict[str, str] = {}
    target: (
        Annotated[str, StringConstraints(pattern=r"^(cluster:j-[A-Z0-9]{1,30}|(serverless|eks):[0-9a-z]{1,64})$")]
        | None
    ) = None


class Pipeline(Settings):
    """Who may plan and apply this environment from CI. What that needs in AWS is the environment's bootstrap stack.

    Attributes:
        repository: GitHub repository whose workflows may assume the pipeline's roles, as GitHub vouches for it:
            `owner@id/name@id`, or `owner/name` for one from before July 15, 2026 that has not opted in to immutable subjects.
        branch: The branch that is deployed.
        after: Environment that must have been deployed before this one, as `dev` before `prod`.
        oidc_provider_arn: The account's IAM OIDC provider for GitHub, where it is declared elsewhere; default: declared here.
        adopt_state_bucket: The state bucket is declared elsewhere.
        extra_policies: Managed policies for the role that applies, for what the environment's own names do not cover.
    """

    repository: Annotated[str, StringConstraints(pattern=rf"^({_OWNER}@\d+/{_NAME}@\d+|{_OWNER}/{_NAME})$")]
    branch: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./-]{1,200}$")] = "main"
    after: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")] | None = None
    oidc_provider_arn: OidcArn | None = None
    adopt_state_bucket: bool = False
    extra_policies: list[PolicyArn] = []


class Head(Settings):
    """What an environment file says beside streams and applications.

    Attributes:
        environment: Name; also the file's.
        region: AWS region of everything in it.
        account_id: The only account it may be deployed to.
        state_bucket: S3 bucket of the Terraform state.
        state_region: Region of that bucket; default `region`.
        tags: On every resource.
        protect: Refuse to destroy streams, consumers, tables and keys; always on in `prod`.
        key: Customer key of lease tables and manifests: `own`, or the ARN of one.
        on_demand_advantage: The account uses Kinesis On-demand Advantage: 50 consumers per stream instead of 20.
        manifest_tier: Parameter Store tier: `standard` holds 4 KB, `advanced` 8 KB (and is billed).
        alarms: See `Alarms`.
        pipeline: See `Pipeline`; without it, people deploy this environment.
        emr: See `Emr`; without it, jobs run where this code knows nothing of.
    """

    environment: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
    region: Region
    account_id: AccountId
    state_bucket: BucketName
    state_region: Region | None = None
    tags: Tags = {}
    protect: bool | None = None
    key: Literal["own"] | KeyArn = "own"
    on_demand_advantage: bool = False
    manifest_tier: Literal["standard", "advanced"] = "standard"
    alarms: Alarms = Alarms()
    pipeline: Pipeline | None = None
    emr: Emr | None = None

    @property
    def protected(self) -> bool:
        """Whether destroying anything with an identity is refused."""
        return self.environment == "prod" or bool(self.protect)


class Environment(Head):
    """A whole environment file.

    Attributes:
        streams: By key.
        applications: By key.
        jobs: What runs, at most one for each application.
    """

    streams: Mapping[str, Stream]
    applications: Mapping[str, Application]
    jobs: Sequence[Job] = ()

    def job(self, application: str) -> Job | None:
        """The job of an application, if it has one."""
        return next((job for job in self.jobs if job.application == application), None)


def stream_model(entry: Any) -> type[OwnStream] | type[AdoptedStream]:
    """Which of the two kinds of stream an entry of the file is."""
    return AdoptedStream if isinstance(entry, Mapping) and "existing_arn" in entry else OwnStream
