"""Submits the jobs of fetchers from a client of Spark Connect, whenever a query of its session starts."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kinesis_efo.spark.cores import check_cores
from kinesis_efo.spark.fetcher_source import JOB, NAME, NUMBER, FetcherSource
from kinesis_efo.spark.pauses import Pauses

logger = logging.getLogger(__name__)

_by_session: Final[dict[str, FetcherJobs]] = {}


class FetcherJobs(StreamingQueryListener):
    """The jobs of the fetchers of one session's DataFrames.

    Nothing tells which DataFrame a query reads. So with every query that starts, each job that does not run is submitted. Where no
    planner waits for it on the driver's host, Spark ends it without a task.

    Args:
        submit: Runs the job with this name and number of fetchers until it has ended.
        active: Tells whether the session has queries. Raises where the session has ended.
        pause: Waits so many seconds.
    """

    def __init__(
        self, submit: Callable[[str, int], None], active: Callable[[], bool], pause: Callable[[float], object]
    ) -> None:
        self._submit = submit
        self._active = active
        self._pause = pause
        self._fetchers: dict[str, int] = {}
        self._due: dict[str, bool] = {}
        self._lock = threading.Lock()

    def add(self, fetchers: int) -> str:
        """Name the job of a DataFrame's fetchers.

        Args:
            fetchers: Number of tasks.
        """
        name = f"kinesis-efo-fetchers-{secrets.token_hex(8)}"
        with self._lock:
            self._fetchers[name] = fetchers
        return name

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: ARG002
        """Submits the jobs that do not run."""
        with self._lock:
            idle = [name for name in self._fetchers if name not in self._due]
            self._due |= dict.fromkeys(self._fetchers, True)
        for name in idle:
            threading.Thread(target=self._run, args=(name,), name="kinesis-efo fetchers", daemon=True).start()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Does nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Does nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Does nothing: the fetchers learn from the planner that their query has ended."""

    def _is_due(self, name: str) -> bool:
        """Whether a query has started since the job was submitted."""
        with self._lock:
            due, self._due[name] = self._due[name], False
            if not due:
                del self._due[name]
        return due

    def _run(self, name: str) -> None:
        pauses = Pauses()
        while self._is_due(name):
            pauses.begin()
            try:
                self._submit(name, self._fetchers[name])
            except Exception as error:
                pause = pauses.after_failure()
                logger.warning("the fetchers' job %s failed; submitting it again in %.0f s: %s", name, pause, error)
                self._pause(pause)
                self._again(name)

    def _again(self, name: str) -> None:
        try:
            active = self._active()
        except Exception as error:
            logger.info("the session has ended, and with it the fetchers' job %s: %s", name, error)
            return
        if active:
            with self._lock:
                self._due[name] = True


def fetchers_job(spark: Any, fetchers: int) -> str:
    """Name a job of fetchers, which is submitted whenever a query of a session starts.

    Args:
        spark: A session of Spark Connect.
        fetchers: Number of fetchers that are to come.

    Raises:
        ConfigurationError: So many would leave no core for micro-batches.
    """
    check_cores(spark.conf.get("spark.master", None) or "", fetchers)
    if (known := _by_session.get(spark.session_id)) is not None:
        return known.add(fetchers)

    def submit(name: str, fetchers: int) -> None:
        spark.addTag(name)  # of this thread
        spark.read.format(NAME).option(JOB, name).option(NUMBER, str(fetchers)).load().collect()

    spark.dataSource.register(FetcherSource)
    jobs = _by_session[spark.session_id] = FetcherJobs(
        submit, lambda: bool(spark.streams.active), threading.Event().wait
    )
    spark.streams.addListener(jobs)
    return jobs.add(fetchers)
