"""Environment files for tests. The tests read none of `infra/environments`, which users change."""

from pathlib import Path

import infra

DIRECTORY = Path(__file__).parent
"""Holds a small environment, and a protected one that is deployed after it."""
EXAMPLE = Path(infra.__file__).with_name("example.yaml")
"""The file that shows every setting."""
