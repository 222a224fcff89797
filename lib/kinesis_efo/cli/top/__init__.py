"""``kinesis-efo top``: how a live run does from moment to moment, on a terminal, as lines of JSON, and as a page."""

from kinesis_efo.cli.top.command import top

__all__ = ["top"]
