"""The command line `kinesis-efo`. Each command is a module of this package, imported when the command is called."""

from kinesis_efo_tools.cli.app import main

__all__ = ["main"]
