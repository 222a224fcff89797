"""What `import kinesis_efo` gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kinesis_efo


def test_the_names() -> None:
    assert all(hasattr(kinesis_efo, name) for name in kinesis_efo.__all__)
    assert "read_stream" in kinesis_efo.__all__
    with pytest.raises(AttributeError, match="has no attribute 'reed_stream'"):
        _ = kinesis_efo.reed_stream


def test_the_package_is_imported_without_spark() -> None:
    """Producers and tools have no PySpark, and importing it takes a second."""
    program = "import sys, kinesis_efo, kinesis_efo.fetcher.runtime; print('pyspark' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.strip() == "False"
