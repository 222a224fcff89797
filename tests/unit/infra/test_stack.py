"""What the synthesized Terraform says, construct by construct."""

import json
import re
from dataclasses import asdict
from typing import Any

import pytest
from botocore.session import Session

from infra.settings import addresses
from infra.settings.literals import literal_deployment, literal_policy
from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.settings.pods import without_associations
from infra.stacks import permissions
from kinesis_efo_infra import ArgumentError, PodIdentity, regions
from kinesis_efo_infra.locations import Location
from kinesis_efo_infra.pipeline.known_regions import known_regions
from tests.support.environments import EXAMPLE
from tests.unit.infra.conftest import KEY, Load, Synth, check, scenarios, statements

PARTITIONS = {"eusc-de-east-1": ("aws-eusc", "amazonaws.eu"), "us-iso-east-1": ("aws-iso", "c2s.ic.gov")}


# A scenario and its settings; then what the stack has at each path: resources, policy documents by statement id, and the rest of the file.
# See `check` for the form of paths.
STACKS = r"""
without emr, no jobs are declared | applications.lake.access: SERVERLESS
    resource lacks: [aws_s3, aws_emr]
    aws_ssm_parameter.*: [lake]
    lake_reader.LoadPrograms: null
bucket of artifacts is private | emr: {log_days: 5}, protected: true
    aws_s3_bucket.artifacts: {bucket: kinesis-efo-test-111122223333, lifecycle: {prevent_destroy: true}}
    aws_s3_bucket_public_access_block.artifacts with: {block_public_acls: true, block_public_policy: true, ignore_public_acls: true, restrict_public_buckets: true}
    aws_s3_bucket_server_side_encryption_configuration.artifacts.rule.0.apply_server_side_encryption_by_default with: {sse_algorithm: aws:kms, kms_master_key_id: <aws_kms_key.environment_key.arn>}
    artifacts_bucket.TlsOnly.effect: Deny
    aws_s3_bucket_lifecycle_configuration.artifacts.rule has: ["[{'days': 5}], 'filter': [{'prefix': 'logs/'}]", "[{'days': 7}], 'filter': [{'prefix': 'stops/'}]", "[{'days': 730}], 'filter': [{'prefix': 'environments/'}]", "[{'days': 730}], 'filter': [{'prefix': 'programs/'}]"]
artifacts expire as the file says | emr: {artifact_days: 90}
    aws_s3_bucket_lifecycle_configuration.artifacts.rule has: ["[{'days': 90}], 'filter': [{'prefix': 'environments/'}]", "[{'days': 90}], 'filter': [{'prefix': 'programs/'}]"]
EMR application is bounded and trusted alone | applications.lake.access: SERVERLESS, emr: {architecture: x86_64, serverless: {maximum_vcpu: 8, maximum_memory_gb: 32, subnets: [subnet-0123456789abcdef0], security_groups: [sg-0123456789abcdef0]}}
    aws_emrserverless_application.jobs with: {maximum_capacity: {cpu: 8 vCPU, memory: 32 GB}, architecture: X86_64, release_label: emr-spark-8.0.0}
    aws_security_group.workers.ingress.0 with: {from_port: 0, to_port: 65535, protocol: tcp, self: true, cidr_blocks: [], security_groups: []}
    aws_security_group.workers.egress.0 with: {from_port: 0, to_port: 65535, protocol: tcp, self: true, cidr_blocks: [], security_groups: []}
    aws_emrserverless_application.jobs.network_configuration with: {subnet_ids: [subnet-0123456789abcdef0], security_group_ids: [sg-0123456789abcdef0, <aws_security_group.workers.id>]}
    aws_security_group.workers.vpc_id: <data.aws_subnet.workers.vpc_id>
    lake_trust.EmrServerless.condition has: <aws_emrserverless_application.jobs.arn>
EMR application outside of a network has no group | emr: {}
    aws_security_group: null
    aws_emrserverless_application.jobs.network_configuration: null
role for another application trusts that one | emr: {}, applications.lake.access: {kind: emr-serverless, application_id: 00f1}
    lake_trust.EmrServerless.principals: [{type: Service, identifiers: [emr-serverless.amazonaws.com]}]
    lake_trust.EmrServerless.condition with: {0: {test: StringEquals, variable: 'aws:SourceAccount', values: ['111122223333']}, 1: {test: ArnLike, variable: 'aws:SourceArn', values: ['arn:aws:emr-serverless:eu-west-1:111122223333:/applications/00f1']}}
    aws_ssm_parameter.lake_job.value lacks: target
jobs load artifacts and write their own logs | emr.serverless: null, applications.reports: {streams: [orders]}
    aws_emrserverless_application: null
    lake_reader.WriteLogs.resources: [<aws_s3_bucket.artifacts.arn>/logs/lake/*]
    lake_reader.LoadPrograms.resources: [<aws_s3_bucket.artifacts.arn>/environments/*, <aws_s3_bucket.artifacts.arn>/programs/*, <aws_s3_bucket.artifacts.arn>/stops/kinesis-efo-test-*]
    aws_cloudwatch_metric_alarm.jobs_failures: null
stream has its settings | streams.orders: {mode: provisioned, shards: 4, retention_hours: 48, max_record_kib: 2048, shard_metrics: [IncomingBytes], tags: {domain: shop}}
    aws_kinesis_stream.orders: {name: test-orders, stream_mode_details: {stream_mode: PROVISIONED}, shard_count: 4, retention_period: 48, encryption_type: KMS, enforce_consumer_deletion: true, kms_key_id: <aws_kms_key.orders.arn>, max_record_size_in_kib: 2048, shard_level_metrics: [IncomingBytes], tags: {domain: shop}}
removed stream is retained | streams: {clicks: {}}, applications.lake.streams: [clicks], retain: [orders]
    removed has: ["{'from': 'aws_kinesis_stream.orders', 'lifecycle': {'destroy': False}}", aws_kms_key.orders, aws_kms_alias.orders, aws_kinesis_resource_policy.orders]
without a topic nothing is watched | alarms: {}, emr: {}
    aws_cloudwatch_metric_alarm: null
shards scaled elsewhere are ignored | streams.orders: {mode: provisioned, shards: 4, scaled_elsewhere: true}, protected: true
    aws_kinesis_stream.orders with: {shard_count: 4, lifecycle: {ignore_changes: [shard_count], prevent_destroy: true}}
on-demand stream has no shard count | tags: {owner: us}, state_region: eu-central-1
    aws_kinesis_stream.orders.stream_mode_details: {stream_mode: ON_DEMAND}
    aws_kinesis_stream.orders.shard_count: null
    terraform.backend.s3: {bucket: state, key: kinesis-efo/test.tfstate, region: eu-central-1, encrypt: true, use_lockfile: true}
    terraform.required_version: '>= 1.10'
    provider.aws.0 with: {allowed_account_ids: ['111122223333'], default_tags: [{tags: {environment: test, managed-by: kinesis-efo, owner: us}}]}
    aws_ssm_parameter.lake.tier: Standard
adopted stream is decrypted with former keys | streams.orders: {existing_arn: STREAM, former_keys: {KEY: 2027-02-03}}
    lake_reader.DecryptStreams.resources: [KEY]
adopted stream gets consumers only | streams.orders: {existing_arn: STREAM, key: KEY}
    aws_kinesis_stream: null
    aws_kinesis_stream_consumer: {orders_lake: {name: lake, stream_arn: STREAM}}
    # A stream that others size may have the shortest retention.
    aws_cloudwatch_metric_alarm.orders_lake_retention.threshold: 43200000
# Metrics of a stream stay in its account.
given consumer of another account is used | streams.orders: {existing_arn: FOREIGN, consumers: {lake: 'FOREIGN/consumer/lake:1700000000'}}
    aws_kinesis_stream_consumer: null
    lake_reader.SubscribeToConsumers.resources: [FOREIGN/consumer/lake:1700000000]
    aws_ssm_parameter.lake.value has: FOREIGN/consumer/lake:1700000000
given consumer is watched under its name | streams.orders: {existing_arn: STREAM, consumers: {lake: 'STREAM/consumer/before:1700000000'}}
    aws_cloudwatch_metric_alarm.orders_lake_lag.dimensions: {StreamName: payments, ConsumerName: before}
    aws_cloudwatch_dashboard.applications.dashboard_body has: '"ConsumerName", "before"'
dashboard leaves out streams of other accounts | streams: {orders: {existing_arn: FOREIGN, consumers: {lake: 'FOREIGN/consumer/lake:1'}}, clicks: {}}, applications.pond: {streams: [clicks]}
    aws_cloudwatch_dashboard.applications.dashboard_body has: 'pond: milliseconds behind'
    aws_cloudwatch_dashboard.applications.dashboard_body lacks: ['lake: milliseconds behind', '"events"']
lease table is encrypted and can be restored | manifest_tier: standard
    aws_dynamodb_table.lake: {name: kinesis-efo-test-lake, billing_mode: PAY_PER_REQUEST, hash_key: leaseKey, attribute: [{name: leaseKey, type: S}], point_in_time_recovery: {enabled: true}, server_side_encryption: {enabled: true, kms_key_arn: <aws_kms_key.environment_key.arn>}, deletion_protection_enabled: false}
    aws_ssm_parameter.lake with: {name: /kinesis-efo/test/lake, description: kinesis-efo manifest /kinesis-efo/test/lake, type: SecureString, key_id: <aws_kms_key.environment_key.arn>}
    aws_ssm_parameter.lake.value has: ['${jsonencode({', aws_dynamodb_table.lake.arn, aws_dynamodb_table.lake.name, aws_kinesis_stream.orders.arn, aws_kinesis_stream.orders.name, aws_kinesis_stream_consumer.orders_lake.arn]
manifest may be larger, and the dashboard left out | manifest_tier: advanced, alarms.dashboard: false, applications.pond: {streams: [orders]}
    aws_ssm_parameter.lake.tier: Advanced
    aws_cloudwatch_dashboard: null
    # A retention of a day is half gone after twelve hours.
    aws_cloudwatch_metric_alarm.orders_lake_retention.threshold: 43200000
batch reads need neither consumers nor leases | applications.lake.batch: true
    lake_batch.*: [DecryptLeasesAndManifest, DecryptStreams, LoadManifest, NeverRegisterConsumers, ReadStreams]
    output.batch_policy_arns.value: {lake: <aws_iam_policy.lake_batch.arn>}
China has its own ARNs and hosts | region: cn-north-1, applications.lake.access: EC2
    lake_reader.LoadManifest.resources: ['arn:aws-cn:ssm:cn-north-1:111122223333:parameter/kinesis-efo/test/lake']
    lake_reader.DecryptStreams.condition.0.values: [kinesis.cn-north-1.amazonaws.com.cn]
    lake_trust.EmrOnEc2.principals.0.identifiers: [ec2.amazonaws.com.cn]
role for EMR on EC2 has a profile | applications.lake.access: EC2
    aws_iam_instance_profile.lake.role: <aws_iam_role.lake.name>
    lake_trust.EmrOnEc2.principals: [{type: Service, identifiers: [ec2.amazonaws.com]}]
    output.consumer_arns.value: {orders/lake: <aws_kinesis_stream_consumer.orders_lake.arn>}
    output.manifests.value: {lake: 'ssm://${aws_ssm_parameter.lake.name}'}
    output.role_arns.value: {lake: <aws_iam_role.lake.arn>}
    output.*: [consumer_arns, manifests, policy_arns, role_arns, stream_arns]
role has given policies and boundary | applications.lake.access: {kind: emr-ec2, role_name: lake-runtime, policies: ['arn:aws:iam::111122223333:policy/reader', 'arn:aws:iam::111122223333:policy/other/reader'], permissions_boundary: 'arn:aws:iam::111122223333:policy/reader'}
    aws_iam_role_policy_attachment.*: [lake_343ad91c, lake_52004517, lake_reader]
    aws_iam_role.lake with: {name: lake-runtime, permissions_boundary: arn:aws:iam::111122223333:policy/reader}
stream, consumer and key are shared with another account | applications: {lake: {streams: [orders], lag_threshold_seconds: 90, access: PARTNER}, home: {streams: [orders]}}
    aws_dynamodb_table.*: [home]
    aws_kinesis_resource_policy.*: [orders, orders_lake]
    orders_shared.ReadLake with: {actions: GETTING, resources: [<aws_kinesis_stream.orders.arn>], principals: [{type: AWS, identifiers: ['arn:aws:iam::777788889999:role/partner']}]}
    aws_kms_key.orders.policy has: '{"AWS":["arn:aws:iam::777788889999:role/partner"]},"Action":["kms:Decrypt"],"Resource":["*"],"Condition":{"StringEquals":{"kms:ViaService":["kinesis.eu-west-1'
    orders_lake_shared.Subscribe with: {principals: [{type: AWS, identifiers: ['arn:aws:iam::777788889999:role/partner']}], actions: ['kinesis:DescribeStreamConsumer', 'kinesis:SubscribeToShard'], resources: [<aws_kinesis_stream_consumer.orders_lake.arn>]}
    aws_cloudwatch_metric_alarm.lake_leases: null
    aws_cloudwatch_dashboard.applications.dashboard_body has: orders_lake_lag.arn
# Silence means that nobody reads. A disabled key shows as failing writes, and a retention half gone is the last call.
alarms watch enhanced fan-out | applications.lake.lag_threshold_seconds: 90, streams.orders.retention_hours: 168
    aws_cloudwatch_metric_alarm.*: [lake_leases, lake_leases_failing, orders_lake_lag, orders_lake_rate, orders_lake_retention, orders_writes, orders_writes_failing]
    aws_cloudwatch_metric_alarm.orders_lake_lag with: {dimensions: {StreamName: <aws_kinesis_stream.orders.name>, ConsumerName: lake}, threshold: 90000, treat_missing_data: breaching}
    aws_cloudwatch_metric_alarm.orders_writes with: {alarm_actions: [arn:aws:sns:eu-west-1:111122223333:oncall], ok_actions: [arn:aws:sns:eu-west-1:111122223333:oncall], actions_enabled: true}
    aws_cloudwatch_metric_alarm.orders_writes.metric_name: WriteProvisionedThroughputExceeded
    aws_cloudwatch_metric_alarm.lake_leases.metric_query has: [ReadThrottleEvents, WriteThrottleEvents, '+ FILL(writes, 0)']
    aws_cloudwatch_metric_alarm.orders_writes_failing.metric_query has: ["'PutRecord.Success'", "'PutRecords.Success'", 'IF(FILL(one, 1) < 0.5 OR FILL(many, 1) < 0.5, 1, 0)']
    aws_cloudwatch_metric_alarm.orders_writes_failing with: {threshold: 0, evaluation_periods: 3, datapoints_to_alarm: 2}
    aws_cloudwatch_metric_alarm.lake_leases_failing.metric_query has: [SystemErrors, DeleteItem, PutItem, Scan, UpdateItem]
# While it polls, it has no subscription; no consumer has the age of an iterator; it may read through its consumer instead.
polling is watched by metrics of the stream | streams.clicks: {}, applications: {lake: {streams: [orders], polling: true, lag_threshold_seconds: 90}, pond: {streams: [orders, clicks]}, well: {streams: [orders], polling: true}}
    aws_cloudwatch_metric_alarm.orders_lake_lag.treat_missing_data: notBreaching
    aws_cloudwatch_metric_alarm.orders_lake_age with: {metric_name: GetRecords.IteratorAgeMilliseconds, threshold: 90000, dimensions: {StreamName: <aws_kinesis_stream.orders.name>}, treat_missing_data: notBreaching}
    aws_cloudwatch_metric_alarm.orders_reads.metric_name: ReadProvisionedThroughputExceeded
    aws_cloudwatch_metric_alarm.* lacks: [orders_pond_age, clicks_pond_age, clicks_reads, clicks_retention]
application that only polls has no consumer | applications.lake: {streams: [orders], polling: only, lag_threshold_seconds: 90}, protected: true
    aws_kinesis_stream_consumer: null
    lake_reader.ReadStreams.actions: GETTING
    lake_reader.SubscribeToConsumers: null
    aws_cloudwatch_metric_alarm.*: [lake_leases, lake_leases_failing, orders_lake_age, orders_reads, orders_retention, orders_writes, orders_writes_failing]
    aws_cloudwatch_dashboard.applications.dashboard_body has: [GetRecords.IteratorAgeMilliseconds, aws_cloudwatch_metric_alarm.orders_lake_age.arn]
records are not got if polling is false | applications: {lake: {streams: [orders], polling: false}, there: {streams: [orders], polling: false, access: PARTNER}}
    lake_reader.ReadStreams.actions: LISTING
    orders_shared.ReadThere.actions: LISTING
# An object has ten tags at most, so those of the provider must not be on it.
manifest in S3 is an encrypted object | manifest_store: s3, emr: {}
    aws_s3_object.lake with: {bucket: <aws_s3_bucket.artifacts.bucket>, key: kinesis-efo/test/lake, content_type: application/json, server_side_encryption: 'aws:kms', kms_key_id: <aws_kms_key.environment_key.arn>, override_provider: {default_tags: {tags: {}}}}
    aws_s3_object.lake.content has: aws_dynamodb_table.lake.arn
    output.manifests.value: {lake: 's3://${aws_s3_bucket.artifacts.bucket}/${aws_s3_object.lake.key}'}
    aws_ssm_parameter.lake_job.value has: s3://kinesis-efo-test-111122223333/kinesis-efo/test/lake
manifest in S3 may have a given bucket | manifest_store: s3, manifest_bucket: manifests, applications.lake: {streams: [orders], batch: true, access: EC2}
    aws_s3_object.lake.bucket: manifests
    aws_s3_bucket: null
    lake_reader.LoadManifest with: {actions: ['s3:GetObject'], resources: ['arn:aws:s3:::manifests/kinesis-efo/test/lake']}
    lake_reader.DecryptManifest.condition.0.values: [s3.eu-west-1.amazonaws.com]
    lake_batch.LoadManifest.resources: ['arn:aws:s3:::manifests/kinesis-efo/test/lake']
pods of a service account get a role | applications.lake.access: {kind: eks, cluster: analytics, namespace: jobs, service_account: lake}
    aws_eks_pod_identity_association: {lake_pods: {cluster_name: analytics, namespace: jobs, service_account: lake, role_arn: <aws_iam_role.lake.arn>}}
any account of EMR on EKS may be trusted | applications.lake.access: {kind: eks, oidc_provider_arn: OIDC, namespace: jobs, service_account: emr-containers-sa-*}
    lake_trust.ServiceAccount.condition.1.test: StringLike
schedule has a group, a role and an alarm | JOB, applications.lake.continuous: false, jobs.0.schedule: 'cron(0 6 * * ? *)', jobs.0.time_zone: Europe/Berlin
    aws_scheduler_schedule_group.schedules.name: kinesis-efo-test
    aws_iam_role.schedules.name: kinesis-efo-test-jobs@schedules
    aws_iam_role.schedules.permissions_boundary: <aws_iam_policy.roles_boundary.arn>
    schedules_trust.Scheduler.principals: [{type: Service, identifiers: [scheduler.amazonaws.com]}]
    schedules_trust.Scheduler.condition has: ['aws:SourceAccount', '111122223333', 'aws:SourceArn', 'arn:aws:scheduler:eu-west-1:111122223333:schedule-group/kinesis-efo-test']
    schedules.StartRuns with: {actions: ['emr-serverless:StartJobRun'], resources: [<aws_emrserverless_application.jobs.arn>]}
    schedules.PassRolesToRuns.resources: ['arn:aws:iam::111122223333:role/kinesis-efo-test-lake']
    schedules.PassRolesToRuns.condition.0.values: [emr-serverless.amazonaws.com]
    aws_cloudwatch_metric_alarm.schedules_failures.metric_query has: [TargetErrorCount, InvocationDroppedCount, AWS/Scheduler, ScheduleGroup]
    aws_ssm_parameter.lake_job.value has: ['"schedule" = "cron(0 6 * * ? *)"', '"timeZone" = "Europe/Berlin"', '"scheduleGroup" = aws_scheduler_schedule_group.schedules.name', '"scheduleRoleArn" = aws_iam_role.schedules.arn']
without a schedule, none is declared | JOB
    aws_scheduler_schedule_group: null
    aws_ssm_parameter.lake_job.value lacks: chedule
application of others is started there | JOB, applications.lake: {streams: [orders], continuous: false, access: {kind: emr-serverless, application_id: 00def}}, jobs.0.target: 'serverless:00def', jobs.0.schedule: rate(1 hour)
    schedules.StartRuns.resources: ['arn:aws:emr-serverless:eu-west-1:111122223333:/applications/00def']
# Metrics Insights adds all samples of a period, so that capacity is one sum a minute.
EMR is watched for failures and capacity | emr: {serverless: {maximum_vcpu: 40}}
    aws_cloudwatch_metric_alarm.jobs_capacity.metric_query.0.expression has: SELECT SUM(CPUAllocated) FROM "AWS/EMRServerless" WHERE ApplicationId =
    aws_cloudwatch_metric_alarm.jobs_capacity with: {threshold: 36, datapoints_to_alarm: 8, evaluation_periods: 15}
    aws_cloudwatch_metric_alarm.jobs_failures.metric_query.0 with: {expression: 'SELECT SUM(FailedJobs) FROM "AWS/EMRServerless" WHERE ApplicationId = ''${aws_emrserverless_application.jobs.id}''', return_data: true, period: 300}
    aws_cloudwatch_metric_alarm.jobs_failures.threshold: 0
"""


@pytest.mark.parametrize(("changes", "expected"), scenarios(STACKS))
def test_settings_become_resources(changes: str, expected: str, synth: Synth) -> None:
    check(synth(changes), expected)


@pytest.mark.parametrize("polling", ["true", "only"])
def test_readers_decrypt_with_former_keys(polling: str, synth: Synth, load: Load) -> None:
    streams = f"streams: {{orders: {{key: KEY, former_keys: {{own: 2027-02-03, {KEY}2: 2027-02-03}}}}}}"
    lake = f"lake: {{streams: [orders], batch: true, polling: {polling}}}"
    given = f"{streams}, applications: {{{lake}, loader: {{streams: [orders], writes: [orders]}}}}"
    stack = synth(given)
    assert stack["resource"]["aws_kinesis_stream"]["orders"]["kms_key_id"] == KEY
    former = ["${aws_kms_key.orders.arn}", f"{KEY}2"]
    for document in ("lake_reader", "lake_batch", "loader_reader"):
        assert statements(stack, document)["DecryptStreams"]["resources"] == [KEY, *former]
    assert statements(stack, "loader_reader")["EncryptStreams"]["resources"] == [KEY], "new records need no former key"
    environment = load(given)
    assert len(literal_policy(environment, "lake").statements["DecryptStreams"].resources) == 3
    assert "aws_kms_key.orders" in {each.address for each in addresses.identities(environment)}
    assert f'"{KEY}2"' in json.dumps([asdict(each) for each in permissions.boundary(environment)])


@pytest.mark.slow
def test_resources_with_an_identity_are_declared_and_protected(load: Load, synth: Synth) -> None:
    environment = load_environment(EXAMPLE).model_copy(update={"protected": True})
    stack = synth(environment)
    identities = {identity.address for identity in addresses.identities(environment)}
    kinds = {address.partition(".")[0] for address in identities}
    assert {"aws_kinesis_stream", "aws_dynamodb_table", "aws_kms_key", "aws_s3_bucket"} <= kinds
    found = {f"{kind}.{name}": each for kind, some in stack["resource"].items() for name, each in some.items()}
    assert {address for address in found if address.partition(".")[0] in kinds} == identities
    assert {address for address, each in found.items() if "prevent_destroy" in str(each.get("lifecycle"))} == identities
    assert all(each["deletion_protection_enabled"] for each in stack["resource"]["aws_dynamodb_table"].values())
    assert "prevent_destroy" not in str(synth())


@pytest.mark.parametrize("region", ["eusc-de-east-1", "us-iso-east-1"])
def test_other_partitions_have_nothing_of_aws(synth: Synth, load: Load, region: str) -> None:
    given = f"region: {region}, PIPELINE, emr: {{}}, applications.lake.access: EC2"
    stack, environment = synth(given), load(given)
    granted = (permissions.change_access(environment), permissions.boundary(environment))
    texts = [json.dumps(stack), *(json.dumps([asdict(each) for each in policy]) for policy in granted)]
    for text in texts:
        assert f"arn:{PARTITIONS[region][0]}:" in text
        assert "arn:aws:" not in text
    via = re.findall(rf"[a-z0-9]+\.{region}\.[a-z0-9.-]+", texts[0])
    assert {each.partition(f".{region}.")[2] for each in via} == {PARTITIONS[region][1]}
    assert statements(stack, "lake_trust")["EmrOnEc2"]["principals"][0]["identifiers"] == ["ec2.amazonaws.com"]


@pytest.mark.parametrize("described", Session().get_data("partitions")["partitions"], ids=lambda each: str(each["id"]))
def test_partitions_are_those_of_botocore(described: dict[str, Any]) -> None:
    wanted = described["id"], described["outputs"]["dnsSuffix"]
    (areas,) = re.findall(r"^\^(.+?)\\-\\w\+\\-\\d\+\$$", described["regionRegex"])
    beginnings = re.sub(r"[()\\]", "", areas).split("|")
    named = [each for each in described["regions"] if each in known_regions()]
    for region in (*named, *(f"{each}-west-9" for each in beginnings)):
        assert (regions.partition(region), regions.dns_suffix(region)) == wanted


@pytest.fixture
def writing(load: Load) -> Environment:
    """An environment with a pipeline, and an application that says where it writes."""
    return load("OURS, PIPELINE")


def test_a_jobs_arguments_refer_to_the_locations(writing: Environment) -> None:
    arguments = json.loads(literal_deployment(writing, "lake"))["arguments"]
    assert arguments == ["--output=s3://lake/raw/x", "--checkpoint", "s3://state-of-lake/a/b", "$outputs", "a$b"]
    assert json.loads(literal_deployment(writing, "lake"))["spark"] == {
        "spark.sql.warehouse.dir": "s3://lake/raw/tables"
    }
    assert set(Names(writing).job_buckets) == {"kinesis-efo-test-111122223333", "lake", "state-of-lake"}


@pytest.mark.parametrize(
    "uri",
    [
        "", "s3://", "s3://b/", "s3://b//x", "s3://B/x", "s3://bucket/x y", "s3://bucket/.", "s3://lake", "s3://lake/raw/",
        "s3://lake/*", "s3://lake/${aws:username}", "s3://lake/a/../b", "s3a://lake/raw",
    ],
)  # fmt: skip
def test_what_is_no_location_is_refused(uri: str) -> None:
    with pytest.raises(ArgumentError, match="a location must be s3://bucket/prefix"):
        Location.parse(uri)


ACCOUNT = "111122223333"
EMR = "applications.lake.access: {kind: eks, cluster: analytics, namespace: jobs}"
POD = f"{EMR}, applications.lake.access.service_account: lake"


@pytest.mark.parametrize("role_name", [None, "Lake_Runtime"])
def test_service_accounts_of_emr_on_eks_are_the_default(role_name: str | None, synth: Synth) -> None:
    stack = synth(f"{EMR}, applications.lake.access.role_name: {role_name}" if role_name else EMR)
    associated = stack["resource"]["aws_eks_pod_identity_association"]
    assert set(associated) == {"lake_client", "lake_driver", "lake_executor"}
    found = {each["service_account"] for each in associated.values()}
    for account in found:
        digits = account.rpartition("-")[2]
        length = len(role_name or "kinesis-efo-test-lake")
        assert int(digits, 36).to_bytes(length, "big").decode() == (role_name or "kinesis-efo-test-lake")
        assert account.startswith("emr-containers-sa-spark-")
        assert f"-{ACCOUNT}-" in account
        assert len(account) <= 253, "the most that Kubernetes takes"
    (trust,) = stack["data"]["aws_iam_policy_document"]["lake_trust"]["statement"]
    assert set(trust["condition"][-1]["values"]) == found


def test_emr_on_eks_needs_a_known_role_name() -> None:
    with pytest.raises(ArgumentError, match=r"PodIdentity of 'c': role_name must be a text, .*; got '\$\{x\}': write"):
        PodIdentity("c", "n").service_accounts(ACCOUNT, "${x}")
    assert PodIdentity("c", "n", "s").service_accounts(ACCOUNT, "${x}") == {"pods": "s"}
    with pytest.raises(ArgumentError, match=r"service_account must be a name; got 'emr-\*': an association"):
        PodIdentity("c", "n", "emr-*")


def test_local_aws_gets_no_associations(load: Load, synth: Synth) -> None:
    assert "aws_eks_pod_identity_association" not in synth(without_associations(load(POD)))["resource"]
    others = load("applications.lake.access: SERVERLESS")
    assert without_associations(others) == others
