"""An AWS Glue job that runs an application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinesis_efo_infra.access import ReaderAccess
from kinesis_efo_infra.base import Part, put
from kinesis_efo_infra.cdk import Construct, GlueJob, GlueJobCommand, GlueJobExecutionProperty
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.places import Place


class StreamingGlueJob(Part):
    """A Glue streaming job, which `kinesis-efo glue submit` starts: one run at a time, without job bookmarks.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        name: Name of the job.
        access: Access with a role that Glue may assume: `ReaderAccess(..., trust=Glue(), permissions_boundary=...)`.
        script: S3 URI of the default program; `kinesis-efo glue submit` runs the submitted program instead.
        glue_version: Version of Glue, 6.0 or newer.
        worker_type: Size of each worker.
        workers: Number of workers, including the driver.
        connections: Names of Glue connections, for jobs in a VPC.
        arguments: Default arguments of each run.
        tags: Tags of the job, in addition to the provider's default tags.
        place: Terraform name of the resources; default: derived by CDKTF.

    Raises:
        ArgumentError: The access has no role.

    >>> policy = policy_for(stack)
    >>> grant = orders.grant_read(policy, lake)
    >>> access = ReaderAccess(stack, "access", application="lake", policy=policy, trust=Glue())
    >>> job = StreamingGlueJob(stack, "job", name="lake", access=access, script="s3://acme-jobs/lake.py")
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        access: ReaderAccess,
        script: str,
        glue_version: str = "6.0",
        worker_type: str = "G.1X",
        workers: int = 2,
        connections: Sequence[str] = (),
        arguments: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        if access.role_arn is None:
            raise ArgumentError(f"StreamingGlueJob {id!r}: access must have a role; give its ReaderAccess trust=Glue()")
        super().__init__(scope, id, tags)
        job = GlueJob(
            self,
            "job",
            name=name,
            role_arn=access.role_arn,
            glue_version=glue_version,
            command=GlueJobCommand(name="gluestreaming", script_location=script, python_version="3"),
            worker_type=worker_type,
            number_of_workers=workers,
            # If two submissions coincide, only one starts a run.
            execution_property=GlueJobExecutionProperty(max_concurrent_runs=1),
            connections=list(connections) or None,
            default_arguments={"--job-bookmark-option": "job-bookmark-disable", **(arguments or {})},
        )
        self.node.default_child = put(job, place)
        self._name = job.name

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._name
