"""AWS protocols: finds the operation of a request, and encodes errors in the format that its client expects."""

from __future__ import annotations

import re
import uuid
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import msgspec

from .cbor import encode
from .errors import AwsError
from .http import Answer, Incoming

_RPC = re.compile(r"/service/[^/]+/operation/([^/?]+)")


def operation_of(request: Incoming) -> str:
    """Name of a request's operation, or its method and path if the request does not contain the name."""
    if target := request.headers.get("X-Amz-Target"):
        return target.rpartition(".")[2]
    if named := _RPC.search(request.path):
        return named[1]
    if action := _action(request):
        return action
    url = urlsplit(request.path)
    parts = "&".join(sorted(parse_qs(url.query, keep_blank_values=True)))
    return f"{request.method} {url.path}" + (f"?{parts}" if parts else "")


def unknown(request: Incoming, service: str) -> AwsError:
    """The error for an unsupported operation, with the error code of the request's protocol."""
    message = f"The local AWS does not know the operation {operation_of(request)!r} of {service or 'this service'}."
    if service == "s3":
        return AwsError("NotImplemented", message, 501)
    if _action(request):
        return AwsError("InvalidAction", message)
    return AwsError("UnknownOperationException", message, 400 if "X-Amz-Target" in request.headers else 404)


def error_answer(request: Incoming, service: str, error: AwsError) -> Answer:
    """Encode an error in the request's protocol. `service` is the service that the request was signed for."""
    request_id = str(uuid.uuid4())
    common = [("x-amzn-RequestId", request_id)]
    code, message = escape(error.code), escape(error.message)
    inner = f"<Code>{code}</Code><Message>{message}</Message>"
    if service == "s3":
        text = f"<Error>{inner}<RequestId>{request_id}</RequestId></Error>"
    elif not _action(request):
        named = [("x-amzn-ErrorType", error.code), *common]
        shape = {"__type": error.code, "message": error.message}
        if "cbor" in request.headers.get("Smithy-Protocol", ""):
            headers = [("Content-Type", "application/cbor"), ("smithy-protocol", "rpc-v2-cbor"), *named]
            return Answer(error.status, headers, encode(shape))
        json = "application/x-amz-json-1.1" if "X-Amz-Target" in request.headers else "application/json"
        return Answer(error.status, [("Content-Type", json), *named], msgspec.json.encode(shape))
    elif service == "ec2":
        text = f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>{request_id}</RequestID></Response>"
    else:
        fault = "Sender" if error.status < 500 else "Receiver"
        text = f"<ErrorResponse><Error><Type>{fault}</Type>{inner}</Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    return Answer(error.status, [("Content-Type", "text/xml"), *common], text.encode())


def _action(request: Incoming) -> str:
    """Name of the operation in AWS' query protocol, whose requests are HTML forms; empty for other protocols."""
    if "form" not in request.headers.get("Content-Type", ""):
        return ""
    return parse_qs(request.body.decode(errors="replace")).get("Action", [""])[0]
