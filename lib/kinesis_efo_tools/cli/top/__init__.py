"""``kinesis-efo top``: shows a live run on a terminal or as lines of JSON, and optionally on a web page."""

from kinesis_efo_tools.cli.top.command import top

__all__ = ["top"]
