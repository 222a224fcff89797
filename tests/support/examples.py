"""How many examples and seeds a test tries: few in `make test`, many in `make seeds`."""

import os
from typing import Final

_FEW: Final = 25
EXAMPLES: Final = int(os.environ.get("KINESIS_EFO_EXAMPLES", _FEW))
"""How many examples Hypothesis makes for each test."""


def seeds(few: int) -> range:
    """The seeds of a scenario.

    Args:
        few: How many `make test` plays; with more examples there are more in proportion.
    """
    return range(few * EXAMPLES // _FEW)
