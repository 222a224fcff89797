"""Converts shards and streams to the keys of their lease table rows, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from kinesis_efo.positions import ShardKey

T = TypeVar("T")

RUN_PREFIX: Final = "#run:"
"""Prefix of the key of a run's row. Stream names cannot contain `#`."""


class LeaseKeys:
    """Converts between the shards of one application and the keys of their rows. `streams` maps logical names to Kinesis names.

    A shard's row has the key `<logical stream name>:<shard id>`. Keys of KCL applications are decoded, too: the shard id alone if the KCL
    application reads one stream, else `<account>:<stream>:<creation epoch>:<shard id>`.

    >>> keys = LeaseKeys({"orders": "dev-orders", "clicks": "dev-clicks"})
    >>> keys.encode(ShardKey("orders", "shardId-000000000000"))
    'orders:shardId-000000000000'
    >>> keys.decode("123456789012:dev-clicks:1700000000:shardId-000000000007")
    ShardKey(stream='clicks', shard='shardId-000000000007')
    >>> keys.stream("#run:orders")
    'orders'
    """

    def __init__(self, streams: Mapping[str, str]) -> None:
        if not streams:
            raise ValueError("an application reads at least one stream")
        self._logical = {kinesis: logical for logical, kinesis in streams.items()}
        self._names = frozenset(streams)
        self._only = next(iter(streams)) if len(streams) == 1 else None

    def encode(self, shard: ShardKey) -> str:
        """Return the key of a shard's row. Raises ValueError if the application does not read the shard's stream."""
        if shard.stream not in self._names:
            raise ValueError(f"{shard.stream!r} is not a stream of this application: {', '.join(sorted(self._names))}")
        return f"{shard.stream}:{shard.shard}"

    def decode(self, key: str) -> ShardKey | None:
        """Return the shard of a row; None for other rows and for streams that this application does not read."""
        match key.split(":"):
            case [shard] if self._only:
                return ShardKey(self._only, shard)
            case [stream, shard] if stream in self._names:
                return ShardKey(stream, shard)
            case [_, name, _, shard] if name in self._logical:
                return ShardKey(self._logical[name], shard)
        return None

    def stream(self, key: str) -> str | None:
        """Return the logical name of the stream that a row belongs to; None if this application does not read the stream."""
        if key.startswith(RUN_PREFIX):
            name = key.removeprefix(RUN_PREFIX)
            return name if name in self._names else None
        shard = self.decode(key)
        return None if shard is None else shard.stream

    def by_shard(self, rows: Mapping[str, T]) -> dict[ShardKey, T]:
        """Return the rows of shards, by shard. If a shard has several rows, the row with a key in this library's form takes precedence."""
        found: dict[ShardKey, T] = {}
        for key, row in rows.items():
            shard = self.decode(key)
            if shard is not None and (shard not in found or key == self.encode(shard)):
                found[shard] = row
        return found


def run_key(stream: str) -> str:
    """Return the key of a run's lease on a stream; `stream` is the logical name.

    >>> run_key("orders")
    '#run:orders'
    """
    return f"{RUN_PREFIX}{stream}"


def sibling(key: str, shard_id: str) -> str:
    """Return the lease key of another shard of the same stream.

    >>> sibling("orders:shardId-000000000000", "shardId-000000000001")
    'orders:shardId-000000000001'
    """
    prefix, colon, _ = key.rpartition(":")
    return f"{prefix}{colon}{shard_id}"
