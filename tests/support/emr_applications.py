"""Applications of EMR Serverless, as infrastructure declares them. moto knows neither their tags nor releases with Spark 4.

Nothing runs on them: there are no runs, and none can be started. State and rules, without I/O; the caller passes the time.
"""

import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from kinesis_efo_local import AwsError
from kinesis_efo_local.errors import not_found, partition_of

Params = dict[str, Any]
_TYPES = {"spark": "Spark", "hive": "Hive"}
_NAME = re.compile(r"[A-Za-z0-9._/#-]{1,64}")
_RELEASE = re.compile(r"emr-[A-Za-z0-9._/-]{1,60}")
_IDLE = ("CREATED", "STOPPED")
_DEFAULTS: Params = {
    "architecture": "X86_64",
    "autoStartConfiguration": {"enabled": True},
    "autoStopConfiguration": {"enabled": True, "idleTimeoutMinutes": 15},
}
# What UpdateApplication may change; the rest is for good.
_MUTABLE = {
    "architecture",
    "autoStartConfiguration",
    "autoStopConfiguration",
    "imageConfiguration",
    "initialCapacity",
    "interactiveConfiguration",
    "maximumCapacity",
    "monitoringConfiguration",
    "networkConfiguration",
    "releaseLabel",
    "runtimeConfiguration",
    "schedulerConfiguration",
    "workerTypeSpecifications",
}


class Applications:
    """The applications of one account and region.

    Args:
        account_id: The account in ARNs.
        region: The region in ARNs.
        now: Epoch seconds.
    """

    def __init__(self, account_id: str, region: str, now: Callable[[], float]) -> None:
        self._prefix = f"arn:{partition_of(region)}:emr-serverless:{region}:{account_id}:/applications/"
        self._now = now
        self._applications: dict[str, Params] = {}
        self._tokens: dict[str, tuple[Params, str]] = {}

    def answer(self, method: str, target: str, body: bytes) -> Params | None:
        """Answer a request; None if it is not about applications.

        Args:
            method: Method of the request.
            target: Path and query, with their escapes.
            body: JSON, or nothing.

        Raises:
            AwsError: `ValidationException`, `ConflictException` or `ResourceNotFoundException`.
        """
        url = urlsplit(target)
        match method, [unquote(part) for part in url.path.strip("/").split("/")]:
            case "POST", ["applications"]:
                return self._create(_decode(body))
            case "GET", ["applications"]:
                return self._list(parse_qs(url.query).get("states", []))
            case "GET", ["applications", application]:
                return {"application": self._application(application)}
            case "PATCH", ["applications", application]:
                return {"application": self._update(application, _decode(body))}
            case "DELETE", ["applications", application]:
                self._move(application, "TERMINATED", _IDLE)
            case "POST", ["applications", application, "start"]:
                self._move(application, "STARTED", (*_IDLE, "STARTED"))
            case "POST", ["applications", application, "stop"]:
                self._move(application, "STOPPED", (*_IDLE, "STARTED"))
            case "GET", ["applications", application, "jobruns"]:
                self._application(application)
                return {"jobRuns": []}
            case "POST", ["applications", application, "jobruns"]:
                self._application(application)
                raise _invalid(
                    "The local AWS runs no jobs: `kinesis-efo emr submit --dry-run` checks one, `spark-submit` runs it here"
                )
            case "GET" | "DELETE", ["applications", application, "jobruns", run]:
                self._application(application)
                raise not_found(f"JobRun {run} does not exist", 404)
            case "GET", ["tags", *arn]:
                return {"tags": self._tagged("/".join(arn))}
            case "POST", ["tags", *arn]:
                self._tagged("/".join(arn)).update(_decode(body).get("tags", {}))
            case "DELETE", ["tags", *arn]:
                tags = self._tagged("/".join(arn))
                for key in parse_qs(url.query).get("tagKeys", []):
                    tags.pop(key, None)
            case _:
                return None
        return {}

    def _create(self, given: Params) -> Params:
        kind, release, name = given.get("type", ""), given.get("releaseLabel", ""), given.get("name", "")
        if kind.lower() not in _TYPES:
            raise _invalid(f"Unsupported engine {kind}: type must be Spark or Hive")
        _check_release(release)
        if name and not _NAME.fullmatch(name):
            raise _invalid(f"name must match {_NAME.pattern}; got {name!r}")
        if not (token := given.get("clientToken")):
            raise _invalid("clientToken must not be null")
        if token in self._tokens:
            before, identifier = self._tokens[token]
            if before != given:
                raise AwsError("ConflictException", f"clientToken {token} was used with other parameters", 409)
            return self._created(identifier)
        identifier = f"00{uuid.uuid4().hex[:14]}"
        self._tokens[token] = (given, identifier)
        settings = {key: value for key, value in given.items() if key != "clientToken" and value is not None}
        self._applications[identifier] = {
            **_DEFAULTS,
            **settings,
            "tags": dict(given.get("tags") or {}),
            "type": _TYPES[kind.lower()],
            "applicationId": identifier,
            "arn": f"{self._prefix}{identifier}",
            "state": "CREATED",
            "stateDetails": "",
            "createdAt": self._now(),
            "updatedAt": self._now(),
        }
        return self._created(identifier)

    def _created(self, identifier: str) -> Params:
        application = self._applications[identifier]
        return {key: application[key] for key in ("applicationId", "name", "arn") if key in application}

    def _list(self, states: list[str]) -> Params:
        shown = (
            "name",
            "arn",
            "releaseLabel",
            "type",
            "state",
            "stateDetails",
            "createdAt",
            "updatedAt",
            "architecture",
        )
        return {
            "applications": [
                {"id": identifier, **{key: each[key] for key in shown if key in each}}
                for identifier, each in self._applications.items()
                if not states or each["state"] in states
            ]
        }

    def _update(self, identifier: str, given: Params) -> Params:
        application = self._application(identifier)
        self._check_state(application, _IDLE)
        if "releaseLabel" in given:
            _check_release(given["releaseLabel"])
        application |= {key: value for key, value in given.items() if key in _MUTABLE and value is not None}
        application["updatedAt"] = self._now()
        return application

    def _move(self, identifier: str, state: str, allowed: tuple[str, ...]) -> None:
        application = self._application(identifier)
        self._check_state(application, allowed)
        application |= {"state": state, "updatedAt": self._now()}

    def _check_state(self, application: Params, allowed: tuple[str, ...]) -> None:
        if application["state"] not in allowed:
            raise _invalid(
                f"Application {application['applicationId']} must be in one of the following statuses [{', '.join(allowed)}]. "
                f"Current status: {application['state']}"
            )

    def _application(self, identifier: str) -> Params:
        if identifier not in self._applications:
            raise not_found(f"Application {identifier} does not exist", 404)
        return self._applications[identifier]

    def _tagged(self, arn: str) -> dict[str, str]:
        tags: dict[str, str] = self._application(arn.removeprefix(self._prefix))["tags"]
        return tags


def _check_release(label: str) -> None:
    if not _RELEASE.fullmatch(label):
        raise _invalid(f"releaseLabel must match {_RELEASE.pattern}; got {label!r}")


def _decode(body: bytes) -> Params:
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise AwsError("SerializationException", f"The request is not valid: {wrong}") from None


def _invalid(message: str) -> AwsError:
    return AwsError("ValidationException", message)
