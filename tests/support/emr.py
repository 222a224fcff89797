"""A fake of EMR on EC2, EMR Serverless and EMR on EKS: one HTTP server with the operations on jobs.

moto knows no release with Spark 4. botocore has checked the requests before they arrive; answers are checked against its
models before they are sent. The state of a run moves on whenever it is looked up, so that no test waits.
"""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import botocore.config
import botocore.session
from botocore.validate import ParamValidator

from tests.support.http_server import Handler, served

CLUSTER, APPLICATION, VIRTUAL_CLUSTER = "j-2AXXXXXXGAPLF", "00f1abcdefgh2025", "7jw6bqt9k1"
_SERVICES = {"emr": "EMR", "emr-serverless": "EMR_SERVERLESS", "emr-containers": "EMR_CONTAINERS"}
_NEXT = {"PENDING": "RUNNING", "SUBMITTED": "RUNNING", "CANCEL_PENDING": "CANCELLED", "CANCELLING": "CANCELLED"}


@cache
def _model(service: str) -> Any:
    """botocore's model of a service."""
    return botocore.session.Session().get_service_model(service)


@dataclass
class FakeRun:
    """A step or a job run.

    Attributes:
        service: Its EMR: `emr`, `emr-serverless` or `emr-containers`.
        id: Its id.
        request: The request that submitted it.
        state: Its state, as EMR names it.
        reason: The reason for the state.
        created: When it was submitted, seconds since the epoch.
        cancelled: The requests that cancelled it.
    """

    service: str
    id: str
    request: dict[str, Any]
    state: str
    reason: str = ""
    created: float = 0.0
    cancelled: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.request.get("Name") or self.request["name"])


class FakeEmr:
    """The state of all three services, and the calls they received.

    Attributes:
        runs: The runs, by id.
        calls: Names of the operations called, in order.
        site: Overrides of the description of the targets.
        on_look: Called with a run before a look-up of it is answered; may change it.
        endures: Whether runs go on after they are cancelled.
        refusal: Code of an error that answers every call; empty for none.
        url: URL of the server.
    """

    def __init__(self) -> None:
        self.runs: dict[str, FakeRun] = {}
        self.calls: list[str] = []
        self.site: dict[str, Any] = {}
        self.on_look: Callable[[FakeRun], None] = lambda _: None
        self.endures = False
        self.refusal = ""
        self.url = ""
        self._numbers = itertools.count(1)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that point botocore to the server."""
        return {f"AWS_ENDPOINT_URL_{name}": self.url for name in _SERVICES.values()}

    def client(self, service: str) -> Any:
        """A botocore client; the caller closes it."""
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        config = botocore.config.Config(retries={"total_max_attempts": 1})
        return botocore.session.Session().create_client(
            service, "us-east-1", endpoint_url=self.url, config=config, **keys
        )

    def only(self) -> FakeRun:
        """The only run."""
        (run,) = self.runs.values()
        return run

    # -- operations, by service and name, with answers as in the API references

    def emr_describe_cluster(self, ClusterId: str) -> Any:
        cluster = {
            "Id": ClusterId,
            "Name": "c",
            "ReleaseLabel": "emr-spark-8.0.0",
            "LogUri": "s3n://logs/",
            "Status": {"State": "WAITING"},
            "Applications": [{"Name": "Spark", "Version": "4.0.2-amzn-0"}],
        }
        return {"Cluster": {**cluster, **self.site}}

    def emr_add_job_flow_steps(self, Steps: list[Any], **rest: Any) -> Any:
        return {"StepIds": [self._add("emr", {**step, **rest}, "PENDING").id for step in Steps]}

    def emr_list_steps(self, **_: Any) -> Any:
        return {"Steps": [_step(run) for run in self._of("emr")]}

    def emr_describe_step(self, StepId: str, **_: Any) -> Any:
        run = self._look(StepId)
        role = run.request.get("ExecutionRoleArn")
        return {"Step": {**_step(run), **({"ExecutionRoleArn": role} if role else {})}}

    def emr_cancel_steps(self, StepIds: list[str], **rest: Any) -> Any:
        for each in StepIds:
            self._cancel(each, "CANCEL_PENDING", rest)
        return {"CancelStepsInfoList": [{"StepId": each, "Status": "SUBMITTED"} for each in StepIds]}

    def emr_serverless_get_application(self, applicationId: str) -> Any:
        application = {
            "applicationId": applicationId,
            "arn": f"arn:aws:emr-serverless:us-east-1:123456789012:/applications/{applicationId}",
            "releaseLabel": "emr-spark-8.0.0",
            "type": "Spark",
            "state": "STARTED",
            "architecture": "ARM64",
            "createdAt": 1_700_000_000,
            "updatedAt": 1_700_000_000,
        }
        shown = {**application, **self.site}
        if shown["state"] == "STOPPING":
            self.site["state"] = "STOPPED"
        return {"application": shown}

    def emr_serverless_stop_application(self, **_: Any) -> Any:
        live = [run.id for run in self._of("emr-serverless") if run.state not in ("SUCCESS", "FAILED", "CANCELLED")]
        assert not live, f"EMR refuses to stop an application on which {live} run"
        self.site["state"] = "STOPPING"
        return {}

    def emr_serverless_start_job_run(self, **request: Any) -> Any:
        run = self._add("emr-serverless", request, "SUBMITTED")
        return {"applicationId": APPLICATION, "jobRunId": run.id, "arn": _serverless(run)["arn"]}

    def emr_serverless_list_job_runs(self, **_: Any) -> Any:
        keys = ("applicationId", "id", "name", "arn", "createdBy", "createdAt", "updatedAt", "executionRole", "state")
        runs = [_serverless(run) for run in self._of("emr-serverless")]
        return {"jobRuns": [{key: run[key] for key in (*keys, "stateDetails", "releaseLabel")} for run in runs]}

    def emr_serverless_get_job_run(self, jobRunId: str, **_: Any) -> Any:
        run = _serverless(self._look(jobRunId))
        return {"jobRun": {key: value for key, value in run.items() if key != "id"}}

    def emr_serverless_cancel_job_run(self, jobRunId: str, **rest: Any) -> Any:
        self._cancel(jobRunId, "CANCELLING", rest)
        return {"applicationId": APPLICATION, "jobRunId": jobRunId}

    def emr_containers_describe_virtual_cluster(self, id: str) -> Any:  # noqa: A002
        return {"virtualCluster": {"id": id, "state": "RUNNING", **self.site}}

    def emr_containers_start_job_run(self, **request: Any) -> Any:
        return {"id": self._add("emr-containers", request, "PENDING").id}

    def emr_containers_list_job_runs(self, name: str = "", **_: Any) -> Any:
        return {"jobRuns": [_containers(run) for run in self._of("emr-containers") if name in ("", run.name)]}

    def emr_containers_describe_job_run(self, id: str, **_: Any) -> Any:  # noqa: A002
        return {"jobRun": _containers(self._look(id))}

    def emr_containers_cancel_job_run(self, id: str, **rest: Any) -> Any:  # noqa: A002
        self._cancel(id, "CANCEL_PENDING", rest)
        return {"id": id}

    def _add(self, service: str, request: dict[str, Any], state: str) -> FakeRun:
        token = request.get("clientToken")
        for run in self._of(service):
            if token and run.request.get("clientToken") == token:
                return run
        number = next(self._numbers)
        run = FakeRun(service, f"s-{number:04}" if service == "emr" else f"00r{number:04}", request, state)
        run.created = 1_700_000_000 + number
        self.runs[run.id] = run
        return run

    def _of(self, service: str) -> list[FakeRun]:
        return [run for run in self.runs.values() if run.service == service]

    def _look(self, identifier: str) -> FakeRun:
        run = self.runs[identifier]
        self.on_look(run)
        shown = FakeRun(**vars(run))
        if not (self.endures and run.cancelled):
            run.state = _NEXT.get(run.state, run.state)
        return shown

    def _cancel(self, identifier: str, state: str, request: dict[str, Any]) -> None:
        run = self.runs[identifier]
        run.cancelled.append(request)
        run.state = state


def _step(run: FakeRun) -> dict[str, Any]:
    step = run.request["HadoopJarStep"]
    reason = {"Message": run.reason} if run.reason else {}
    return {
        "Id": run.id,
        "Name": run.name,
        "Config": step,
        "Status": {"State": run.state, "StateChangeReason": reason, "Timeline": {"CreationDateTime": run.created}},
    }


def _serverless(run: FakeRun) -> dict[str, Any]:
    return {
        "applicationId": APPLICATION,
        "jobRunId": run.id,
        "id": run.id,
        "name": run.name,
        "arn": f"arn:aws:emr-serverless:us-east-1:123456789012:/applications/{APPLICATION}/jobruns/{run.id}",
        "createdBy": "arn:aws:iam::123456789012:user/me",
        "createdAt": run.created,
        "updatedAt": run.created,
        "executionRole": run.request["executionRoleArn"],
        "state": run.state,
        "stateDetails": run.reason or f"the run is {run.state}",
        "releaseLabel": "emr-spark-8.0.0",
        "jobDriver": run.request["jobDriver"],
        "configurationOverrides": run.request.get("configurationOverrides", {}),
    }


def _containers(run: FakeRun) -> dict[str, Any]:
    known = ("name", "jobDriver", "configurationOverrides", "releaseLabel", "executionRoleArn")
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.created))
    described = {"id": run.id, "state": run.state, "createdAt": created, **{key: run.request[key] for key in known}}
    return {**described, "failureReason": "USER_ERROR", "stateDetails": run.reason} if run.reason else described


_ROUTES = [
    (service, verb, re.compile(pattern), operation)
    for service, verb, pattern, operation in [
        ("emr-serverless", "GET", r"/applications/(?P<applicationId>\w+)", "GetApplication"),
        ("emr-serverless", "POST", r"/applications/(?P<applicationId>\w+)/stop", "StopApplication"),
        ("emr-serverless", "POST", r"/applications/(?P<applicationId>\w+)/jobruns", "StartJobRun"),
        ("emr-serverless", "GET", r"/applications/(?P<applicationId>\w+)/jobruns", "ListJobRuns"),
        ("emr-serverless", "GET", r"/applications/(?P<applicationId>\w+)/jobruns/(?P<jobRunId>\w+)", "GetJobRun"),
        ("emr-serverless", "DELETE", r"/applications/(?P<applicationId>\w+)/jobruns/(?P<jobRunId>\w+)", "CancelJobRun"),
        ("emr-containers", "GET", r"/virtualclusters/(?P<id>\w+)", "DescribeVirtualCluster"),
        ("emr-containers", "POST", r"/virtualclusters/(?P<virtualClusterId>\w+)/jobruns", "StartJobRun"),
        ("emr-containers", "GET", r"/virtualclusters/(?P<virtualClusterId>\w+)/jobruns", "ListJobRuns"),
        ("emr-containers", "GET", r"/virtualclusters/(?P<virtualClusterId>\w+)/jobruns/(?P<id>\w+)", "DescribeJobRun"),
        ("emr-containers", "DELETE", r"/virtualclusters/(?P<virtualClusterId>\w+)/jobruns/(?P<id>\w+)", "CancelJobRun"),
    ]
]


class _Handler(Handler):
    emr: FakeEmr

    def _serve(self) -> None:
        body = json.loads(self.body() or b"{}")
        if target := self.headers.get("X-Amz-Target"):
            service, operation, request = "emr", target.partition(".")[2], body
        else:
            url = urlsplit(self.path)
            service, operation, found = next(
                (service, operation, match)
                for service, verb, pattern, operation in _ROUTES
                if verb == self.command and (match := pattern.fullmatch(url.path))
            )
            request = {**{key: value[0] for key, value in parse_qs(url.query).items()}, **found.groupdict(), **body}
        self.emr.calls.append(operation)
        name = f"{service}_{_snake(operation)}".replace("-", "_")
        if self.emr.refusal:
            refusal = {"__type": self.emr.refusal, "message": "no"}
            self.answer(400, json.dumps(refusal).encode(), x_amzn_ErrorType=self.emr.refusal)
            return
        answer = getattr(self.emr, name)(**request)
        report = ParamValidator().validate(answer, _model(service).operation_model(operation).output_shape)
        # Reports unknown members, too, which shows mistakes of this fake.
        assert not report.has_errors(), report.generate_report()
        self.answer(200, json.dumps(answer).encode(), content_type="application/json")

    do_GET = do_POST = do_DELETE = _serve


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


@contextmanager
def fake_emr() -> Iterator[FakeEmr]:
    """Run the fake on this machine."""
    emr = FakeEmr()
    with served(_Handler, emr=emr) as emr.url:
        yield emr
