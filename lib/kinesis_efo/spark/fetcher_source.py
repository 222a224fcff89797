"""A query's fetchers as a batch data source, `kinesis-efo-fetchers`: reading it is their job, each of its partitions a fetcher.

A client of Spark Connect submits it, and never sees the plan: the source's partitions are made on the driver's host, where the
planner is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kinesis_efo.fetcher.remote import FetcherPlan
from kinesis_efo.spark.fetcher_task import RESULT, run_fetcher
from kinesis_efo.spark.plan_offer import offered_plan

NAME: Final = "kinesis-efo-fetchers"
"""The name for `spark.read.format(...)`."""
JOB: Final = "job"
"""The option that names the job."""
NUMBER: Final = "number"
"""The option that says how many fetchers there are."""

_PLANNER_SECONDS: Final = 60.0
"""How long the job waits for the planner of a query that has just started."""


class FetcherSource(DataSource):
    """The fetchers of one query. Not for users: `kinesis_efo.read_stream` submits it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> str:
        """One column; there are no rows."""
        return RESULT

    def reader(self, schema: object) -> FetcherReader:  # noqa: ARG002
        """Make the job."""
        return FetcherReader(self.options[JOB], int(self.options[NUMBER]))


class FetcherPlace(InputPartition):
    """A fetcher's place, with what it is told.

    Args:
        place: Which of the run's places it is.
        plan: What to fetch, and for whom.
    """

    def __init__(self, place: int, plan: FetcherPlan) -> None:
        super().__init__(place)
        self.place = place
        self.plan = plan


class FetcherReader(DataSourceReader):
    """The job: as many tasks as there are fetchers, or none if no planner wants them.

    Args:
        job: The job's name.
        fetchers: Number of fetchers.
    """

    def __init__(self, job: str, fetchers: int) -> None:
        self._job = job
        self._fetchers = fetchers

    def partitions(self) -> list[FetcherPlace]:
        """The fetchers' places, once a planner has offered its plan."""
        plan = offered_plan(self._job, _PLANNER_SECONDS)
        return [] if plan is None else [FetcherPlace(place, plan) for place in range(self._fetchers)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Fetch until the query has ended."""
        # If there are no partitions, Spark makes one of its own.
        if isinstance(partition, FetcherPlace):
            run_fetcher(partition.plan, partition.place)
        yield from ()
