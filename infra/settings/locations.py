"""Rules of S3 locations: no application may write to another one's locations, and jobs' roles must have access to what the jobs use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations, product

from infra.errors import Fault
from infra.settings.access import RoleAccess
from infra.settings.model import Application, Environment, Head, Job
from infra.settings.names import (
    ENVIRONMENTS,
    PROGRAMS,
    Names,
    artifacts_bucket,
    locations,
    parse_arn,
    references,
    s3_uris,
)
from kinesis_efo_infra.locations import Location

_APART = "must be apart from what others write; {place} is {uri}, and one of the two would hold the other"


def within(applications: Mapping[str, Application], jobs: Mapping[int, Job], head: Head | None) -> Iterator[Fault]:
    """Yield faults in one file: overlapping locations, a key without locations to encrypt, and references to missing settings."""
    for key, application in applications.items():
        path = f"applications.{key}"
        written = locations(application)
        if application.output_key and not written:
            rule = "must come with output or checkpoint, which it encrypts"
            yield Fault(f"{path}.output_key", application.output_key, rule)
        if application.output_key and head and parse_arn(application.output_key).region != head.region:
            rule = f"must be in region {head.region}, as the environment"
            yield Fault(f"{path}.output_key", application.output_key, rule)
        # Allow checkpoints below the output, which are common: Spark's readers skip names that begin with `_`.
        if len(written) == 2 and len(set(written.values())) == 1:
            yield Fault(f"{path}.checkpoint", application.checkpoint, "must not be the output itself; give it a prefix")
    places = [
        (key, f"applications.{key}.{setting}", location)
        for key, application in applications.items()
        for setting, location in locations(application).items()
    ]
    for (one, first, location), (two, second, other) in combinations(places, 2):
        if one != two and location.overlaps(other):
            yield _apart(second, other, first, location)
    for number, job in jobs.items():
        if job.application in applications:
            yield from _references(f"jobs.{number}", job, applications[job.application])
            yield from _out_of_reach(f"jobs.{number}", job, applications[job.application], head)
            yield from _assumed(f"jobs.{number}", job, applications[job.application], head)


def _texts(path: str, job: Job) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each argument and Spark setting of a job."""
    for each in job.arguments:
        yield f"{path}.arguments", each
    for name, each in job.spark.items():
        yield f"{path}.spark.{name}", each


def _out_of_reach(path: str, job: Job, application: Application, head: Head | None) -> Iterator[Fault]:
    """Yield faults of S3 URIs for which a job's role has no permission.

    Roles with additional policies, and roles declared elsewhere, are skipped: the file does not contain their permissions.
    """
    if not isinstance(application.access, RoleAccess) or application.access.policies:
        return
    there = f"applications.{job.application}"
    reach = list(locations(application).values())
    if head and head.emr:
        reach += [Location(artifacts_bucket(head), each.rstrip("/")) for each in (PROGRAMS, ENVIRONMENTS)]
    for place, text in _texts(path, job):
        for bucket, key in s3_uris(text):
            if not any(each.bucket == bucket and f"{key}/".startswith(f"{each.prefix}/") for each in reach):
                rule = (
                    f"is out of reach of the job: its role may use what lies below output and checkpoint of {there}; say one "
                    f"of them there, and $output or $checkpoint here, or name a policy that allows it in {there}.access.policies"
                )
                yield Fault(place, text, rule)


def _assumed(path: str, job: Job, application: Application, head: Head | None) -> Iterator[Fault]:
    """Yield faults of jobs that would assume another role, although the pipeline's permissions boundary does not allow it."""
    bounded = isinstance(application.access, RoleAccess) and not application.access.permissions_boundary
    if head and head.pipeline and bounded:
        for place, text in _texts(path, job):
            if re.search(r"\broleArn=", text, re.IGNORECASE):
                rule = (
                    "needs sts:AssumeRole, which the pipeline's boundary does not allow; name a boundary of your own that does, in "
                    f"applications.{job.application}.access.permissions_boundary"
                )
                yield Fault(place, text, rule)


def _references(path: str, job: Job, application: Application) -> Iterator[Fault]:
    for place, text in _texts(path, job):
        for setting in sorted(references(text)):
            if getattr(application, setting) is None:
                there = f"applications.{job.application}"
                yield Fault(
                    place, text, f"refers to what {there} does not have: say {setting}: s3://bucket/prefix there"
                )


def between(environments: Mapping[str, Environment]) -> Iterator[Fault]:
    """Yield faults between files: locations that overlap another environment's locations, any manifests, or any artifacts bucket."""
    places = [
        (name, f"{name}.yaml applications.{key}.{setting}", location)
        for name, environment in environments.items()
        for key, application in environment.applications.items()
        for setting, location in locations(application).items()
    ]
    for (one, first, location), (two, second, other) in combinations(places, 2):
        if one != two and location.overlaps(other):
            yield _apart(second, other, first, location)
    manifests = [
        (f"{name}.yaml manifest_store", Location(bucket, Names(environment).path))
        for name, environment in environments.items()
        if (bucket := Names(environment).manifest_bucket) is not None
    ]
    for (_, place, location), (other_place, other) in product(places, manifests):
        if location.overlaps(other):
            yield _apart(place, location, other_place, other)
    artifacts = {Names(each).artifacts_bucket: name for name, each in environments.items() if each.emr}
    for _, place, location in places:
        if location.bucket in artifacts:
            rule = f"must be in another bucket: this one holds the programs and logs of {artifacts[location.bucket]}"
            yield Fault(place, location.uri, rule)


def _apart(place: str, location: Location, other_place: str, other: Location) -> Fault:
    return Fault(place, location.uri, _APART.format(place=other_place, uri=other.uri))
