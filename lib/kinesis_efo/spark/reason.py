"""Finds this library's own message in an error of Spark, which wraps it in tracebacks of two languages."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(
    # The message may have several lines: wrong options are one line each.
    r"^[ \t]*(?:[\w.]*\.)?kinesis_efo\.[\w.]*\.(?P<message>\w+: .*(?:\n(?!\s|={3} ).+)*)",
    re.MULTILINE,
)
_SQL_STATES: Final = re.compile(r"(?:\s*SQLSTATE: \w+)+\s*$")


def own_message(error: BaseException) -> str | None:
    """This library's message in an error, whole, with the name of the exception; None where there is none.

    >>> own_message(ValueError("Traceback ...\\nkinesis_efo.errors.OptionsError: 'a' is wrong\\n'b' is, too\\n SQLSTATE: 38000"))
    "OptionsError: 'a' is wrong\\n'b' is, too"
    """
    # An error that did not come through Spark has no line of a traceback in its text.
    text = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    found = [match["message"] for match in _OURS.finditer(text)]
    return _SQL_STATES.sub("", found[-1]) if found else None


def reason(error: BaseException) -> str:
    """What to tell the user of an error: this library's own message, else the first words of the error's.

    >>> reason(RuntimeError("[PATH_NOT_FOUND] no path\\n\\nDriver stacktrace:\\n..."))
    'RuntimeError: [PATH_NOT_FOUND] no path'
    """
    return own_message(error) or f"{type(error).__name__}: {str(error).strip().split(chr(10) * 2)[0]}".rstrip(": ")
