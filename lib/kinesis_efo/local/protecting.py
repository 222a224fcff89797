"""The operations on who may read a stream and how it is encrypted: resource policies, and server-side encryption.

Both are kept and shown, and neither is enforced: the local AWS knows no identities, and its keys are moto's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .consumers import Consumer
from .errors import invalid, not_found
from .state import Kinesis
from .streams import Stream, Traits

Params = dict[str, Any]
MAX_POLICY_BYTES = 20 * 1024
_EMPTY = "{}"


def start_stream_encryption(kinesis: Kinesis, params: Params) -> Params:
    """StartStreamEncryption. A stream that is encrypted takes the new key."""
    stream = _encryptable(kinesis, params)
    kinesis.update(stream, lambda _: _encrypt(stream, params["KeyId"]))
    return {}


def stop_stream_encryption(kinesis: Kinesis, params: Params) -> Params:
    """StopStreamEncryption."""
    stream = _encryptable(kinesis, params)
    kinesis.update(stream, lambda _: _encrypt(stream, None))
    return {}


def _encryptable(kinesis: Kinesis, params: Params) -> Stream:
    if params["EncryptionType"] != "KMS":
        raise invalid(
            f"EncryptionType must be KMS, the only one there is to start or stop; got {params['EncryptionType']}"
        )
    stream = kinesis.stream(params)
    stream.check_active()
    return stream


def _encrypt(stream: Stream, key_id: str | None) -> None:
    stream.traits.key_id = key_id


def put_resource_policy(kinesis: Kinesis, params: Params) -> Params:
    """PutResourcePolicy, for a stream or a consumer; it replaces the whole policy."""
    resource = _resource(kinesis, params["ResourceARN"])
    _check_policy(params["Policy"], params["ResourceARN"])
    resource.policy = params["Policy"]
    return {}


def get_resource_policy(kinesis: Kinesis, params: Params) -> Params:
    """GetResourcePolicy. Where there is no policy, an empty one is shown."""
    return {"Policy": _resource(kinesis, params["ResourceARN"]).policy or _EMPTY}


def delete_resource_policy(kinesis: Kinesis, params: Params) -> Params:
    """DeleteResourcePolicy."""
    resource = _resource(kinesis, params["ResourceARN"])
    if resource.policy is None:
        raise not_found(f"No resource policy found for resource ARN {params['ResourceARN']}.")
    resource.policy = None
    return {}


def _resource(kinesis: Kinesis, arn: str) -> Traits | Consumer:
    """What holds the policy of a resource."""
    if "/consumer/" in arn:
        return kinesis.consumer(arn)
    return kinesis.stream({"StreamARN": arn}).traits


def _check_policy(text: str, arn: str) -> None:
    """Check a policy as far as it can be without identities.

    Raises:
        AwsError: `InvalidArgumentException`: it is too long, is not JSON, or a statement lacks a part or is for something else.
    """
    if len(text.encode()) > MAX_POLICY_BYTES:
        raise invalid(f"The policy of {arn} has {len(text.encode())} bytes; it may have {MAX_POLICY_BYTES}")
    try:
        policy = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as wrong:
        raise invalid(f"The policy of {arn} is not a JSON object: {wrong}") from None
    statements = _listed(policy.get("Statement", []))
    if not statements:
        raise invalid(f"The policy of {arn} has no Statement")
    for statement in statements:
        if not isinstance(statement, dict):
            raise invalid(f"The policy of {arn} has a Statement that is not an object: {statement!r}")
        if missing := [part for part in ("Effect", "Principal", "Action", "Resource") if not statement.get(part)]:
            raise invalid(f"The policy of {arn} has a Statement without {' and '.join(missing)}")
        if others := [each for each in _listed(statement["Resource"]) if each != arn]:
            raise invalid(f"The policy of {arn} has a Statement for another Resource: {others[0]}")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


OPERATIONS: dict[str, Callable[[Kinesis, Params], Params]] = {
    "DeleteResourcePolicy": delete_resource_policy,
    "GetResourcePolicy": get_resource_policy,
    "PutResourcePolicy": put_resource_policy,
    "StartStreamEncryption": start_stream_encryption,
    "StopStreamEncryption": stop_stream_encryption,
}
