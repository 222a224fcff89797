"""The options of a batch read: those of the source, with other rules for `startingPosition`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kinesis_efo.errors import OptionsError
from kinesis_efo.options.readers import Bounds, refusal, starts
from kinesis_efo.options.source import BATCH, SourceOptions
from kinesis_efo.positions import TRIM_HORIZON

STARTS_RULE = (
    "TRIM_HORIZON, AT_TIMESTAMP:<ISO 8601 or epoch ms>, or JSON with one of them for each stream, or AFTER:<sequence number> "
    "for a shard"
)

_REVEALING: Final = frozenset({BATCH.lower(), "shardspertask", "batch.shardspertask", "batch.maxrate"})


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The parsed options of a batch read."""

    source: SourceOptions = field(default_factory=SourceOptions)
    starts: Bounds = field(default_factory=lambda: Bounds(TRIM_HORIZON))

    @property
    def start_name(self) -> str:
        """The name of the argument or the option that said where to start, for messages."""
        return "since" if "since" in self.source.times else "kinesis-efo option 'startingPosition'"

    @property
    def end_name(self) -> str:
        """The name of the end in messages: the argument or the option that gave it."""
        return "until" if "until" in self.source.times else "kinesis-efo option 'endingPosition'"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> BatchOptions:
        """Parse the options that Spark passes. Names are case-insensitive.

        >>> BatchOptions.parse({"manifest": "m.json", "startingPosition": "LATEST"})
        Traceback (most recent call last):
            ...
        kinesis_efo.errors.OptionsError: kinesis-efo option 'startingPosition' must be where there is something to read: \
TRIM_HORIZON or AT_TIMESTAMP:<time>. After the tip there is nothing yet; spark.readStream reads what comes; got 'LATEST'
        """
        given = {name.lower(): text for name, text in options.items()}
        start = given.pop("startingposition", "TRIM_HORIZON")
        faults: list[str] = []
        begin = Bounds(TRIM_HORIZON)
        try:
            begin = starts(start)
        except ValueError as error:
            faults.append(f"kinesis-efo option 'startingPosition' {refusal(error, STARTS_RULE, start)}")
        try:
            source = replace(SourceOptions.parse({**given, BATCH: "true"}), read_mode="polling")
        except OptionsError as error:
            raise OptionsError([*faults, *error.faults]) from None
        if faults:
            raise OptionsError(faults)
        return cls(source, begin)


def are_for_batch(options: Iterable[str]) -> bool:
    """Whether options can only be meant for a batch read. At `load()`, Spark does not say which kind of read it is."""
    return any(name.lower() in _REVEALING for name in options)
