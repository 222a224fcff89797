"""Examples of error messages: `scripts/messages.py` makes the catalog of them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from kinesis_efo.errors import KinesisEfoError

E = TypeVar("E", bound=KinesisEfoError)


@contextmanager
def raises(kind: type[E], text: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of exactly this class whose message is exactly `text`, in which `...` stands for any text."""
    with pytest.raises(kind) as raised:
        yield raised
    assert re.fullmatch(".*".join(map(re.escape, text.split("..."))), str(raised.value), re.DOTALL), str(raised.value)
    assert raised.type is kind
