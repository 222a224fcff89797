"""Environment files for tests, which read none of `infra/environments`: those are for whoever deploys to change."""

from __future__ import annotations

from pathlib import Path

import infra

DIRECTORY = Path(__file__).parent
"""Holds an environment that is small, and one that is protected and comes after it."""
EXAMPLE = Path(infra.__file__).with_name("example.yaml")
"""The file that shows every setting there is."""
