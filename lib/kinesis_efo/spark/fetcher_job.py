"""Chooses how a query's fetchers are started: not at all, by the supervisor in the driver's program, or by a client of Spark Connect."""

from __future__ import annotations

from functools import partial

from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.fetchers_elsewhere import StartFetchers
from kinesis_efo.private_directory import notes_directory
from kinesis_efo.spark.job_request import JobRequest
from kinesis_efo.spark.plan_offer import PlanOffer


def start_fetchers(options: SourceOptions) -> StartFetchers | None:
    """What starts the fetchers of a query; None if the planner's process fetches.

    Args:
        options: The query's options.
    """
    if options.fetchers is None:
        return None
    if options.fetchers_job is not None:
        return partial(PlanOffer, options.fetchers_job, directory=notes_directory())
    assert options.supervisor is not None
    return partial(JobRequest, options.supervisor)
