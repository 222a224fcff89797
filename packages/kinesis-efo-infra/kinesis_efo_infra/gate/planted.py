"""Planted faults, which every scan must find; otherwise the scan did not take place or cannot be trusted."""

from __future__ import annotations

import json
from typing import Any

CANARY = "canary"
"""Name of the stack or plan with the planted faults."""


def canary() -> dict[str, Any]:
    """Return Terraform JSON with one planted fault of each kind that the gate must find."""
    return {
        "resource": {
            "aws_kinesis_stream": {"unencrypted": {"name": "unencrypted", "shard_count": 1}},
            "aws_kinesis_stream_consumer": {"stray": {"name": "stray", "stream_arn": "${var.somewhere}"}},
            "aws_dynamodb_table": {
                "other_key": {"name": "x", "hash_key": "id", "attribute": [{"name": "id", "type": "S"}]},
            },
            "aws_s3_bucket": {"open": {"bucket": "open"}},
            "aws_iam_policy": {
                "registers": {
                    "name": "registers",
                    "policy": _policy(Action="kinesis:*"),
                }
            },
            "aws_iam_role": {
                "unbounded": {"name": "unbounded", "assume_role_policy": _policy(Action="sts:AssumeRole")}
            },
            "aws_iam_role_policy_attachment": {
                "unseen": {"role": "unbounded", "policy_arn": "arn:aws:iam::aws:policy/AmazonKinesisFullAccess"}
            },
            "aws_kinesis_resource_policy": {
                "registers_shared": {
                    "resource_arn": "arn:aws:kinesis:eu-west-1:111122223333:stream/shared",
                    "policy": _policy(Action="kinesis:RegisterStreamConsumer", Principal={"AWS": "777788889999"}),
                }
            },
            "aws_kms_key": {"everybodys": {"policy": _policy(Action="kms:*", Principal={"AWS": "*"})}},
        },
        "data": {
            "aws_iam_policy_document": {
                "registers": {"statement": [{"actions": ["kinesis:RegisterStream*"], "resources": ["*"]}]},
                "everybody": {
                    "statement": [
                        {
                            "actions": ["kinesis:ListShards"],
                            "resources": ["*"],
                            "principals": [{"type": "AWS", "identifiers": ["*"]}],
                        }
                    ]
                },
            }
        },
    }


def _policy(**statement: Any) -> str:
    return json.dumps({"Statement": [{"Effect": "Allow", "Resource": "*", **statement}]})


PLANTED = {
    "CKV_AWS_43 aws_kinesis_stream.unencrypted",
    "CKV2_AWS_6 aws_s3_bucket.open",
    "CKV_EFO_4 aws_kinesis_stream_consumer.stray",
    "CKV_EFO_3 aws_dynamodb_table.other_key",
    "CKV_EFO_2 aws_iam_policy.registers",
    "CKV_EFO_2 aws_kinesis_resource_policy.registers_shared",
    "CKV_EFO_6 aws_kms_key.everybodys",
    "CKV_EFO_7 aws_iam_role.unbounded",
    "CKV_EFO_8 aws_iam_role_policy_attachment.unseen",
    "CKV_EFO_1 aws_iam_policy_document.registers",
    "CKV_EFO_5 aws_iam_policy_document.everybody",
}
DOCUMENTS = ("CKV_EFO_1 ", "CKV_EFO_5 ")
"""Prefixes of the planted faults in data sources. They cannot be found in plans, which contain the evaluated policies instead."""


def canary_changes() -> list[dict[str, Any]]:
    """Return the planted faults in the form of a plan's `resource_changes`."""
    return [
        {
            "address": f"{kind}.{name}",
            "mode": "managed",
            "type": kind,
            "name": name,
            "change": {"actions": ["create"], "before": None, "after": values},
        }
        for kind, named in canary()["resource"].items()
        for name, values in named.items()
    ]
