"""What the constructs declare in somebody's own app: secure by default, without an environment file."""

from typing import Any

import pytest

from infra.stacks.cdk import S3Bucket  # noqa: F401
from kinesis_efo_infra import (
    Metric,
    ReaderAccess,
    Stream,
    StreamingApplication,
    pin_account,
    policy_for,
)
from kinesis_efo_infra.cdk import CloudwatchMetricAlarm, IamRole, TerraformStack  # noqa: F401
from kinesis_efo_infra.trust import Trust
from tests.support.missing import terraform
from tests.unit.constructs.conftest import Synth, evaluated
from tests.unit.infra.conftest import check, scenarios

ORDERS = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
KEY = "arn:aws:kms:eu-west-1:111122223333:key/1b2c3d4e"
OIDC = "arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/ABC"


def only(declared: dict[str, Any], kind: str) -> Any:
    """The only resource of a type."""
    (found,) = declared["resource"][kind].values()
    return found


PROGRAMS = r"""
occasional reader may be silent | lake(s).consumers['orders'].alarms(continuous=False, application='nightly', environment='prod')
    # Of somebody else's stream the shortest retention is assumed.
    aws_cloudwatch_metric_alarm has: ["'treat_missing_data': 'notBreaching'", "'threshold': 43200000", kinesis-efo/prod/nightly/orders/lag]
    aws_cloudwatch_metric_alarm lacks: "'treat_missing_data': 'breaching'"
unknown consumer is watched by its name | StreamConsumer.from_arn(s, 'given', '${data.terraform_remote_state.o.outputs.arn}', stream=orders(s)).alarms(application='lake')
    aws_cloudwatch_metric_alarm has: "'ConsumerName': '${element(split("
dashboard of polling shows iterator age | lake(s, polling=Polling.ONLY).dashboard(name='lake')
    aws_cloudwatch_dashboard.?.dashboard_body has: GetRecords.IteratorAgeMilliseconds
    aws_cloudwatch_dashboard.?.dashboard_body lacks: [ConsumerName, '"type" = "alarm"']
key may be shared | (key := CustomerKey(s, 'key', alias='shared', description='Records', foreign_readers=['arn:aws:iam::1:root']), [Stream(s, name, name=name, encryption_key=key) for name in ('orders', 'clicks')])
    aws_kms_key.?.policy has: OtherAccounts
consumer of another region may be given | (pinned(s), LeaseTable(s, 't', name='leases'), StreamConsumer.from_arn(s, 'given', CONSUMER.replace('eu-', 'us-'), stream=Stream.from_arn(s, 'theirs', ORDERS.replace('eu-', 'us-'))))
    aws_kinesis_stream_consumer: null
consumers of one name may be on two streams | (app := lake(s, streams={name: Stream(s, name, name=name) for name in ('a', 'b')}), Manifest(s, 'again', application='lake', table=LeaseTable(s, 't', name='leases'), streams=app.consumers, name='/again'))
    aws_kinesis_stream_consumer.* has: [lake_consumer, lake_consumer]
manifest of any size may be an object | lake(s, streams={f'stream-{n}': Stream(s, f's{n}', name=f'stream-{n}') for n in range(20)}, manifest_bucket='manifests')
    aws_s3_object.?.content has: stream-19
consumer of a foreign stream is checked by Terraform | StreamConsumer(s, 'c', stream=orders(s), name='lake', protected=True)
    aws_kinesis_stream_consumer.?.lifecycle.prevent_destroy: true
    aws_kinesis_stream_consumer.?.lifecycle.precondition.0.condition: '${(data.aws_region.kinesis-efo-region.region == "eu-west-1")}'
    aws_kinesis_stream_consumer.?.lifecycle.precondition.1.condition: '${(data.aws_caller_identity.kinesis-efo-account.account_id == "111122223333")}'
    aws_kinesis_stream_consumer.?.lifecycle.precondition.1.error_message has: "StreamConsumer 'c': stream must be of the account that it is deployed to;"
same grant again changes nothing | (o := Stream(s, 'orders', name='orders'), [grant('job') for grant in (o.grant_write, o.grant_batch) * 2])
    aws_iam_role_policy.* has: [write, batch]
    documents lacks: [WriteStreams2, ReadStreams2]
grant is for one stream | (p := policy_for(s), o := orders(s), o.grant_read(p, StreamConsumer.from_arn(s, 'c', CONSUMER, stream=o), polling=False), Stream.from_arn(s, 'clicks', ORDERS.replace('orders', 'clicks')).grant_poll(p), ReaderAccess(s, 'a', application='a', policy=p))
    documents.?.ReadStreams.actions: LISTING
output may be in a declared bucket | lake(s, output=f"s3://{S3Bucket(s, 'lake-bucket', bucket='lake').bucket}/raw", output_key=KEY)
    documents.?.UseObjects.resources has: ':s3:::${aws_s3_bucket.lake-bucket.bucket}/raw/*'
    documents.?.EncryptObjects.resources: [KEY]
stream uses the key of AWS | Stream(s, 'orders', name='orders', encryption_key='aws-managed')
    aws_kinesis_stream.?.kms_key_id: alias/aws/kinesis
    aws_kms_key: null
stream uses a given key | Stream(s, 'orders', name='orders', encryption_key=KEY)
    aws_kinesis_stream.?.kms_key_id: KEY
    aws_kms_key: null
without customer keys nothing is decrypted | lake(s, streams={'orders': Stream(s, 'orders', name='orders', encryption_key='aws-managed')}, encryption_key='aws-managed')
    aws_kms_key: null
    aws_ssm_parameter.?.key_id: null
    aws_ssm_parameter.?.type: SecureString
    aws_dynamodb_table.?.server_side_encryption: {enabled: true}
    documents lacks: kms:Decrypt
application that does not poll gets no records | lake(s, polling=Polling.NEVER)
    aws_kinesis_stream_consumer.* has: lake
    documents has: kinesis:SubscribeToShard
    documents lacks: kinesis:GetRecords
application that only polls has no consumer | lake(s, polling=Polling.ONLY, batch=True)
    aws_kinesis_stream_consumer: null
    aws_ssm_parameter.?.value lacks: consumerArn
    documents has: kinesis:GetRecords
    documents lacks: kinesis:SubscribeToShard
role for a service account trusts its provider | access(s, ServiceAccount(OIDC, 'spark', 'lake'))
    documents has: "'identifiers': ['arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/ABC']"
    aws_iam_instance_profile: null
    aws_iam_role_policy_attachment has: [KEY, aws_iam_policy]
places are Terraform names | lake(s, streams={'orders': Stream(s, 'orders', name='orders', place=Place('orders'))}, batch=True, place=Place('archive', before='lake'))
    aws_kinesis_stream.*: [orders]
    aws_kms_key.*: [archive, orders]
    aws_kinesis_stream_consumer.*: [archive_orders]
    aws_dynamodb_table.*: [archive]
    aws_iam_policy.*: [archive, archive_batch]
    moved has: ["'from': 'aws_dynamodb_table.lake', 'to': 'aws_dynamodb_table.archive'", "'from': 'aws_kinesis_stream_consumer.lake_orders', 'to': 'aws_kinesis_stream_consumer.archive_orders'"]
application takes a lease table | (pinned(s), lake(s, lease_table=LeaseTable.from_name(s, 'leases', 'restored', encryption_key=KEY)))
    aws_dynamodb_table: null
    aws_ssm_parameter.?.value has: arn:aws:dynamodb:eu-west-1:111122223333:table/restored
    documents.?.KeepLeases.resources: [arn:aws:dynamodb:eu-west-1:111122223333:table/restored]
    documents.?.DecryptLeasesAndManifest.resources has: KEY
role gets an inline policy | orders(s).grant(IamRole(s, 'job', assume_role_policy='{}'), 'kinesis:PutRecord')
    aws_iam_role_policy.?.role: <aws_iam_role.job.name>
    documents.?.*: [Grant, NeverRegisterConsumers]
    documents.?.Grant with: {actions: [kinesis:PutRecord], resources: ['arn:aws:kinesis:eu-west-1:111122223333:stream/orders']}
role of an application gets an inline policy | orders(s).grant_write(lake(s, trust=EmrServerless(), streams={'theirs': Stream.from_arn(s, 'theirs', ORDERS)}))
    aws_iam_role_policy.?.role has: aws_iam_role.lake_access_role
ARN of a role stands for its name | (pinned(s), orders(s).grant_write('arn:aws:iam::111122223333:role/spark/job'))
    aws_iam_role_policy.?.role: job
    aws_iam_role_policy.?.lifecycle: null
ARN of a role in an unknown account is checked by Terraform | orders(s).grant_write(THEIRS)
    aws_iam_role_policy.?.lifecycle.precondition.0.condition has: .account_id == "444455556666")}
    aws_iam_role_policy.?.lifecycle.precondition.0.error_message has: call pin_account
resource policies name a role of another account | (pinned(s), c := StreamConsumer(s, 'lake', stream=Stream(s, 'orders', name='orders'), name='lake'), c.grant_read(THEIRS), c.grant_read(THEIRS))
    aws_iam_role_policy: null
    aws_kinesis_resource_policy has: [aws_kinesis_stream.orders, aws_kinesis_stream_consumer.lake]
    documents has: ["'principals': [{'identifiers': ['arn:aws:iam::444455556666:role/analytics/reader'], 'type': 'AWS'}]", SubscribeToShard]
    documents lacks: ReadStreams2
    aws_kms_key.?.policy has: '"Principal":{"AWS":["arn:aws:iam::444455556666:role/analytics/reader"]},"Action":["kms:Decrypt"],"Resource":["*"],"Condition":{"StringEquals":{"kms:ViaService":["kinesis.eu'
service must act for this account | (o := Stream(s, 'orders', name='orders'), o.grant_write(ServicePrincipal('firehose.amazonaws.com')), o.grant_write(ServicePrincipal('firehose.amazonaws.com')), o.grant(ArnPrincipal(THEIRS), 'kinesis:ListShards'), o.add_to_resource_policy(Statement('Own', ('kinesis:PutRecord',), (o.arn,), principals={'AWS': (THEIRS,)})))
    documents.?.*: [Grant, Own, WriteStreams]
    documents.?.WriteStreams.principals: [{type: Service, identifiers: [firehose.amazonaws.com]}]
    documents.?.WriteStreams.condition.0.variable: aws:SourceAccount
    aws_kms_key.?.policy has: EncryptStreams
    aws_kms_key.?.policy lacks: EncryptStreams2
grant is applied before what needs it | LeaseTable.from_name(s, 'leases', 'leases').grant_read_write(a := access(s, Glue())).apply_before(StreamingGlueJob(s, 'job', name='lake', access=a, script='s3://jobs/lake.py'))
    aws_glue_job.?.depends_on has: "['aws_iam_role_policy.leases"
metric is what an alarm watches | alarm(s, StreamConsumer.from_arn(s, 'given', CONSUMER, stream=orders(s)).metric_millis_behind_latest(period=60))
    aws_cloudwatch_metric_alarm.? with: {namespace: AWS/Kinesis, metric_name: SubscribeToShardEvent.MillisBehindLatest, period: 60, statistic: Maximum, dimensions: {StreamName: orders, ConsumerName: lake}}
percentile is an extended statistic | alarm(s, orders(s).metric_get_records_iterator_age_milliseconds(statistic='p99'))
    aws_cloudwatch_metric_alarm.? with: {metric_name: GetRecords.IteratorAgeMilliseconds, extended_statistic: p99, period: 300}
    aws_cloudwatch_metric_alarm.?.statistic: null
"""
THEIRS = "arn:aws:iam::444455556666:role/analytics/reader"
CONSUMER = f"{ORDERS}/consumer/lake:1700000000"


def lake(stack: TerraformStack, **changes: Any) -> StreamingApplication:
    streams = changes.pop("streams", None) or {"orders": Stream.from_arn(stack, "orders", ORDERS)}
    return StreamingApplication(stack, "lake", name="lake", streams=streams, **changes)


def pinned(stack: TerraformStack) -> None:
    pin_account(stack, "111122223333", "eu-west-1")


def orders(stack: TerraformStack) -> Stream:
    return Stream.from_arn(stack, "orders", ORDERS)


def alarm(stack: TerraformStack, metric: Metric) -> None:
    watched = metric.to_alarm_config()
    CloudwatchMetricAlarm(
        stack, "a", alarm_name="a", comparison_operator="GreaterThanThreshold", evaluation_periods=5, **watched
    )


def access(stack: TerraformStack, trust: Trust) -> ReaderAccess:
    policy = policy_for(stack)
    return ReaderAccess(
        stack, "lake", application="lake", policy=policy, trust=trust, role_policies=[KEY], permissions_boundary=KEY
    )


@pytest.mark.parametrize(("program", "expected"), scenarios(PROGRAMS))
def test_constructs_become_resources(program: str, expected: str, stack: TerraformStack, synth: Synth) -> None:
    if "place=" in program:
        terraform()
    evaluated(program, stack, globals())
    check(synth(), expected.replace("KEY", KEY))
