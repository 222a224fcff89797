"""``kinesis-efo quickstart``: lets new users try the library on one machine, without an AWS account."""

from kinesis_efo_tools.cli.quickstart.command import quickstart

__all__ = ["quickstart"]
