"""Typed settings of an environment file. Limits are those of AWS's API references."""

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
"""EMR releases with Spark 4 when this version was released; AWS may have newer ones."""


class Settings(BaseModel):
    """Base class of settings: immutable; unknown keys and values of another type are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OwnStream(Settings):
    """A stream that this environment declares.

    Attributes:
        name: Name in Kinesis; default: `<environment>-<key of the entry>`, or `<project>.<environment>-<key of the entry>`.
        import_existing: Whether Terraform imports an existing stream of this name, and applies these settings to it.
        import_consumers: ARNs of existing consumers on the stream that are declared from now on, by application key.
        mode: Capacity mode.
        shards: Number of shards, with mode `provisioned` only.
        scaled_elsewhere: Whether something else, such as a scaler, changes the number of shards; `shards` is used at creation only.
        retention_hours: How long records stay readable, 24 hours to 365 days.
        key: Encryption key: `own` (a customer key is declared), the ARN of one, or `aws-managed` (free, but unusable from other accounts).
        former_keys: Former keys of the stream, each with the last day on which readers need it: the day of the change plus the
            retention. `own` retains the key that is declared here.
        shard_metrics: Metrics that Kinesis publishes per shard; billed per shard and metric.
        max_record_kib: Maximum size of a record in KiB, 1024 to 10240.
        warm_throughput_mib: MiB per second that an on-demand stream accepts without prior scaling, in an account with On-demand
            Advantage. Needs an AWS provider that supports it, such as the one for CDK Terrain.
        other_consumers: Names of known consumers on the stream that are registered elsewhere. The pipeline reports all other
            undeclared consumers as drift.
        tags: Tags of the stream, in addition to the environment's.
        moved_from: Former key of this entry. Emits a Terraform `moved` block, so that nothing is replaced.
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
        """The stream's current key, followed by its former keys."""
        return (self.key, *self.former_keys)


class AdoptedStream(Settings):
    """An existing stream that is declared elsewhere. This environment declares only consumers on it.

    Attributes:
        existing_arn: ARN of the stream. For a stream in another account, `consumers` must name a consumer for each application.
        key: ARN of the customer key that encrypts the stream, so that readers may decrypt; default: none, as for `aws/kinesis`.
        former_keys: Former keys of the stream; see `OwnStream`.
        consumers: ARNs of consumers that the stream's owner registered, by application key. They are used, but not declared here.
        import_consumers: ARNs of existing consumers on the stream that are declared here from now on, by application key.
        moved_from: Former key of this entry.
    """

    existing_arn: StreamArn
    key: KeyArn | None = None
    former_keys: dict[KeyArn, date] = {}
    consumers: dict[Key, ConsumerArn] = {}
    import_consumers: dict[Key, ConsumerArn] = {}
    moved_from: Key | None = None

    @property
    def all_keys(self) -> tuple[str, ...]:
        """The stream's current key, if it has one, followed by its former keys."""
        return (*([self.key] if self.key else []), *self.former_keys)


Stream = OwnStream | AdoptedStream


class Application(Settings):
    """An application that reads one or more streams.

    Attributes:
        name: Name of the application's Kinesis consumers; part of the names of its other resources. Default: the entry's key.
        streams: Keys of the streams to read.
        writes: Keys of streams in this file that the application may put records into.
        lag_threshold_seconds: The lag alarm goes off when the lag exceeds this for five minutes.
        continuous: False for jobs that only run now and then, so that missing metric data raises no alarm.
        polling: Default: GetRecords is allowed for queries that have fallen behind other queries of their program and catch up
            separately. True: `readMode=polling` is also allowed, and alarms cover it. False: GetRecords is not allowed, and a
            program's queries wait for the slowest one. `only`: subscribing is not allowed, and no consumers are declared.
        batch: Whether to declare a second policy, for batch reads (`spark.read`) without consumers or leases.
        output: S3 location of the output, as `s3://bucket/prefix`; only objects below this prefix may be used.
        checkpoint: S3 location of Spark's checkpoints, if they are not below `output`.
        output_key: ARN of the customer key that encrypts objects in `output` and `checkpoint`.
        access: How the application's jobs get their permissions.
        lease_table: Name of the lease table; default: `<project>-<environment>-<application>`.
        import_lease_table: Whether Terraform imports an existing table, such as one restored from a backup; never a KCL lease table.
        retired: Set this before removing the entry: the lease table is no longer protected from deletion. Nothing is deleted yet.
        moved_from: Former key of this entry.
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
        """Whether the application has a consumer on each of its streams."""
        return self.polling != "only"

    @property
    def polls(self) -> bool:
        """Whether jobs may always read without a consumer (`readMode=polling`), so that consumer metrics do not show their lag."""
        return bool(self.polling)

    @property
    def gets_records(self) -> bool:
        """Whether GetRecords is allowed, at least for queries that catch up with other queries of their program."""
        return self.polling is not False


class Alarms(Settings):
    """The topic that alarms notify, and whether there is a dashboard.

    Attributes:
        sns_topic: ARN of the SNS topic that every alarm notifies; without a topic, no alarms are declared.
        dashboard: Whether to declare the dashboard.
    """

    sns_topic: TopicArn | None = None
    dashboard: bool = True


class ServerlessApplication(Settings):
    """An EMR Serverless application that runs the jobs of this environment.

    Attributes:
        maximum_vcpu: Maximum number of vCPUs of all running jobs together, which limits the cost. It must cover the driver and at
            least one executor of each job.
        maximum_memory_gb: Maximum memory of all running jobs together, in GB.
        subnets: Subnets of the workers; without them, jobs can connect only to AWS services in this region.
        security_groups: Security groups of the workers, for access to other hosts in the VPC; required with `subnets`. At most four:
            EMR accepts five, and one is added for connections between workers.
    """

    maximum_vcpu: Annotated[int, Field(ge=2, le=10_000)] = 64
    maximum_memory_gb: Annotated[int, Field(ge=4, le=100_000)] = 256
    subnets: list[SubnetId] = []
    security_groups: Annotated[list[SecurityGroupId], Field(max_length=4)] = []


class Emr(Settings):
    """Where jobs run, and where their archives, programs and logs are stored. Without these settings, nothing is declared for jobs.

    Attributes:
        release_label: Label of an EMR release with Spark 4.
        architecture: Processor architecture of the workers; `arm64` is Graviton.
        python: Python version that jobs are packed for; the release must include it.
        artifacts_bucket: S3 bucket for archives, programs and logs; default: `<project>-<environment>-<account>`.
        log_days: Days after which logs expire.
        artifact_days: Days after which archives and programs expire. Each deployment uploads those of the jobs again; if there is no
            deployment for this long, EMR cannot restart a run.
        serverless: The EMR Serverless application; null if jobs run on clusters or EKS instead.
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
        application: Key of the application. An application has at most one job, because its leases allow only one run to read.
        program: Path of the program, relative to the project. It must accept the option `--manifest`, which is added.
        arguments: Arguments of the program. Here and in `spark`, `$output` and `$checkpoint` stand for the application's locations.
        spark: Spark settings, which override those that `kinesis-efo emr submit` chooses.
        target: `cluster:<id>`, `serverless:<application id>` or `eks:<virtual cluster id>`; default: this environment's
            EMR Serverless application, if the application's access is `emr-serverless`.
        schedule: Run the job on a schedule instead of continuously: `rate(15 minutes)` or `cron(0 6 * * ? *)`, in the syntax of
            EventBridge Scheduler. On EMR Serverless only.
        time_zone: Time zone of a cron expression; default: UTC.
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
    """Who may plan and apply this environment from CI. The bootstrap stack declares the roles and other resources for this.

    Attributes:
        repository: GitHub repository whose workflows may assume the pipeline's roles: `owner@id/name@id`, which matches both
            formats of GitHub's tokens, or `owner/name`, if it was neither created nor renamed after July 15, 2026.
        branch: The branch that is deployed.
        after: Environment that must have been deployed before this one, such as `dev` before `prod`.
        workflows: Reusable workflows whose jobs may apply, as `owner/name/.github/workflows/deploy-environment.yml@refs/tags/v1.0.0`:
            the current version, and the next one during an upgrade; default: the workflow of `repository` itself.
        issuer: The issuer of GitHub's tokens, without `https://`, if an enterprise has its own:
            `token.actions.githubusercontent.com/<enterprise>`, or `token.actions.<name>.ghe.com`.
        oidc_provider_arn: The account's IAM OIDC provider for this issuer, if declared elsewhere; default: declared here.
        adopt_state_bucket: Whether the state bucket is declared elsewhere.
        extra_policies: ARNs of additional managed policies for the apply role, for resources whose names do not begin with the
            environment's prefix.
        buckets: Additional S3 buckets that the jobs' permissions boundary allows; those in jobs' arguments (`s3://...`) are included.
        databases: Glue catalog databases that the jobs' permissions boundary allows.
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
        project: Prefix of all names, so that several projects may use the same environment names in one account; up to 16 letters a-z
            and digits. Choose it before the first deployment: another project means a new stack with new resources.
        region: AWS region of the environment.
        account_id: The only account that the environment may be deployed to.
        state_bucket: S3 bucket of the Terraform state.
        state_region: Region of the state bucket; default: `region`.
        tags: Tags of every resource.
        protected: Whether Terraform refuses to destroy streams, consumers, tables and keys. Must be set if the name suggests
            production, and must be true for `prod`.
        key: Customer key of lease tables and manifests: `own` (a key is declared), or the ARN of one.
        on_demand_advantage: Whether the account uses Kinesis On-demand Advantage: 50 consumers per stream instead of 20.
        budget_usd: Monthly budget for the idle environment, in US dollars; to exceed it, run `make accept`.
        manifest_tier: Parameter Store tier: `standard` holds 4 KB; `advanced` holds 8 KB, and is billed.
        manifest_store: Where manifests are stored: `ssm` (parameters), or `s3` (objects of any size).
        manifest_bucket: With `s3`, the name of an existing bucket; default: the artifacts bucket of `emr`.
        handed_over: Keys of streams that were declared here, and are declared elsewhere from now on. Terraform removes them from its
            state, together with their encryption keys and resource policies, but does not change them.
        retain: Keys of streams whose entries were removed, but that stay in AWS with their records and keys, like those of
            `handed_over`. Without this, removing an entry destroys its stream.
        alarms: See `Alarms`.
        pipeline: See `Pipeline`; without it, people deploy this environment.
        emr: See `Emr`; without it, nothing is declared for jobs.
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
    """A complete environment file.

    Attributes:
        streams: Streams, by key.
        applications: Applications, by key.
        jobs: Jobs, at most one for each application.
    """

    streams: Mapping[str, Stream]
    applications: Mapping[str, Application]
    jobs: Sequence[Job] = ()

    def job(self, application: str) -> Job | None:
        """Return the job of an application, if it has one."""
        return next((job for job in self.jobs if job.application == application), None)


def stream_model(entry: Any) -> type[OwnStream] | type[AdoptedStream]:
    """Return the model for a stream's entry in the file."""
    return AdoptedStream if isinstance(entry, Mapping) and "existing_arn" in entry else OwnStream
