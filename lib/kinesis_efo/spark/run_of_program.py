"""Makes the run of a stream reader: one that it shares with others of its Spark program, or one of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.access import RunAccess
from kinesis_efo.planner.program import Program
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.private_directory import notes_directory
from kinesis_efo.processes import Process
from kinesis_efo.spark.host import where_to_listen
from kinesis_efo.spark.job_request import JobRequest
from kinesis_efo.spark.lifecycle import RUN_PROCESS, hand_over_output, is_sparks_process, spark_waits

if TYPE_CHECKING:
    from kinesis_efo.planner.runtime import PlannerRuntime


def run_of_program(manifest: Manifest, options: SourceOptions) -> RunAccess:
    """The run of a reader, not started yet. It may be shared only in the process that Spark keeps for the reader.

    Args:
        manifest: The application, with the streams to read.
        options: The options of the query.
    """
    listening = where_to_listen(options)

    def begin(secret: str | None, name: str, *, shared: bool = True) -> PlannerRuntime:
        from kinesis_efo.planner.runtime import PlannerRuntime

        fetchers = partial(JobRequest, options.supervisor) if options.supervisor is not None else None
        return PlannerRuntime(
            manifest, options, listening, start_fetchers=fetchers, secret=secret, name=name, shared=shared
        )

    program = _program(manifest, options) if is_sparks_process() else None
    if program is None:
        return begin(None, "", shared=False)

    def start_process(secret: str, check: Callable[[], None]) -> Callable[[], str]:
        from kinesis_efo.spark.run_process import RunOrder, RunProcess

        process = RunProcess(RunOrder(manifest, options, listening, program, Process.of(os.getppid()), secret))
        process.start(check)
        return process.end

    apart = start_process if os.environ.get(RUN_PROCESS) else None
    return SharedRun(program, manifest, options, listening, begin, spark_waits, hand_over_output, apart)


def _program(manifest: Manifest, options: SourceOptions) -> Program | None:
    # Not the application's name: whoever reads a stream of one lease table needs the same lease.
    about = (options.program, manifest.region, manifest.lease_table, options.aws.endpoint_url or "")
    return Program.found(notes_directory(), Process.of(os.getppid()), "\n".join(about))
