"""The settings of an environment file, typed. Limits are those of AWS's API references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from infra.settings.access import Access, PolicyOnly
from infra.settings.values import (
    DEFAULT_PROJECT,
    AccountId,
    BucketName,
    ConsumerArn,
    EnvironmentName,
    Key,
    KeyArn,
    KinesisName,
    OidcArn,
    PolicyArn,
    ProjectName,
    Repository,
    S3Location,
    SecurityGroupId,
    ShardMetric,
    StreamArn,
    SubnetId,
    TableName,
    Tags,
    TopicArn,
)
from kinesis_efo_infra.pipeline.deployment import GITHUB_ISSUER
from kinesis_efo_infra.pipeline.environment import Issuer, WorkflowRef
from kinesis_efo_infra.pipeline.known_regions import Region

RELEASES = ("emr-spark-8.0.0", "emr-spark-8.1.0")
"""Releases of EMR with Spark 4 that are known here; AWS may have newer ones."""


class Settings(BaseModel):
    """Base of every entry: immutable; unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OwnStream(Settings):
    """A stream that this environment declares.

    Attributes:
        name: Name in Kinesis; default `<environment>-<key of the entry>`, or `<project>.<environment>-<key of the entry>`.
        import_existing: A stream of this name exists: Terraform takes it over as it is, and gives it these settings.
        import_consumers: Consumers on it that exist and are declared from now on: their ARNs, by application key.
        mode: Capacity mode.
        shards: Number of shards, with mode `provisioned` only.
        scaled_elsewhere: Somebody else, such as a scaler, changes the number of shards: `shards` is that of a new stream.
        retention_hours: How long records stay readable, 24 hours to 365 days.
        key: Encryption key: `own` (a customer key declared here), the ARN of a key, or `aws-managed`
            (free, but unusable from other accounts).
        former_keys: Keys that it had before, each with the day until which readers must decrypt with it: that of the change, and
            the retention. `own` keeps the one declared here.
        shard_metrics: Metrics that CloudWatch gets per shard; billed per shard and metric.
        max_record_kib: Largest record in KiB (1024 to 10240).
        warm_throughput_mib: MiB a second that an on-demand stream takes at once, with On-demand Advantage. Needs an AWS provider
            that knows it: that of CDK Terrain does.
        other_consumers: Names of consumers on it that others register and answer for; the pipeline takes any that is
            neither declared nor named here for drift.
        tags: Tags besides the environment's.
        moved_from: Key that this entry had before. Emits a Terraform `moved` block, so that nothing is replaced.
    """

    name: KinesisName | None = None
    import_existing: bool = False
    import_consumers: dict[Key, ConsumerArn] = {}
    mode: Literal["on-demand", "provisioned"] = "on-demand"
    shards: Annotated[int, Field(ge=1, le=10_000)] | None = None
    scaled_elsewhere: bool = False
    retention_hours: Annotated[int, Field(ge=24, le=8760)] = 24
    key: Literal["own", "aws-managed"] | KeyArn = "own"
    former_keys: dict[Literal["own"] | KeyArn, date] = {}
    shard_metrics: list[ShardMetric] = []
    max_record_kib: Annotated[int, Field(ge=1024, le=10_240)] = 1024
    warm_throughput_mib: Annotated[int, Field(ge=1, le=10_240)] | None = None
    other_consumers: list[KinesisName] = []
    tags: Tags = {}
    moved_from: Key | None = None

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Its key, and those that it had before."""
        return (self.key, *self.former_keys)


class AdoptedStream(Settings):
    """A stream that exists and belongs to someone else: only consumers on it are declared.

    Attributes:
        existing_arn: The stream. In another account, `consumers` must name a consumer for each application.
        key: ARN of the customer key that encrypts it, so that readers may decrypt; none for `aws/kinesis`, or without
            encryption.
        former_keys: As for a stream that this environment declares.
        consumers: Consumers that its owner registered, by application key; they are used, and not declared here.
        import_consumers: Consumers on it that exist and are declared here from now on: their ARNs, by application key.
        moved_from: Key that this entry had before.
    """

    existing_arn: StreamArn
    key: KeyArn | None = None
    former_keys: dict[KeyArn, date] = {}
    consumers: dict[Key, ConsumerArn] = {}
    import_consumers: dict[Key, ConsumerArn] = {}
    moved_from: Key | None = None

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Its key, if it has one, and those that it had before."""
        return (*([self.key] if self.key else []), *self.former_keys)


Stream = OwnStream | AdoptedStream


class Application(Settings):
    """A consumer of one or more streams.

    Attributes:
        name: Name of its Kinesis consumers, and part of that of lease table and manifest. Default: the entry's key.
        streams: Keys of the streams it consumes.
        writes: Keys of streams of this environment it may put records into.
        lag_threshold_seconds: The alarm goes off when it is further behind than this for five minutes.
        continuous: False for jobs that run now and then: silence is then no alarm.
        polling: Default: GetRecords is allowed, because a query that is behind another one of the same program reads alone by it
            until it has caught up. True: jobs may also read with `readMode=polling`, and are watched for that. False: it is not
            allowed, and queries of one program wait for the slowest. `only`: nothing else is allowed, and no consumer is declared.
        batch: Declare a second policy, for who reads stretches of the streams (`spark.read`): with neither consumers nor leases.
        output: Where it writes, as `s3://bucket/prefix`: it may use what lies below, and nothing beside.
        checkpoint: The same for Spark's checkpoints, where they are not below `output`.
        output_key: ARN of the customer key of what it writes to both.
        access: Who runs it.
        lease_table: Name of the lease table; default `<project>-<environment>-<application>`.
        import_lease_table: The table exists, as one restored from a backup does: Terraform takes it over (never a KCL's).
        retired: It is about to be removed: its table is not protected from deletion any more. All of it stays until the entry goes.
        moved_from: Key that this entry had before.
    """

    name: KinesisName | None = None
    streams: list[Key]
    writes: list[Key] = []
    lag_threshold_seconds: Annotated[int, Field(ge=1, le=31_536_000)] = 300
    continuous: bool = True
    polling: Literal[True, False, "only"] | None = None
    batch: bool = False
    output: S3Location | None = None
    checkpoint: S3Location | None = None
    output_key: KeyArn | None = None
    access: Access = PolicyOnly()
    lease_table: TableName | None = None
    import_lease_table: bool = False
    retired: bool = False
    moved_from: Key | None = None

    @property
    def subscribes(self) -> bool:
        """Whether it has a consumer on each of its streams."""
        return self.polling != "only"

    @property
    def polls(self) -> bool:
        """Whether its jobs may read without a consumer all the time, which the metrics of consumers do not show."""
        return bool(self.polling)

    @property
    def gets_records(self) -> bool:
        """Whether GetRecords is allowed, if only for queries that catch up with others of their program."""
        return self.polling is not False


class Alarms(Settings):
    """Whom alarms notify, and whether there is a dashboard.

    Attributes:
        sns_topic: Topic that every alarm notifies; without one, no alarm is declared.
        dashboard: Declare the dashboard.
    """

    sns_topic: TopicArn | None = None
    dashboard: bool = True


class ServerlessApplication(Settings):
    """An application of EMR Serverless, on which the jobs of this environment run.

    Attributes:
        maximum_vcpu: Most vCPUs that all its jobs may use together; this bounds the costs. A job needs those of its driver and
            of one executor at least.
        maximum_memory_gb: The same for memory, in GB.
        subnets: Subnets of its jobs; without them, jobs reach only services of AWS in this region.
        security_groups: Security groups of its jobs, for what they reach in the VPC; goes with `subnets`. At most four: EMR
            takes five, and one is added by which the workers reach each other.
    """

    maximum_vcpu: Annotated[int, Field(ge=2, le=10_000)] = 64
    maximum_memory_gb: Annotated[int, Field(ge=4, le=100_000)] = 256
    subnets: list[SubnetId] = []
    security_groups: Annotated[list[SecurityGroupId], Field(max_length=4)] = []


class Emr(Settings):
    """Where jobs run, and where their archives, programs and logs are kept. Without it, nothing about jobs is declared.

    Attributes:
        release_label: Release of EMR; one with Spark 4.
        architecture: Processors that jobs run on; `arm64` is Graviton.
        python: Version of Python that jobs are packed for; one that the release has.
        artifacts_bucket: S3 bucket for archives, programs and logs; default `<project>-<environment>-<account>`.
        log_days: Days that logs are kept.
        artifact_days: Days after which archives and programs expire. Each deployment renews those of the jobs; without any for so
            long, EMR cannot restart a run.
        serverless: The application of EMR Serverless; null for none, if jobs run on clusters or EKS.
    """

    release_label: Annotated[str, StringConstraints(pattern=r"^emr-spark-([89]|[1-9]\d)[.]\d+[.]\d+(-[a-z0-9]+)?$")] = (
        "emr-spark-8.0.0"
    )
    architecture: Literal["arm64", "x86_64"] = "arm64"
    python: Literal["3.11", "3.12", "3.13"] = "3.11"
    artifacts_bucket: BucketName | None = None
    log_days: Annotated[int, Field(ge=1, le=3650)] = 30
    artifact_days: Annotated[int, Field(ge=90, le=3650)] = 730
    serverless: ServerlessApplication | None = ServerlessApplication()


class Job(Settings):
    """A program that the pipeline keeps running for an application, or that has a schedule.

    Attributes:
        application: Key of the application. It has one job at most: its leases let one run read.
        program: Path of the program, relative to the project; it must take `--manifest`, which is added.
        arguments: Its arguments; here and in `spark`, `$output` and `$checkpoint` stand for those of its application.
        spark: Settings of Spark; they win over those that `kinesis-efo emr submit` chooses.
        target: `cluster:<id>`, `serverless:<application id>` or `eks:<virtual cluster id>`; default: this environment's
            application of EMR Serverless, where the access is that of EMR Serverless.
        schedule: Run it now and then, and not all the time: `rate(15 minutes)` or `cron(0 6 * * ? *)`, as EventBridge Scheduler
            reads it. On EMR Serverless only.
        time_zone: Time zone of a cron expression; default UTC.
    """

    application: Key
    program: Annotated[str, StringConstraints(pattern=r"^[\w][\w./-]*\.py$")]
    arguments: list[str] = []
    spark: dict[Annotated[str, StringConstraints(pattern=r"^spark\.[A-Za-z0-9_./:-]+$")], str] = {}
    target: (
        Annotated[str, StringConstraints(pattern=r"^(cluster:j-[A-Z0-9]{1,30}|(serverless|eks):[0-9a-z]{1,64})$")]
        | None
    ) = None
    schedule: str | None = None
    time_zone: str | None = None


class Pipeline(Settings):
    """Who may plan and apply this environment from CI. The bootstrap stack declares what that needs in AWS.

    Attributes:
        repository: GitHub repository whose workflows may assume the pipeline's roles: `owner@id/name@id`, which is right for both
            forms of GitHub's tokens, or `owner/name`, for one that was neither created nor renamed after July 15, 2026.
        branch: The branch that is deployed.
        after: Environment that must have been deployed before this one, as `dev` before `prod`.
        workflows: Reusable workflows whose jobs may apply, as `owner/name/.github/workflows/deploy-environment.yml@refs/tags/v1.0.0`:
            the version that is called, and during an upgrade the next one too; default: the workflow of `repository` itself.
        issuer: The issuer of GitHub's tokens, without `https://`, if an enterprise has its own:
            `token.actions.githubusercontent.com/<enterprise>`, or `token.actions.<name>.ghe.com`.
        oidc_provider_arn: The account's IAM OIDC provider for this issuer, if declared elsewhere; default: declared here.
        adopt_state_bucket: The state bucket is declared elsewhere.
        extra_policies: More managed policies for the role that applies, for resources whose names do not begin with
            the environment's.
        buckets: S3 buckets that jobs may use, within their boundary, besides those that their arguments name (`s3://...`).
        databases: Databases of the Glue catalog that jobs may use.
    """

    repository: Repository
    branch: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./-]{1,200}$")] = "main"
    after: EnvironmentName | None = None
    workflows: list[WorkflowRef] = []
    issuer: Issuer = GITHUB_ISSUER
    oidc_provider_arn: OidcArn | None = None
    adopt_state_bucket: bool = False
    extra_policies: list[PolicyArn] = []
    buckets: list[BucketName] = []
    databases: list[Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,255}$")]] = []


class Head(Settings):
    """An environment file without its streams, applications and jobs.

    Attributes:
        environment: Name of the environment, and of its file.
        project: What all names begin with, so that projects may have environments of one name in one account; up to 16 of a-z and
            0-9. Choose it before the first deployment: under another one, everything is new.
        region: AWS region of everything in it.
        account_id: The only account it may be deployed to.
        state_bucket: S3 bucket of the Terraform state.
        state_region: Region of that bucket; default `region`.
        tags: Tags of every resource.
        protected: Refuse to destroy streams, consumers, tables and keys. A name that looks like production needs it, and
            for `prod` it must be true.
        key: Customer key of lease tables and manifests: `own` (declared here), or the ARN of one.
        on_demand_advantage: The account uses Kinesis On-demand Advantage: 50 consumers per stream instead of 20.
        budget_usd: What it may cost a month, in US dollars, while nobody reads or writes; above that, `make accept` is needed.
        manifest_tier: Parameter Store tier: `standard` holds 4 KB, `advanced` 8 KB (and is billed).
        manifest_store: Where manifests are: `ssm` (parameters), or `s3`, where they may be of any size.
        manifest_bucket: With `s3`, a bucket that exists; default: that of `emr`.
        handed_over: Keys of streams that were declared here, and are somebody else's from now on: Terraform forgets them, with the
            keys that encrypt them and the policies that share them, and leaves them as they are.
        retain: Keys of streams whose entries were removed, and that stay in AWS, with their records and keys: Terraform forgets them, as
            those of `handed_over`. Without this, removing an entry destroys its stream.
        alarms: See `Alarms`.
        pipeline: See `Pipeline`; without it, people deploy this environment.
        emr: See `Emr`; without it, nothing about jobs is declared.
    """

    environment: EnvironmentName
    project: ProjectName = DEFAULT_PROJECT
    region: Region
    account_id: AccountId
    state_bucket: BucketName
    state_region: Region | None = None
    tags: Tags = {}
    protected: bool = False
    key: Literal["own"] | KeyArn = "own"
    on_demand_advantage: bool = False
    budget_usd: Annotated[int, Field(ge=0)] | None = None
    manifest_tier: Literal["standard", "advanced"] = "standard"
    manifest_store: Literal["ssm", "s3"] = "ssm"
    manifest_bucket: BucketName | None = None
    handed_over: list[Key] = []
    retain: list[Key] = []
    alarms: Alarms = Alarms()
    pipeline: Pipeline | None = None
    emr: Emr | None = None


class Environment(Head):
    """A whole environment file.

    Attributes:
        streams: By key.
        applications: By key.
        jobs: Jobs, at most one for each application.
    """

    streams: Mapping[str, Stream]
    applications: Mapping[str, Application]
    jobs: Sequence[Job] = ()

    def job(self, application: str) -> Job | None:
        """The job of an application, if it has one."""
        return next((job for job in self.jobs if job.application == application), None)


def stream_model(entry: Any) -> type[OwnStream] | type[AdoptedStream]:
    """The kind of stream that an entry of the file describes."""
    return AdoptedStream if isinstance(entry, Mapping) and "existing_arn" in entry else OwnStream
