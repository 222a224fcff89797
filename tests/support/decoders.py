"""Runs the tests of a module with each of the decoders: Python's and the core's, if it is installed. Both read events, too."""

from collections.abc import Iterator
from typing import Final

import pytest

from kinesis_efo.records import core
from tests.support.missing import not_here

DEEP: Final = 1_000_000
"""Too many levels of JSON. From Python 3.14 on, the stack's size is the limit, and not their number."""
TOO_DEEP: Final = "recursion|Stack overflow"


@pytest.fixture(autouse=True, scope="module", params=["python", "core"])
def decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decode with one of them, in processes that the test starts, too."""
    environment = {core.SWITCH: "off" if request.param == "python" else "on"}
    choice = core.choose(environment)
    if request.param == "core" and choice.core is None:
        not_here("kinesis-efo-core is missing; make core")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "CHOSEN", choice)
        for name, value in environment.items():
            patch.setenv(name, value)
        yield
