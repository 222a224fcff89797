"""Our own checkov checks. Loaded by checkov in its own environment (`--external-checks-dir`), never by this project."""

from pathlib import Path

__all__ = [path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__"]
