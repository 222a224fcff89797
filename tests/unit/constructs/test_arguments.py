"""A wrong argument is refused where it is written, with the construct, the value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from kinesis_efo_infra import ArgumentError, LeaseTable, Manifest, Stream, StreamConsumer
from kinesis_efo_infra.cdk import TerraformStack
from tests.unit.constructs.conftest import evaluated
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
Stream(s, 'o', name='o', shards=True) => shards must be .*; got True
Stream(s, 'o', name='o', retention_hours=23) => retention_hours must be .* from 24 to 8760; got 23
Stream(s, 'o', name='o', retention_hours=8761) => retention_hours must be .*; got 8761
Stream(s, 'o', name='o', max_record_kib=1) => max_record_kib must be .* from 1024 to 10240; got 1
Stream(s, 'o', name='o', shard_metrics=['ALL']) => shard_metrics must be one of Inc.*; got 'ALL'
Stream(s, 'o', name='o', ignore_shard_changes=True) => ignore_shard_changes .*; got on-demand: give `shards`
Stream(s, 'o', name='o', encryption_key='alias/mine') => encryption_key must match .*'alias/mine': give 'own'
Stream.from_arn(s, 'o', 'orders') => Stream.from_arn 'o': arn must match .*; got 'orders': give arn:aws:kin
Stream.from_arn(s, 'o', CONSUMER) => arn must match .*for a consumer's, there is StreamConsumer.from_arn
Stream.from_arn(s, 'o', ORDERS, encryption_key='own') => encryption_key must match .*; got 'own'
Stream.from_arn(s, 'o', ORDERS, encryption_key='arn:aws:kms:eu-north-1:111122223333:key/1b2c3d4e') => Stream.from_arn 'o': the region of encryption_key must be one of eu-west-1; got 'eu-north-1': a stream's key is
StreamConsumer(s, 'c', stream=orders(s), name='') => StreamConsumer 'c': name must match .*; got ''
StreamConsumer(s, 'c', stream=orders(s), name='other', import_existing=CONSUMER) => import_existing must be the consumer 'other'; got 'arn:.*lake:1700000000'
StreamConsumer.from_arn(s, 'c', CONSUMER.replace('orders', 'clicks'), stream=orders(s)) => arn must be of a consumer of arn:.*stream/orders; got '.*clicks/consumer/lake:1700000000'
StreamConsumer.from_arn(s, 'c', ORDERS, stream=orders(s)) => StreamConsumer.from_arn 'c': arn must match
LeaseTable(s, 't', name='ab') => LeaseTable 't': name must match .*; got 'ab'
manifest(s, name='lake') => Manifest 'm': name must match .*; got 'lake': give a full name .* '/'
manifest(s, tier='huge') => tier must be one of standard, advanced; got 'huge'
manifest(s, streams={}) => streams must have at least one; got {}: it would read nothing
manifest(s, environment='the test') => environment must match .*; got 'the test': give `environment`
ReaderAccess(s, 'a', application='a' * 128, policy=policy_for(s)) => ReaderAccess 'a': policy_name must match .*: give policy_name a shorter
StreamingApplication(s, 'a', name='lake', streams={}) => StreamingApplication 'a': streams must have at least one; got {}
StreamingApplication(s, 'a', name='lake', streams={'o': orders(s)}, output='s3://lake/') => StreamingApplication 'a': a location must be s3://bucket/prefix, .*; got 's3://lake/': give a prefix
StreamingApplication(s, 'a', name='lake', streams={'o': orders(s)}, output_key='alias/lake') => output_key must match .*; got 'alias/lake': give the ARN of a key
StreamingApplication(s, 'a', name='la ke', streams={'o': orders(s)}) => name must match .*; got 'la ke'
StreamingApplication(s, 'a', name='a', streams={'o': orders(s)}, polling='always') => polling must be a Polling; got 'always': give Polling.ALLOWED
StreamingApplication(s, 'b', name='b', streams={'o': StreamConsumer(s, 'c', stream=orders(s), name='lake')}, polling=Polling.ONLY) => Polling.ONLY reads without consumers; got one for 'o': give its
# No provider knows the one, and only a newer provider the other.
Stream(s, 'a', name='orders', record_distribution_strategy='AUTO') => Stream 'a': record_distribution_strategy of 'orders' is known to no AWS provider.*got 'AUTO': leave it out
Stream(s, 'a', name='orders', warm_throughput_mib=100) => Stream 'a': warm_throughput_mib of 'orders' is not known to the AWS prov
Stream(s, 'b', name='orders', warm_throughput_mib=100, shards=4) => warm_throughput_mib goes with on-demand; got 4 shards: leave one of them out
Stream(s, 'c', name='orders', warm_throughput_mib=0) => warm_throughput_mib must be a whole number from 1 to 10240; got 0
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
LeaseTable.from_name(s, 't', 'leases', encryption_key='own') => encryption_key must match .*; got 'own': give the ARN of its key
(orders(s), pin_account(s, '111122223333', 'eu-west-1')) => pin_account: the scope must be empty; got one with given: call it first
ServiceAccount('my-cluster', 'spark', 'lake') => oidc_provider_arn must match .*; got 'my-cluster'
"""


@pytest.mark.parametrize(("wrong", "message"), rows(WRONG))
def test_wrong_argument_is_refused(wrong: str, message: str, stack: TerraformStack) -> None:
    with pytest.raises(ArgumentError, match=message):
        evaluated(wrong, stack, globals())


KEYWORDS = r"""
Stream.from_arn(s, 'o', ORDERS, key='alias/mine') => Stream\.from_arn has no argument 'key': its arguments are scope, id, arn, encryption_key, former_keys$
LeaseTable.from_name(s, 't', 'leases', key='alias/mine') => LeaseTable\.from_name has no argument 'key': its arguments are scope, id, name, encryption_key$
StreamConsumer(s, 'c', stream=orders(s), name='lake', retention=1) => StreamConsumer has no argument 'retention': its arguments are scope, id, stream, name, protected,
"""


@pytest.mark.parametrize(("wrong", "message"), rows(KEYWORDS))
def test_wrong_keyword_is_refused_with_the_right_ones(wrong: str, message: str, stack: TerraformStack) -> None:
    with pytest.raises(TypeError, match=message):
        evaluated(wrong, stack, globals())


def test_derived_construct_may_pass_keywords_on(stack: TerraformStack) -> None:
    class Audited(Stream):
        def __init__(self, scope: TerraformStack, place: str, **named: Any) -> None:
            super().__init__(scope, place, **named)

        @classmethod
        def from_arn(cls, *given: Any) -> Stream:  # type: ignore[override]
            return Stream.from_arn(*given)

    assert isinstance(Audited(stack, "o", name="orders", encryption_key="aws-managed"), Stream)
    assert Audited.from_arn(stack, "given", ORDERS).arn == ORDERS


def test_unknown_values_are_not_checked(stack: TerraformStack) -> None:
    given = Stream(stack, "given", name="orders", encryption_key="aws-managed")
    again = Stream.from_arn(stack, "again", given.arn)
    StreamConsumer.from_arn(stack, "lake", "${data.terraform_remote_state.owner.outputs.consumer}", stream=again)
    assert "${" in again.name
