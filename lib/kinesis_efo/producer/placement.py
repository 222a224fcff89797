"""Makes the shard map for a stream's record distribution, and warns of settings that this distribution does not allow."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache

from kinesis_efo.distribution import Distribution
from kinesis_efo.producer.routing import AnyShard, HashRange, ShardMap
from kinesis_efo.producer.service import Service, StreamTraits
from kinesis_efo.producer.settings import ProducerSettings

logger = logging.getLogger(__name__)


async def shard_map(service: Service, traits: StreamTraits, listed: Sequence[HashRange] | None = None) -> ShardMap:
    """Make the shard map of a stream.

    Args:
        service: Lists the shards, unless Kinesis distributes records itself.
        traits: The stream's traits.
        listed: The shards if they were just listed; None: list them.

    Raises:
        ClientError: The shards cannot be listed; botocore's exception.
        WriteError: No shard is open.
    """
    if traits.distribution is Distribution.AUTO:
        return AnyShard()
    return ShardMap(await service.shards() if listed is None else listed, traits.distribution)


def warn_of_consequences(stream: str, traits: StreamTraits, settings: ProducerSettings) -> None:
    """Log the settings that a producer cannot follow; each once in a process."""
    for what in _consequences(traits, settings):
        _warn_once(f"stream {stream}: {what}")


def _consequences(traits: StreamTraits, settings: ProducerSettings) -> Iterator[str]:
    if traits.distribution is Distribution.UNKNOWN and settings.aggregate:
        yield (
            "records are not aggregated, because it cannot be told whether Kinesis distributes the stream's records itself "
            f"(RecordDistributionStrategy), in which case readers may drop aggregates: {traits.unknown}"
        )
    if traits.distribution is Distribution.AUTO and (settings.aggregate or settings.ordered):
        asked = [what for what, on in (("aggregated", settings.aggregate), ("kept in order", settings.ordered)) if on]
        yield (
            f"records are not {' or '.join(asked)}: Kinesis distributes the stream's records itself "
            "(RecordDistributionStrategy AUTO), whatever their keys are"
        )


@cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)
