"""A stand-in for Terraform's AWS provider, with its real schemas and without AWS, for real Terraform (TF_REATTACH_PROVIDERS).

Runs as a script in a separate environment (`tf`, `grpcio`, `msgpack`, `boto3`), with schemas and socket as arguments. It answers
as the provider does for everything that Terraform itself checks: types, references, cycles, replacements, policy documents, ARNs.
It does not know what AWS would refuse. If the configuration or AWS_ENDPOINT_URL names an endpoint for Kinesis, it creates, changes and
deletes streams, consumers, resource policies, tables, parameters and buckets there, reads streams and parameters, and finds there
what is imported.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from concurrent import futures
from functools import cache
from typing import Any

import grpc
import msgpack
from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc

Json = dict[str, Any]

UNKNOWN = msgpack.ExtType(0, b"\x00")
SOURCE = "registry.terraform.io/hashicorp/aws"
# Attributes that the real provider cannot change in place ("Forces new resource" in its documentation).
REPLACES = {
    "aws_cloudwatch_dashboard": ("dashboard_name",),
    "aws_cloudwatch_metric_alarm": ("alarm_name",),
    "aws_dynamodb_table": ("name", "hash_key", "range_key"),
    "aws_emrserverless_application": ("name", "type"),
    "aws_iam_instance_profile": ("name",),
    "aws_iam_policy": ("name", "description"),
    "aws_iam_role": ("name",),
    "aws_iam_role_policy": ("name", "role"),
    "aws_iam_role_policy_attachment": ("role", "policy_arn"),
    "aws_kinesis_resource_policy": ("resource_arn",),
    "aws_kinesis_stream": ("name",),
    "aws_kinesis_stream_consumer": ("name", "stream_arn"),
    "aws_kms_alias": ("name",),
    "aws_eks_pod_identity_association": ("cluster_name", "namespace", "service_account"),
    "aws_s3_bucket": ("bucket",),
    "aws_s3_object": ("bucket", "key"),
    "aws_security_group": ("name", "description", "vpc_id"),
    "aws_ssm_parameter": ("name",),
}
# Attributes that the real provider marks ("always marked as sensitive", in its documentation).
SENSITIVE = {"aws_ssm_parameter": ("value",)}
# ARNs that AWS gives; others are of IAM, with a name. What identifies a resource to Terraform, if it is not its ARN.
ARNS = {
    "aws_kinesis_stream": "kinesis:{at}:stream/{name}",
    "aws_dynamodb_table": "dynamodb:{at}:table/{name}",
    "aws_ssm_parameter": "ssm:{at}:parameter{name}",
    "aws_kms_key": "kms:{at}:key/{uuid}",
    "aws_s3_bucket": "s3:::{bucket}",
    "aws_s3_object": "s3:::{bucket}/{key}",
    "aws_eks_pod_identity_association": "eks:{at}:podidentityassociation/{cluster_name}/a-{short}",
    "aws_emrserverless_application": "emr-serverless:{at}:/applications/00{short}",
    "aws_scheduler_schedule_group": "scheduler:{at}:schedule-group/{name}",
    "aws_cloudwatch_metric_alarm": "cloudwatch:{at}:alarm:{alarm_name}",
    "aws_security_group": "ec2:{at}:security-group/sg-{short}",
    "aws_iam_openid_connect_provider": "iam::{account}:oidc-provider/{url}",
    "aws_iam_role": "iam::{account}:role{path}{name}",
    "aws_iam_policy": "iam::{account}:policy{path}{name}",
}
NOT_BY_ARN = {
    "aws_s3_bucket": "{bucket}",
    "aws_s3_object": "{key}",
    "aws_eks_pod_identity_association": "a-{short}",
    "aws_emrserverless_application": "00{short}",
    "aws_scheduler_schedule_group": "{name}",
    "aws_security_group": "sg-{short}",
}
SCHEMAS: dict[str, Json] = {}
CONFIG: Json = {}


def schema(kind: str) -> pb.Schema:
    return pb.Schema(version=0, block=_block(SCHEMAS[kind], SENSITIVE.get(kind, ())))


def _block(block: Json, sensitive: tuple[str, ...] = ()) -> pb.Schema.Block:
    nested = pb.Schema.NestedBlock
    modes = {"list": nested.LIST, "set": nested.SET, "single": nested.SINGLE}
    return pb.Schema.Block(
        attributes=[
            pb.Schema.Attribute(
                name=each["name"],
                type=json.dumps(each["type"]).encode(),
                required=each["required"],
                optional=each["optional"],
                computed=each["computed"],
                sensitive=each["name"] in sensitive,
            )
            for each in block["attrs"]
        ],
        block_types=[
            nested(
                type_name=each["name"],
                block=_block(each["block"]),
                nesting=modes[each["nesting"]],
                min_items=each["min"],
                max_items=each["max"],
            )
            for each in block["blocks"]
        ],
    )


@cache
def schemas() -> pb.GetProviderSchema.Response:
    """All schemas, for which every command of Terraform asks."""
    return pb.GetProviderSchema.Response(
        provider=schema("provider"),
        resource_schemas={kind: schema(kind) for kind in SCHEMAS if kind.startswith("aws_")},
        data_source_schemas={kind[5:]: schema(kind) for kind in SCHEMAS if kind.startswith("data.")},
    )


def decode(value: pb.DynamicValue) -> Any:
    if value.msgpack:
        return msgpack.unpackb(value.msgpack, raw=False, strict_map_key=False)
    return json.loads(value.json)


def encode(value: Any) -> pb.DynamicValue:
    return pb.DynamicValue(msgpack=msgpack.packb(value, use_bin_type=True))


def walk(block: Json, value: Any, change: Callable[[Json, Any], Any]) -> Any:
    """Apply a change to every attribute, including those of nested blocks."""
    if not isinstance(value, dict):
        return value
    changed = dict(value)
    for attribute in block["attrs"]:
        changed[attribute["name"]] = change(attribute, value.get(attribute["name"]))
    for nested in block["blocks"]:
        inner = value.get(nested["name"])
        changed[nested["name"]] = (
            [walk(nested["block"], each, change) for each in inner]
            if isinstance(inner, list)
            else walk(nested["block"], inner, change)
        )
    return changed


def policy(config: Json) -> str:
    """Render an `aws_iam_policy_document`."""

    def statement(each: Json) -> Json:
        rendered: Json = {"Effect": each.get("effect") or "Allow"}
        if each.get("sid"):
            rendered["Sid"] = each["sid"]
        for name, title in (
            ("actions", "Action"),
            ("not_actions", "NotAction"),
            ("resources", "Resource"),
            ("not_resources", "NotResource"),
        ):
            if each.get(name):
                rendered[title] = each[name][0] if len(each[name]) == 1 else sorted(each[name])
        if each.get("principals"):
            rendered["Principal"] = {p["type"]: p["identifiers"] for p in each["principals"]}
        for condition in each.get("condition") or []:
            tests = rendered.setdefault("Condition", {})
            tests.setdefault(condition["test"], {})[condition["variable"]] = condition["values"]
        return rendered

    statements = [statement(each) for each in config.get("statement") or []]
    return json.dumps({"Version": config.get("version") or "2012-10-17", "Statement": statements}, indent=2)


def identity(kind: str, planned: Json) -> Json:
    """The computed attributes of a resource, in the form that AWS gives them."""
    # As long as those of AWS, since what is written of them must fit policies and parameters.
    unique = str(uuid.uuid4())
    short = unique.replace("-", "")[:14]
    given = {"account": account(), "at": f"{region()}:{account()}", "uuid": unique, "short": short}
    texts = {name: value for name, value in planned.items() if isinstance(value, str)}
    named = {"name": "none", "path": "/", **texts, **given}
    # The second of a consumer's registration is in its ARN.
    if kind == "aws_kinesis_stream_consumer":
        arn = f"{planned['stream_arn']}/consumer/{planned['name']}:{time.time_ns() // 1_000_000_000}"
    else:
        arn = "arn:aws:" + ARNS.get(kind, f"iam::{{account}}:{kind.removeprefix('aws_iam_')}/{{name}}").format(**named)
    known = {"arn": arn.replace("https://", ""), "key_id": unique, "association_id": f"a-{short}"}
    if kind in NOT_BY_ARN:
        known["id"] = NOT_BY_ARN[kind].format(**named)
    known |= create(kind, planned)
    return {"id": known["arn"], **known}


def region() -> str:
    return CONFIG.get("region") or "us-east-1"


def account() -> str:
    return (CONFIG.get("allowed_account_ids") or ["123456789012"])[0]


def asked(kind: str) -> Json:
    """What a data source says of where the provider works."""
    return {
        "aws_caller_identity": {"account_id": account()},
        "aws_region": {"region": region()},
        "aws_partition": {"partition": "aws", "dns_suffix": "amazonaws.com"},
    }.get(kind, {})


def endpoint() -> str | None:
    """The endpoint of local AWS, if there is one."""
    named = next((each["kinesis"] for each in CONFIG.get("endpoints") or [] if each.get("kinesis")), None)
    return named or os.environ.get("AWS_ENDPOINT_URL")


def client(service: str) -> Any:
    """A client of local AWS."""
    return made(service, endpoint(), CONFIG["region"], CONFIG.get("access_key"), CONFIG.get("secret_key"))


@cache
def made(service: str, url: str | None, region: str, access_key: str | None, secret_key: str | None) -> Any:
    # To make a client takes longer than to plan a stack.
    import boto3

    keys = {"aws_access_key_id": access_key, "aws_secret_access_key": secret_key}
    return boto3.client(service, endpoint_url=url, region_name=region, **keys)


def create(kind: str, planned: Json) -> Json:
    """Create a resource in local AWS, if there is one; returns the attributes that local AWS decides."""
    if endpoint() is None:
        return {}
    match kind:
        case "aws_kinesis_stream":
            shards = {"ShardCount": int(planned["shard_count"])} if planned.get("shard_count") else {}
            mode = {"StreamMode": planned["stream_mode_details"][0]["stream_mode"]}
            client("kinesis").create_stream(StreamName=planned["name"], StreamModeDetails=mode, **shards)
            change_stream(planned)
            return {"arn": summary(planned["name"])["StreamARN"]}
        case "aws_kinesis_stream_consumer":
            answer = client("kinesis").register_stream_consumer(
                StreamARN=planned["stream_arn"], ConsumerName=planned["name"]
            )
            return {"arn": answer["Consumer"]["ConsumerARN"]}
        case "aws_dynamodb_table":
            answer = client("dynamodb").create_table(
                TableName=planned["name"],
                KeySchema=[{"AttributeName": planned["hash_key"], "KeyType": "HASH"}],
                AttributeDefinitions=[
                    {"AttributeName": a["name"], "AttributeType": a["type"]} for a in planned["attribute"]
                ],
                BillingMode=planned["billing_mode"],
                DeletionProtectionEnabled=bool(planned.get("deletion_protection_enabled")),
            )
            return {"arn": answer["TableDescription"]["TableArn"]}
        case "aws_kms_key":
            key = client("kms").create_key()["KeyMetadata"]
            return {"arn": key["Arn"], "key_id": key["KeyId"]}
        case "aws_kinesis_resource_policy":
            client("kinesis").put_resource_policy(ResourceARN=planned["resource_arn"], Policy=planned["policy"])
        case "aws_emrserverless_application":
            names = ("name", "release_label", "type", "architecture")
            given = {each.replace("_l", "L"): planned[each] for each in names}
            answer = client("emr-serverless").create_application(**given)
            return {"id": answer["applicationId"], "arn": answer["arn"]}
        case "aws_scheduler_schedule_group":
            client("scheduler").create_schedule_group(Name=planned["name"])
        case "aws_ssm_parameter":
            put_parameter(planned)
        case "aws_s3_object":
            put_object(planned)
        case "aws_s3_bucket":
            place = {"LocationConstraint": CONFIG["region"]}
            client("s3").create_bucket(Bucket=planned["bucket"], CreateBucketConfiguration=place)
    return {}


def protect_table(planned: Json) -> None:
    """Protect a table of local AWS from deletion as planned, or not any more."""
    protected = bool(planned.get("deletion_protection_enabled"))
    client("dynamodb").update_table(TableName=planned["name"], DeletionProtectionEnabled=protected)


def summary(stream: str) -> Json:
    return client("kinesis").describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]


def change_stream(planned: Json) -> None:
    """Make a stream of local AWS what is planned, where it differs."""
    kinesis, found, name = client("kinesis"), summary(planned["name"]), planned["name"]
    hours, before = int(planned["retention_period"] or 24), found["RetentionPeriodHours"]
    if hours > before:
        kinesis.increase_stream_retention_period(StreamName=name, RetentionPeriodHours=hours)
    elif hours < before:
        kinesis.decrease_stream_retention_period(StreamName=name, RetentionPeriodHours=hours)
    wanted, reported = (
        set(planned.get("shard_level_metrics") or []),
        set(found["EnhancedMonitoring"][0]["ShardLevelMetrics"]),
    )
    if more := wanted - reported:
        kinesis.enable_enhanced_monitoring(StreamName=name, ShardLevelMetrics=sorted(more))
    if less := reported - wanted:
        kinesis.disable_enhanced_monitoring(StreamName=name, ShardLevelMetrics=sorted(less))
    if planned.get("encryption_type") == "KMS" and found.get("KeyId") != planned["kms_key_id"]:
        kinesis.start_stream_encryption(StreamName=name, EncryptionType="KMS", KeyId=planned["kms_key_id"])


def read_stream(current: Json) -> Json | None:
    """Read a stream from local AWS; None if it is not there any more."""
    kinesis = client("kinesis")
    try:
        found = summary(current["name"])
    except kinesis.exceptions.ResourceNotFoundException:
        return None
    metrics = found["EnhancedMonitoring"][0]["ShardLevelMetrics"]
    return {
        **current,
        "retention_period": found["RetentionPeriodHours"],
        "encryption_type": found["EncryptionType"],
        "kms_key_id": found.get("KeyId"),
        "shard_level_metrics": metrics or None,
    }


def found(kind: str, given: str) -> Json:
    """What AWS says of something that is imported by its name or ARN: from local AWS, if there is one."""
    match kind:
        case "aws_kinesis_stream" if endpoint():
            there = summary(given)
            mode = there["StreamModeDetails"]["StreamMode"]
            shards = {"shard_count": there["OpenShardCount"]} if mode == "PROVISIONED" else {}
            named = {"id": there["StreamARN"], "arn": there["StreamARN"], "name": given}
            return {**read_stream(named), **shards, "stream_mode_details": [{"stream_mode": mode}]}
        case "aws_kinesis_stream_consumer":
            if endpoint():
                client("kinesis").describe_stream_consumer(ConsumerARN=given)
            stream, _, name = given.partition("/consumer/")
            return {"id": given, "arn": given, "stream_arn": stream, "name": name.partition(":")[0]}
        case "aws_dynamodb_table" if endpoint():
            table = client("dynamodb").describe_table(TableName=given)["Table"]
            keys = {each["KeyType"]: each["AttributeName"] for each in table["KeySchema"]}
            billing = table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
            schema = {"hash_key": keys["HASH"], "range_key": keys.get("RANGE"), "billing_mode": billing}
            attributes = [
                {"name": a["AttributeName"], "type": a["AttributeType"]} for a in table["AttributeDefinitions"]
            ]
            return {"id": given, "arn": table["TableArn"], "name": given, **schema, "attribute": attributes}
    service = {"aws_kinesis_stream": "kinesis:{}:{}:stream", "aws_dynamodb_table": "dynamodb:{}:{}:table"}[kind]
    arn = f"arn:aws:{service.format(CONFIG['region'], CONFIG['allowed_account_ids'][0])}/{given}"
    return {"id": given, "name": given, "hash_key": "leaseKey", "arn": arn}


# The service and call that delete a resource from local AWS, and the attributes that the call is given.
DELETES = {
    "aws_emrserverless_application": ("emr-serverless", "delete_application", {"applicationId": "id"}),
    "aws_kinesis_stream": ("kinesis", "delete_stream", {"StreamName": "name"}),
    "aws_kinesis_stream_consumer": ("kinesis", "deregister_stream_consumer", {"ConsumerARN": "arn"}),
    "aws_kinesis_resource_policy": ("kinesis", "delete_resource_policy", {"ResourceARN": "resource_arn"}),
    "aws_dynamodb_table": ("dynamodb", "delete_table", {"TableName": "name"}),
    "aws_scheduler_schedule_group": ("scheduler", "delete_schedule_group", {"Name": "name"}),
    "aws_ssm_parameter": ("ssm", "delete_parameter", {"Name": "name"}),
    "aws_s3_object": ("s3", "delete_object", {"Bucket": "bucket", "Key": "key"}),
    "aws_s3_bucket": ("s3", "delete_bucket", {"Bucket": "bucket"}),
}


def delete(kind: str, prior: Json) -> None:
    """Delete a resource from local AWS, and wait until a consumer is gone."""
    if endpoint() is None or kind not in DELETES:
        return
    service, call, given = DELETES[kind]
    getattr(client(service), call)(**{name: prior[attribute] for name, attribute in given.items()})
    while kind == "aws_kinesis_stream_consumer" and any(
        each["ConsumerARN"] == prior["arn"]
        for each in client("kinesis").list_stream_consumers(StreamARN=prior["stream_arn"])["Consumers"]
    ):
        time.sleep(0.05)


def put_parameter(planned: Json) -> None:
    """Write a parameter to local AWS, or overwrite it."""
    client("ssm").put_parameter(Name=planned["name"], Type=planned["type"], Value=planned["value"], Overwrite=True)


def put_object(planned: Json) -> None:
    """Write an object to local AWS, or overwrite it."""
    client("s3").put_object(Bucket=planned["bucket"], Key=planned["key"], Body=planned["content"].encode())


def read_parameter(current: Json) -> Json:
    """Read a parameter from local AWS, where it may have been changed."""
    answer = client("ssm").get_parameter(Name=current["name"], WithDecryption=True)
    return {**current, "value": answer["Parameter"]["Value"]}


# What is changed in place, and what may have been changed by hand.
CHANGES: dict[str, Callable[[Json], None]] = {
    "aws_ssm_parameter": put_parameter, "aws_s3_object": put_object, "aws_kinesis_stream": change_stream,
    "aws_dynamodb_table": protect_table,
}  # fmt: skip
READS: dict[str, Callable[[Json], Json | None]] = {
    "aws_ssm_parameter": read_parameter,
    "aws_kinesis_stream": read_stream,
}


def made_up(attribute: Json, known: Json, kind: str) -> Any:
    """A value for a computed attribute."""
    if attribute["name"] in known:
        return known[attribute["name"]]
    if isinstance(attribute["type"], list):
        return {} if attribute["type"][0] == "map" else []
    return {"string": f"{kind}-{attribute['name']}", "number": 0, "bool": False}[attribute["type"]]


class Provider(rpc.ProviderServicer):
    """The calls that Terraform makes."""

    def GetProviderSchema(self, request, context):
        return schemas()

    def ValidateProviderConfig(self, request, context):
        return pb.ValidateProviderConfig.Response()

    def ValidateResourceConfig(self, request, context):
        return pb.ValidateResourceConfig.Response()

    def ValidateDataResourceConfig(self, request, context):
        return pb.ValidateDataResourceConfig.Response()

    def ConfigureProvider(self, request, context):
        CONFIG.clear()
        CONFIG.update(decode(request.config))
        return pb.ConfigureProvider.Response()

    def UpgradeResourceState(self, request, context):
        return pb.UpgradeResourceState.Response(upgraded_state=pb.DynamicValue(json=request.raw_state.json))

    def ReadResource(self, request, context):
        if request.type_name in READS and endpoint():
            return pb.ReadResource.Response(new_state=encode(READS[request.type_name](decode(request.current_state))))
        return pb.ReadResource.Response(new_state=request.current_state)

    def ImportResourceState(self, request, context):
        block = SCHEMAS[request.type_name]
        known = found(request.type_name, request.id)
        empty: Json = {each["name"]: None for each in block["attrs"]}
        empty |= {each["name"]: None if each["nesting"] == "single" else [] for each in block["blocks"]}
        imported = pb.ImportResourceState.ImportedResource(type_name=request.type_name)
        imported.state.CopyFrom(encode(empty | {name: value for name, value in known.items() if name in empty}))
        return pb.ImportResourceState.Response(imported_resources=[imported])

    def PlanResourceChange(self, request, context):
        proposed = decode(request.proposed_new_state)
        if proposed is None:
            return pb.PlanResourceChange.Response(planned_state=request.proposed_new_state)
        kind, prior = request.type_name, decode(request.prior_state)
        replaced = [name for name in REPLACES.get(kind, ()) if prior is not None and prior[name] != proposed.get(name)]

        def plan(attribute: Json, value: Any) -> Any:
            return UNKNOWN if value is None and attribute["computed"] and prior is None else value

        step = pb.AttributePath.Step
        return pb.PlanResourceChange.Response(
            planned_state=encode(walk(SCHEMAS[kind], proposed, plan)),
            requires_replace=[pb.AttributePath(steps=[step(attribute_name=name)]) for name in replaced],
            legacy_type_system=True,
        )

    def ApplyResourceChange(self, request, context):
        planned = decode(request.planned_state)
        if planned is None:
            delete(request.type_name, decode(request.prior_state))
            return pb.ApplyResourceChange.Response(new_state=request.planned_state)
        kind = request.type_name
        known = identity(kind, planned) if isinstance(planned.get("id"), msgpack.ExtType) else {}
        if kind in CHANGES and not known and endpoint():
            CHANGES[kind](planned)

        def apply(attribute: Json, value: Any) -> Any:
            return made_up(attribute, known, kind) if isinstance(value, msgpack.ExtType) else value

        return pb.ApplyResourceChange.Response(
            new_state=encode(walk(SCHEMAS[kind], planned, apply)), legacy_type_system=True
        )

    def ReadDataSource(self, request, context):
        config = decode(request.config)

        def read(attribute: Json, value: Any) -> Any:
            if value is not None or not attribute["computed"]:
                return value
            if attribute["name"] in ("json", "minified_json"):
                return policy(config)
            return made_up(attribute, asked(request.type_name), request.type_name)

        return pb.ReadDataSource.Response(state=encode(walk(SCHEMAS[f"data.{request.type_name}"], config, read)))


def main() -> None:
    file_of_schemas, socket = sys.argv[1:]
    with open(file_of_schemas, encoding="utf-8") as file:  # noqa: PTH123
        SCHEMAS.update(json.load(file))
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(4), options=unlimited)
    rpc.add_ProviderServicer_to_server(Provider(), server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    address = {"Network": "unix", "String": socket}
    here = {"Protocol": "grpc", "ProtocolVersion": 6, "Pid": os.getpid(), "Test": True, "Addr": address}
    print(json.dumps({SOURCE: here}), flush=True)  # noqa: T201
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Ends with the process that started this one, which holds the other end of stdin.
    sys.stdin.read()


if __name__ == "__main__":
    main()
