"""``kinesis-efo quickstart``: a first try for new users, on one machine, without an AWS account."""

from kinesis_efo_tools.cli.quickstart.command import quickstart

__all__ = ["quickstart"]
