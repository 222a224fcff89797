"""A wrong argument is refused where it is written, with the construct, the value and the remedy."""

import json
from typing import Any

import pytest

from infra.stacks.cdk import S3Bucket  # noqa: F401
from kinesis_efo_infra import (
    ArgumentError,
    LeaseTable,
    Manifest,
    Stream,
    StreamConsumer,
    StreamingApplication,
    document,
    pin_account,
)
from kinesis_efo_infra.cdk import TerraformStack
from kinesis_efo_infra.document import StreamRef
from tests.unit.constructs.conftest import Synth, evaluated
from tests.unit.infra.conftest import rows

ORDERS = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
CONSUMER = f"{ORDERS}/consumer/lake:1700000000"


def orders(stack: TerraformStack) -> Stream:
    return Stream.from_arn(stack, "given", ORDERS)


def manifest(stack: TerraformStack, **changes: Any) -> Manifest:
    table = LeaseTable(stack, "table", name="leases", encryption_key="aws-managed")
    consumer = StreamConsumer.from_arn(stack, "consumer", CONSUMER, stream=orders(stack))
    return Manifest(stack, "m", **{"application": "lake", "table": table, "streams": {"orders": consumer}, **changes})


WRONG = r"""
Stream(s, 'o', name='or ders') => Stream 'o': name must match .*; got 'or ders': choose another name
Stream(s, 'o', name='o', shards=0) => shards must be a whole number from 1 to 10000; got 0: leave it out
Stream(s, 'o', name='o', retention_hours=23) => retention_hours must be .* from 24 to 8760; got 23
Stream(s, 'o', name='o', shard_metrics=['ALL']) => shard_metrics must be one of Inc.*; got 'ALL'
Stream(s, 'o', name='o', ignore_shard_changes=True) => ignore_shard_changes .*; got on-demand: give `shards`
Stream(s, 'o', name='o', encryption_key='alias/mine') => encryption_key must match .*'alias/mine': give 'own'
Stream.from_arn(s, 'o', 'orders') => Stream.from_arn 'o': arn must match .*; got 'orders': give arn:aws:kin
Stream.from_arn(s, 'o', CONSUMER) => arn must match .*for a consumer's, there is StreamConsumer.from_arn
Stream.from_arn(s, 'o', ORDERS, encryption_key='arn:aws:kms:eu-north-1:111122223333:key/1b2c3d4e') => Stream.from_arn 'o': the region of encryption_key must be one of eu-west-1; got 'eu-north-1': a stream's key is
StreamConsumer(s, 'c', stream=orders(s), name='other', import_existing=CONSUMER) => import_existing must be the consumer 'other'; got 'arn:.*lake:1700000000'
StreamConsumer.from_arn(s, 'c', CONSUMER.replace('orders', 'clicks'), stream=orders(s)) => arn must be of a consumer of arn:.*stream/orders; got '.*clicks/consumer/lake:1700000000'
LeaseTable(s, 't', name='ab') => LeaseTable 't': name must match .*; got 'ab'
manifest(s, name='lake') => Manifest 'm': name must match .*; got 'lake': give a full name .* '/'
manifest(s, tier='huge') => tier must be one of standard, advanced; got 'huge'
manifest(s, streams={}) => streams must have at least one; got {}: it would read nothing
manifest(s, environment='the test') => environment must match .*; got 'the test': give `environment`
ReaderAccess(s, 'a', application='a' * 128, policy=policy_for(s)) => ReaderAccess 'a': policy_name must match .*: give policy_name a shorter
StreamingApplication(s, 'a', name='lake', streams={}) => StreamingApplication 'a': streams must have at least one; got {}
StreamingApplication(s, 'a', name='lake', streams={'o': orders(s)}, output='s3://lake/') => StreamingApplication 'a': a location must be s3://bucket/prefix, .*; got 's3://lake/': give a prefix
StreamingApplication(s, 'a', name='lake', streams={'o': orders(s)}, output_key='alias/lake') => output_key must match .*; got 'alias/lake': give the ARN of a key
StreamingApplication(s, 'a', name='a', streams={'o': orders(s)}, polling='always') => polling must be a Polling; got 'always': give Polling.ALLOWED
StreamingApplication(s, 'b', name='b', streams={'o': StreamConsumer(s, 'c', stream=orders(s), name='lake')}, polling=Polling.ONLY) => Polling.ONLY reads without consumers; got one for 'o': give its
# No provider knows the one, and only a newer provider the other.
Stream(s, 'a', name='orders', record_distribution_strategy='AUTO') => Stream 'a': record_distribution_strategy of 'orders' is known to no AWS provider.*got 'AUTO': leave it out
Stream(s, 'a', name='orders', warm_throughput_mib=100) => Stream 'a': warm_throughput_mib of 'orders' is not known to the AWS prov
Stream(s, 'b', name='orders', warm_throughput_mib=100, shards=4) => warm_throughput_mib goes with on-demand; got 4 shards: leave one of them out
orders(s).grant_write('arn:aws:iam::111122223333:user/x') => the role's name must match .*: give a role, its name or its ARN, or an ArnPrincipal
orders(s).grant_write(ReaderAccess(s, 'a', application='a', policy=policy_for(s))) => streaming/a: grants need a role; got none: give `trust`
Stream(s, 'o', name='o').grant_write(ArnPrincipal('*')) => the principal must match .*; got '\*': give the ARN of a role, user or account
orders(s).grant_write(ServicePrincipal('firehose.amazonaws.com')) => streaming/given, grant to write: arn:.*/orders has no resource policy here.*firehose.*have its owner share it
LeaseTable(s, 't', name='leases').grant_read_write(ArnPrincipal('arn:aws:iam::444455556666:root')) => streaming/t, grant to leases: .* has no resource policy here
orders(s).add_to_resource_policy(Statement('A', ('kinesis:ListShards',), (ORDERS,), principals={'AWS': ('111122223333',)})) => streaming/given: a resource policy must be of what is declared here
Stream(s, 'o', name='o').add_to_resource_policy(Statement('A', ('kinesis:ListShards',), (ORDERS,))) => a resource policy must be of .*, with principals in its statements
orders(s).grant('job') => streaming/given, grant: actions must be API actions .*; got \(\)
orders(s).grant('job', 'kinesis:RegisterStreamConsumer') => actions must be API actions that do not register .*: declare a StreamConsumer
LeaseTable.from_name(s, 't', 'arn:aws:dynamodb:eu-west-1:111122223333:table/x') => LeaseTable.from_name 't': name must match .*: give the name of a table, not its ARN
(orders(s), pin_account(s, '111122223333', 'eu-west-1')) => pin_account: the scope must be empty; got one with given: call it first
ServiceAccount('my-cluster', 'spark', 'lake') => oidc_provider_arn must match .*; got 'my-cluster'
Stream.from_arn(s, 'o', ORDERS, key='alias/mine') => Stream\.from_arn has no argument 'key': its arguments are scope, id, arn, encryption_key, former_keys$
StreamConsumer(s, 'c', stream=orders(s), name='lake', retention=1) => StreamConsumer has no argument 'retention': its arguments are scope, id, stream, name, protected,
# What AWS would refuse or jobs would do to each other, some of it when the app is synthesized.
(c := StreamConsumer(s, 'consumer', stream=Stream(s, 'orders', name='orders'), name='lake'), [application(s, each, streams={'o': c}) for each in ('lake', 'pond')]) => \[streaming/consumer\] consumer lake is read by lake in streaming and by pond in streaming, which would take its subscriptions from each other: give each application a consumer of its own
[application(s, each, streams={'o': StreamConsumer.from_arn(s, f'given-{each}', CONSUMER, stream=Stream.from_arn(s, f'o-{each}', ORDERS))}) for each in ('lake', 'pond')] => consumer lake is read by lake in streaming and by pond in streaming
(o := Stream(s, 'orders', name='orders'), [StreamConsumer(s, each, stream=o, name='reader') for each in ('lake', 'pond')]) => 'reader' is declared by streaming/lake and by streaming/pond: .* one of a name
application(s, 'lake', streams=many(s, 20)) => Manifest 'manifest': streams must fit a standard parameter of 4096 bytes; got 20 streams, which take \d+ at least: give tier='advanced', which holds 8 KB, or a `bucket`
(pin_account(s, '111122223333', 'eu-west-1'), application(s, 'lake', streams={'orders': elsewhere(s, 'us-east-1')}, polling=Polling.ONLY)) => stream 'orders' must be in eu-west-1, .*us-east-1.*: declare an application in us
(pin_account(s, '111122223333', 'eu-west-1'), StreamConsumer(s, 'c', stream=elsewhere(s, 'us-east-1'), name='lake')) => StreamConsumer 'c': stream must be of the region that it is deployed to, eu-west-1; got 'arn:.*': correct the ARN, or give StreamConsumer.from_arn, since its owner registers the consumer there
(pin_account(s, '999922223333', 'eu-west-1'), StreamConsumer(s, 'c', stream=elsewhere(s, 'eu-west-1'), name='lake')) => StreamConsumer 'c': stream must be of the account that it is deployed to, 999922223333; got 'arn:
application(s, 'lake', streams={'orders': Stream(s, 'orders', name='orders')}, output=S3Bucket(s, 'b', bucket='lake').bucket) => ^(?!.*TfToken).*'lake': a location .* must still begin with s3://.*: give f's3://
(pin_account(s, '999922223333', 'eu-west-1'), StreamConsumer.from_arn(s, 'given', CONSUMER, stream=elsewhere(s, 'eu-west-1')).alarms()) => alarms of streaming/given: stream must be of the account .*: declare them there
(o := Stream(s, 'orders', name='orders'), o.grant_write('a.b'), o.grant_write('a-b')) => There is already a Construct with name 'write-a-b-document'
StreamConsumer(s, 'c', stream=Stream(s, 'orders', name='orders'), name='lake').alarms(lag_threshold_seconds=0) => lag_threshold_seconds must be a whole number from 1 to .*; got 0: give seconds
"""


def elsewhere(stack: TerraformStack, region: str) -> Stream:
    return Stream.from_arn(stack, "theirs", ORDERS.replace("eu-west-1", region))


def application(stack: TerraformStack, name: str, **changes: Any) -> StreamingApplication:
    return StreamingApplication(stack, name, **{"name": name, "encryption_key": "aws-managed", **changes})


def many(stack: TerraformStack, count: int) -> dict[str, Stream]:
    names = [f"stream-{n}" for n in range(count)]
    return {name: Stream(stack, name, name=name, encryption_key="aws-managed") for name in names}


@pytest.mark.parametrize(("wrong", "message"), rows(WRONG))
def test_wrong_program_is_refused(wrong: str, message: str, stack: TerraformStack, synth: Synth) -> None:
    with pytest.raises((ArgumentError, RuntimeError, TypeError), match=message):
        (evaluated(wrong, stack, globals()), synth())


def test_derived_construct_may_pass_keywords_on(stack: TerraformStack) -> None:
    class Audited(Stream):
        def __init__(self, scope: TerraformStack, place: str, **named: Any) -> None:
            super().__init__(scope, place, **named)

        @classmethod
        def from_arn(cls, *given: Any) -> Stream:  # type: ignore[override]
            return Stream.from_arn(*given)

    assert isinstance(Audited(stack, "o", name="orders", encryption_key="aws-managed"), Stream)
    assert Audited.from_arn(stack, "given", ORDERS).arn == ORDERS


def test_size_is_what_terraform_writes(stack: TerraformStack) -> None:
    pin_account(stack, "111122223333", "eu-central-1")
    here = "eu-central-1:111122223333"
    with pytest.raises(ArgumentError) as caught:
        application(stack, "lake", streams=many(stack, 20))
    table, arn = "kinesis-efo-streaming-lake", f"arn:aws:kinesis:{here}:stream/{{}}".format
    names = {key: arn(key) for key in (f"stream-{n}" for n in range(20))}
    written = document.manifest(
        application="lake",
        environment="streaming",
        region="eu-central-1",
        table_name=table,
        table_arn=f"arn:aws:dynamodb:{here}:table/{table}",
        streams={key: StreamRef(key, each, f"{each}/consumer/lake:1700000000") for key, each in names.items()},
    )
    assert f"which take {len(json.dumps(written, separators=(',', ':')))} at least" in str(caught.value)
