"""One line on the terminal that is redrawn below what scrolls. Silent where standard error is no terminal."""

from __future__ import annotations

import shutil
import sys

_ERASE = "\r\x1b[2K"


class StatusLine:
    """The line. Rich's would need to own standard output, which here carries other people's bytes."""

    def __init__(self) -> None:
        self._file = sys.stderr
        self._terminal = self._file.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        """Draw it anew."""
        if self._terminal:
            width = shutil.get_terminal_size().columns
            self._file.write(f"{_ERASE}{text[: width - 1]}")
            self._file.flush()
            self._shown = True

    def clear(self) -> None:
        """Make room for what scrolls."""
        if self._shown:
            self._file.write(_ERASE)
            self._file.flush()
            self._shown = False
