"""A wrong argument is refused where it is written, with the construct, the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinesis_efo_infra import (
    ArgumentError,
    LeaseTable,
    Manifest,
    ReaderAccess,
    ServiceAccount,
    Stream,
    StreamConsumer,
    StreamingApplication,
    pin_account,
    policy_for,
)
from kinesis_efo_infra.cdk import TerraformStack

ORDERS = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
CONSUMER = f"{ORDERS}/consumer/lake:1700000000"


def orders(stack: TerraformStack) -> Stream:
    return Stream.from_arn(stack, "given", ORDERS)


def manifest(stack: TerraformStack, **changes: Any) -> Manifest:
    table = LeaseTable(stack, "table", name="leases", encryption_key="aws-managed")
    consumer = StreamConsumer.from_arn(stack, "consumer", CONSUMER, stream=orders(stack))
    return Manifest(stack, "m", **{"application": "lake", "table": table, "streams": {"orders": consumer}, **changes})


WRONG: list[tuple[Callable[[TerraformStack], Any], str]] = [
    (lambda s: Stream(s, "o", name="or ders"), r"Stream 'o': name must match .*; got 'or ders': choose another name"),
    (lambda s: Stream(s, "o", name="a" * 129), r"Stream 'o': name must match"),
    (
        lambda s: Stream(s, "o", name="o", shards=0),
        r"shards must be a whole number from 1 to 10000; got 0: leave it out",
    ),
    (lambda s: Stream(s, "o", name="o", shards=True), r"shards must be .*; got True"),
    (lambda s: Stream(s, "o", name="o", shards=1.5), r"shards must be .*; got 1.5"),  # type: ignore[arg-type]
    (lambda s: Stream(s, "o", name="o", retention_hours=23), r"retention_hours must be .* from 24 to 8760; got 23"),
    (lambda s: Stream(s, "o", name="o", retention_hours=8761), r"retention_hours must be .*; got 8761"),
    (lambda s: Stream(s, "o", name="o", max_record_kib=1), r"max_record_kib must be .* from 1024 to 10240; got 1"),
    (lambda s: Stream(s, "o", name="o", shard_metrics=["ALL"]), r"shard_metrics must be one of Inc.*; got 'ALL'"),
    (
        lambda s: Stream(s, "o", name="o", ignore_shard_changes=True),
        r"ignore_shard_changes .*; got on-demand: give `shards`",
    ),
    (
        lambda s: Stream(s, "o", name="o", encryption_key="alias/mine"),
        r"encryption_key must match .*'alias/mine': give 'own'",
    ),
    (
        lambda s: Stream.from_arn(s, "o", "orders"),
        r"Stream.from_arn 'o': arn must match .*; got 'orders': give arn:aws:kin",
    ),
    (
        lambda s: Stream.from_arn(s, "o", CONSUMER),
        r"arn must match .*for a consumer's, there is StreamConsumer.from_arn",
    ),
    (lambda s: Stream.from_arn(s, "o", ORDERS, encryption_key="own"), r"encryption_key must match .*; got 'own'"),
    (
        lambda s: Stream.from_arn(s, "o", ORDERS, encryption_key="arn:aws:kms:eu-north-1:111122223333:key/1b2c3d4e"),
        r"Stream.from_arn 'o': the region of encryption_key must be one of eu-west-1; got 'eu-north-1': a stream's key is",
    ),
    (lambda s: StreamConsumer(s, "c", stream=orders(s), name=""), r"StreamConsumer 'c': name must match .*; got ''"),
    (
        lambda s: StreamConsumer(s, "c", stream=orders(s), name="other", import_existing=CONSUMER),
        r"import_existing must be the consumer 'other'; got 'arn:.*lake:1700000000'",
    ),
    (
        lambda s: StreamConsumer.from_arn(s, "c", CONSUMER.replace("orders", "clicks"), stream=orders(s)),
        r"arn must be of a consumer of arn:.*stream/orders; got '.*clicks/consumer/lake:1700000000'",
    ),
    (
        lambda s: StreamConsumer.from_arn(s, "c", ORDERS, stream=orders(s)),
        r"StreamConsumer.from_arn 'c': arn must match",
    ),
    (lambda s: LeaseTable(s, "t", name="ab"), r"LeaseTable 't': name must match .*; got 'ab'"),
    (lambda s: manifest(s, name="lake"), r"Manifest 'm': name must match .*; got 'lake': give a full name .* '/'"),
    (lambda s: manifest(s, tier="huge"), r"tier must be one of standard, advanced; got 'huge'"),
    (lambda s: manifest(s, streams={}), r"streams must have at least one; got {}: it would read nothing"),
    (lambda s: manifest(s, environment="the test"), r"environment must match .*; got 'the test': give `environment`"),
    (
        lambda s: ReaderAccess(s, "a", application="a" * 128, policy=policy_for(s)),
        r"ReaderAccess 'a': policy_name must match .*: give policy_name a shorter",
    ),
    (
        lambda s: StreamingApplication(s, "a", name="lake", streams={}),
        r"StreamingApplication 'a': streams must have at least one; got {}",
    ),
    (
        lambda s: StreamingApplication(s, "a", name="lake", streams={"o": orders(s)}, output="s3://lake/"),
        r"StreamingApplication 'a': a location must be s3://bucket/prefix, .*; got 's3://lake/': give a prefix",
    ),
    (
        lambda s: StreamingApplication(s, "a", name="lake", streams={"o": orders(s)}, output_key="alias/lake"),
        r"output_key must match .*; got 'alias/lake': give the ARN of a key",
    ),
    (
        lambda s: StreamingApplication(s, "a", name="la ke", streams={"o": orders(s)}),
        r"name must match .*; got 'la ke'",
    ),
    (lambda s: orders(s).grant_write("arn:aws:iam::111122223333:role/x"), r"role's name must match .*, not its ARN"),
    (
        lambda s: (orders(s), pin_account(s, "111122223333", "eu-west-1")),
        r"pin_account: the scope must be empty; got one with given: call it first",
    ),
    (lambda _: ServiceAccount("my-cluster", "spark", "lake"), r"oidc_provider_arn must match .*; got 'my-cluster'"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_argument_is_refused(
    wrong: Callable[[TerraformStack], Any], message: str, stack: TerraformStack
) -> None:
    with pytest.raises(ArgumentError, match=message):
        wrong(stack)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda s: Stream.from_arn(s, "o", ORDERS, key="alias/mine"),  # type: ignore[call-arg]
            r"Stream\.from_arn has no argument 'key': its arguments are scope, id, arn, encryption_key, former_keys$",
        ),
        (
            lambda s: StreamConsumer(s, "c", stream=orders(s), name="lake", retention=1),  # type: ignore[call-arg]
            r"StreamConsumer has no argument 'retention': its arguments are scope, id, stream, name, protected, ",
        ),
    ],
)
def test_a_wrong_keyword_is_refused_with_the_right_ones(
    wrong: Callable[[TerraformStack], Any], message: str, stack: TerraformStack
) -> None:
    with pytest.raises(TypeError, match=message):
        wrong(stack)


def test_a_construct_of_ones_own_may_pass_keywords_on(stack: TerraformStack) -> None:
    class Audited(Stream):
        def __init__(self, scope: TerraformStack, place: str, **named: Any) -> None:
            super().__init__(scope, place, **named)

        @classmethod
        def from_arn(cls, *given: Any) -> Stream:  # type: ignore[override]
            return Stream.from_arn(*given)

    assert isinstance(Audited(stack, "o", name="orders", encryption_key="aws-managed"), Stream)
    assert Audited.from_arn(stack, "given", ORDERS).arn == ORDERS


def test_what_only_terraform_knows_is_not_checked(stack: TerraformStack) -> None:
    given = Stream(stack, "given", name="orders", encryption_key="aws-managed")
    again = Stream.from_arn(stack, "again", given.arn)
    StreamConsumer.from_arn(stack, "lake", "${data.terraform_remote_state.owner.outputs.consumer}", stream=again)
    assert "${" in again.name
