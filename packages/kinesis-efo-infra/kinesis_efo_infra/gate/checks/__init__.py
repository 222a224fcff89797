"""This project's own checkov checks. checkov loads them in its own environment (`--external-checks-dir`)."""

from pathlib import Path

__all__ = [path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__"]
