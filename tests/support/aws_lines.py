"""Carries out lines of AWS' command line with boto3: what a page or a message tells people to type is what is run."""

import shlex
from collections.abc import Callable
from typing import Any


def run_line(client: Callable[[str], Any], line: str) -> None:
    """Run a line such as `aws kinesis create-stream --stream-name orders`.

    Args:
        client: Makes the client of a service.
        line: The line; `--region` is left to the client.
    """
    program, service, operation, *words = shlex.split(line)
    assert program == "aws", line
    found = client(service)
    method = operation.replace("-", "_")
    shape = found.meta.service_model.operation_model(found.meta.method_to_api_mapping[method]).input_shape
    members = {name.lower(): name for name in shape.members}
    given = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option != "--region":
            name = members[option.removeprefix("--").replace("-", "")]
            given[name] = _value(shape.members[name].type_name, value)
    getattr(found, method)(**given)


def _value(kind: str, text: str) -> Any:
    if kind not in ("list", "structure"):
        return text
    pairs = dict(pair.split("=", 1) for pair in text.split(","))
    return [pairs] if kind == "list" else pairs
