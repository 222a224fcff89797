"""``kinesis-efo top``: watches a live run, on a terminal, as lines of JSON, and as a web page."""

from kinesis_efo_tools.cli.top.command import top

__all__ = ["top"]
