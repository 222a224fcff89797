"""A client for the local Kinesis that knows no operation and no parameter, so that an SDK of any age does for newer ones."""

import copy
import json
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.loaders
import pytest
from botocore.exceptions import ClientError

from kinesis_efo_local import LocalAws


class RawKinesis:
    """Calls operations by names as boto3 has them, with the parameters of the API reference; raises botocore's errors.

    Args:
        aws: The local AWS.
    """

    def __init__(self, aws: LocalAws) -> None:
        self._aws = aws

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = "".join(part.capitalize() for part in name.split("_"))

        def call(**parameters: Any) -> Any:
            return self.call(operation, parameters)

        return call

    def call(self, operation: str, parameters: dict[str, Any]) -> Any:
        scope = f"AKIATEST/20260101/{self._aws.settings.region}/kinesis/aws4_request"
        request = urllib.request.Request(
            self._aws.endpoint_url,
            json.dumps(parameters, default=lambda data: b64encode(data).decode()).encode(),
            {
                "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}",
                "Content-Type": "application/x-amz-json-1.1",
                "X-Amz-Target": f"Kinesis_20131202.{operation}",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                found = json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as refused:
            with refused:
                error = json.loads(refused.read())
            raise ClientError(
                {
                    "Error": {"Code": error["__type"], "Message": error["message"]},
                    "ResponseMetadata": {"HTTPStatusCode": refused.code},
                },
                operation,
            ) from None
        for record in found.get("Records", []):
            if "Data" in record:
                record["Data"] = b64decode(record["Data"])
        return found


def with_queue_count(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new clients show a stream's queues, as newer versions of the SDK do."""
    model = copy.deepcopy(botocore.loaders.create_loader().load_service_model("kinesis", "service-2"))
    model["shapes"]["StreamDescriptionSummary"]["members"]["QueueCount"] = {"shape": "ConsumerCountObject"}
    (folder := directory / "models" / "kinesis" / "2013-12-02").mkdir(parents=True)
    (folder / "service-2.json").write_text(json.dumps(model))
    monkeypatch.setenv("AWS_DATA_PATH", str(directory / "models"))
