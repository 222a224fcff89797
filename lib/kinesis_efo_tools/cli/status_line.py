"""A status line on the terminal, redrawn below the output. Prints nothing if standard error is not a terminal."""

from __future__ import annotations

import shutil
import sys

from kinesis_efo.errors import visible

_ERASE = "\r\x1b[2K"


class StatusLine:
    """Draws the status line on standard error. Rich's status line is unsuitable: it controls standard output, which has the records."""

    def __init__(self) -> None:
        self._file = sys.stderr
        self._terminal = self._file.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        """Draw the line with a new text."""
        if self._terminal:
            width = shutil.get_terminal_size().columns
            self._file.write(f"{_ERASE}{visible(text)[: width - 1]}")
            self._file.flush()
            self._shown = True

    def clear(self) -> None:
        """Erase the line, before other output."""
        if self._shown:
            self._file.write(_ERASE)
            self._file.flush()
            self._shown = False
