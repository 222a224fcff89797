"""A daemon for Python workers as a user may have one. After each task, its workers log how many objects the garbage collector leaves alone."""

import gc
import os
import tempfile
from pathlib import Path

from pyspark.daemon import manager


def log_of(jvm: int) -> Path:
    """The log of the workers that a JVM has started."""
    return Path(tempfile.gettempdir()) / f"frozen-objects-{jvm}"


if __name__ == "__main__":
    log = log_of(os.getppid())

    def collect() -> int:
        with log.open("a") as file:
            print(gc.get_freeze_count(), file=file)
        return 0

    gc.collect = collect  # type: ignore[assignment]
    manager()
