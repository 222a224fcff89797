"""The options of a batch read: those of the source, with other rules for `startingPosition`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kinesis_efo.options.readers import Bounds, starts
from kinesis_efo.options.settings import Start
from kinesis_efo.options.source import BATCH, HINTS, REMOVED, SOURCE_OPTIONS, SourceOptions, contradictions
from kinesis_efo.options.table import OptionTable
from kinesis_efo.positions import TRIM_HORIZON

_STARTS: Final = "EARLIEST (TRIM_HORIZON), a time in ISO 8601 or epoch ms, or JSON with one for each stream or shard"
_TABLE: Final = OptionTable(
    "kinesis-efo",
    SourceOptions,
    [
        replace(option, read=lambda text: Start(bounds=starts(text)), rule=_STARTS)
        if option.name == "startingPosition"
        else option
        for option in (*SOURCE_OPTIONS, *HINTS)
    ],
    removed=REMOVED,
)
_REVEALING: Final = frozenset({BATCH.lower(), "shardspertask", "batch.shardspertask", "batch.maxrate"})


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The parsed options of a batch read."""

    source: SourceOptions = field(default_factory=SourceOptions)
    starts: Bounds = field(default_factory=lambda: Bounds(TRIM_HORIZON))

    def name(self, argument: str, option: str) -> str:
        """The name of a bound in messages: the argument or the option that gave it."""
        return argument if argument in self.source.times else f"kinesis-efo option '{option}'"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> BatchOptions:
        """Parse the options that Spark passes. Names are case-insensitive.

        >>> BatchOptions.parse({"manifest": "m.json", "startingPosition": "LATEST"})
        Traceback (most recent call last):
            ...
        kinesis_efo.errors.OptionsError: kinesis-efo option 'startingPosition' must be where there is something to read: \
TRIM_HORIZON or AT_TIMESTAMP:<time>. After the tip there is nothing yet; spark.readStream reads what comes; got 'LATEST'
        """
        source = replace(
            _TABLE.parse({**options, BATCH: "true"}, contradictions), given=dict(options), read_mode="polling"
        )
        return cls(source, source.start.bounds or Bounds(TRIM_HORIZON))


def are_for_batch(options: Iterable[str]) -> bool:
    """Whether options can only be meant for a batch read. At `load()`, Spark does not say which kind of read it is."""
    return any(name.lower() in _REVEALING for name in options)
