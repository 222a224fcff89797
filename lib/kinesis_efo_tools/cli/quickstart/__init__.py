"""``kinesis-efo quickstart``: the first minutes of a new user, on one machine, without an AWS account."""

from kinesis_efo_tools.cli.quickstart.command import quickstart

__all__ = ["quickstart"]
