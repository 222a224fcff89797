"""Checks before a job is submitted. They do not change anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from kinesis_efo.aws_errors import Cause, cause_of
from kinesis_efo.errors import LeaseError
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.manifest import Manifest
from kinesis_efo_tools.emr.glue import PYTHON as GLUE_PYTHON
from kinesis_efo_tools.emr.packing import PythonPlatform
from kinesis_efo_tools.emr.target import Site, Target, TargetKind


def consumer_faults(manifest: Manifest, kinesis: Any) -> Iterator[str]:
    """Check that every consumer exists and is ACTIVE; yields a sentence for each consumer that fails this check."""
    for stream in manifest.streams.values():
        if stream.polled:
            continue
        try:
            answer = kinesis.describe_stream_consumer(ConsumerARN=stream.consumer_arn)
        except ClientError as error:
            if cause_of(error) is Cause.MISSING:
                yield (
                    f"consumer {stream.consumer_arn} of stream {stream.name!r} does not exist (any more); the manifest "
                    f"{manifest.source} names it: deploy the environment"
                )
            else:
                yield (
                    f"consumer {stream.consumer_arn} cannot be looked at: {error}; "
                    "the caller needs kinesis:DescribeStreamConsumer"
                )
            continue
        except BotoCoreError as error:
            yield f"consumer {stream.consumer_arn} cannot be looked at: {error}; check region and network"
            continue
        status = answer["ConsumerDescription"]["ConsumerStatus"]
        if status != "ACTIVE":
            hint = "wait until it is ACTIVE" if status == "CREATING" else "deploy the environment"
            yield f"consumer {stream.consumer_arn} of stream {stream.name!r} is {status}: {hint}"


async def table_faults(store: LeaseStore) -> list[str]:
    """Check the lease table; returns a sentence if it cannot be used."""
    try:
        await store.check()
    except LeaseError as error:
        return [str(error)]
    return []


def release_faults(target: Target, site: Site, release_label: str) -> Iterator[str]:
    """Check that the target's release has Spark 4; yields a sentence if not.

    `release_label` is the release that the job requests; used only on EKS.
    """
    label = release_label if target.kind is TargetKind.EKS else site.release_label
    # EMR releases with Spark 4 are named emr-spark-8 or higher; EMR 7 has Spark 3 (EMR Release Guide).
    named = re.match(r"emr-spark-(\d+)[.-]", label)
    spark = re.match(r"(\d+)\.", site.spark)
    has_spark4 = int(spark[1]) >= 4 if spark else named is not None and int(named[1]) >= 8
    if not has_spark4:
        newer = "Glue 6.0" if target.kind is TargetKind.GLUE else "emr-spark-8.0.0"
        what = f"release {label or 'unknown'}" + (f" with Spark {site.spark}" if site.spark else "")
        yield f"{target} is of {what}, but kinesis-efo needs Spark 4: take {newer} or newer"


def architecture_faults(target: Target, site: Site, built: PythonPlatform) -> Iterator[str]:
    """Check that the archive is for the target's architecture and Python version; yields a sentence for each mismatch."""
    if site.architecture and site.architecture != built.architecture:
        yield (
            f"the environment archive is for {built.architecture}, but {target} runs on {site.architecture}: "
            f"package with --architecture {site.architecture}"
        )
    if target.kind is TargetKind.GLUE and built.python != GLUE_PYTHON:
        yield f"the environment archive is for Python {built.python}, but {target} has {GLUE_PYTHON}: package with --target glue"
