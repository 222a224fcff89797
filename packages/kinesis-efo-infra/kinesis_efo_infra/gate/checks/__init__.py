"""This project's checkov checks. checkov loads them in its own virtual environment (`--external-checks-dir`)."""

from pathlib import Path

__all__ = [path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__"]
