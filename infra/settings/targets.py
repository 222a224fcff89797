"""Rules of jobs: each needs an application, and a target that its role trusts and that is large enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from infra.errors import Fault
from infra.settings.access import Eks, EmrEc2, EmrServerless, OtherAccount
from infra.settings.model import Application, Emr, Head, Job, ServerlessApplication


def within(
    jobs: Mapping[int, Job], applications: Mapping[str, Application], written: Collection[str], head: Head | None
) -> Iterator[Fault]:
    """Yield faults of jobs in one file: missing targets, two jobs for one application, or settings that EMR would reject.

    Args:
        jobs: The valid jobs, by their indexes in the file.
        applications: The valid applications, by key.
        written: The keys of all applications, including invalid ones.
        head: The rest of the file, if it is valid.
    """
    emr = head.emr if head else None
    if emr and emr.serverless and bool(emr.serverless.subnets) != bool(emr.serverless.security_groups):
        rule = "must come together: subnets without security groups, or the other way round, place nothing"
        yield Fault("emr.serverless.subnets", emr.serverless.subnets, rule)
    counts = Counter(job.application for job in jobs.values())
    for number, job in jobs.items():
        path = f"jobs.{number}"
        if job.application not in written:
            yield Fault(f"{path}.application", job.application, "names an application that this file does not have")
        if counts[job.application] > 1:
            yield Fault(f"{path}.application", job.application, "must have one job only: its leases let one run read")
        if head and emr is None:
            yield Fault(path, job.program, "needs emr, which says where archives and programs are kept; say emr: {}")
        application = applications.get(job.application)
        if application is not None:
            yield from _job_target(path, job, application, emr)


_CORES = {"driver": 2, "executor": 4}
"""The numbers of cores that `kinesis-efo emr submit` sets by default."""
# The kind of target for each kind of access. With a policy alone, any target is possible.
_RUNS_ON = {EmrServerless: "serverless", EmrEc2: "cluster", Eks: "eks"}


def _job_target(path: str, job: Job, application: Application, emr: Emr | None) -> Iterator[Fault]:
    access = application.access
    if isinstance(access, OtherAccount):
        yield Fault(f"{path}.application", job.application, "runs in another account, which declares its own jobs")
        return
    kind = _RUNS_ON.get(type(access))
    if job.target is not None:
        if kind and not job.target.startswith(f"{kind}:"):
            rule = f"must be {kind}:<id>, as the access of {job.application} is {access.kind}"
            yield Fault(f"{path}.target", job.target, rule)
        elif isinstance(access, EmrServerless):
            yield from _trusted(path, job.target, job, access, emr)
    elif isinstance(access, EmrServerless) and access.application_id:
        rule = (
            f"is missing: the role of {job.application} is for another application; "
            f"say target: serverless:{access.application_id}"
        )
        yield Fault(f"{path}.target", None, rule)
    elif kind != "serverless" or (emr is not None and emr.serverless is None):
        rule = f"is missing: say where {job.application} runs, as target: {kind or 'cluster'}:<id>"
        yield Fault(f"{path}.target", None, rule)
    elif emr is not None and emr.serverless is not None:
        yield from _workers(path, job, emr.serverless)


def _trusted(path: str, target: str, job: Job, access: EmrServerless, emr: Emr | None) -> Iterator[Fault]:
    """Yield a fault if the target is an EMR Serverless application that may not assume the job's role."""
    wanted = target.partition(":")[2]
    if access.application_id and access.application_id != wanted:
        rule = f"must be serverless:{access.application_id}: the role of {job.application} is for that application only"
        yield Fault(f"{path}.target", target, rule)
    elif access.application_id is None and emr is not None and emr.serverless is not None:
        rule = (
            f"must be left out: the role of {job.application} is for the application declared here only; for another "
            f"one, say access.application_id: {wanted} there"
        )
        yield Fault(f"{path}.target", target, rule)


def _workers(path: str, job: Job, application: ServerlessApplication) -> Iterator[Fault]:
    """Yield a fault if an EMR Serverless application is too small for the driver and one executor of a job."""
    needed = sum(_size(job.spark.get(f"spark.{each}.cores"), default) or 0 for each, default in _CORES.items())
    if needed > application.maximum_vcpu:
        rule = (
            f"must be at least {needed} for the job of {job.application}: its driver and one executor, by "
            f"spark.driver.cores and spark.executor.cores in {path}.spark (default {_CORES['driver']} and {_CORES['executor']})"
        )
        yield Fault("emr.serverless.maximum_vcpu", application.maximum_vcpu, rule)


def _size(text: str | None, default: int) -> int | None:
    if text is None:
        return default
    return int(text) if text.isdecimal() else None
