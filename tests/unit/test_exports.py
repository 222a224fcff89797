"""What `import kinesis_efo` gives, and that jobs and examples need nothing else of the library."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import kinesis_efo
from kinesis_efo import errors

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "AsyncProducer", "AwsSettings", "BatchKeywords", "BatchProgress", "LagListener", "LowLatency", "MetricsSettings", "Producer",
    "ProducerMetrics", "ProducerSettings", "SCHEMA", "ShardKey", "SinkKeywords", "StreamKeywords", "Written", "__version__", "cause",
    "from_json", "job", "keep_alive", "low_latency", "position", "progress", "read", "read_stream", "register", "stop_signals",
    "wait_for_stop", "write_once",
}  # fmt: skip
PROGRAMS = [path for directory in ("jobs", "examples") for path in sorted((ROOT / directory).glob("*.py"))]


def test_public_names_are_these() -> None:
    """A change here is one that users notice: docs/versioning.md."""
    assert {name for name in kinesis_efo.__all__ if not hasattr(errors, name)} == PUBLIC


def test_former_names_work_with_a_warning() -> None:
    assert dir(kinesis_efo) == sorted(kinesis_efo.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'reed_stream'"):
        _ = kinesis_efo.reed_stream
    with pytest.warns(DeprecationWarning, match="kinesis_efo.FrameError is now kinesis_efo.errors.FrameError"):
        assert kinesis_efo.FrameError is errors.FrameError
    for former, name in (("BlockingProducer", "Producer"), ("await_stop", "wait_for_stop")):
        with pytest.warns(DeprecationWarning, match=f"kinesis_efo.{former} is now kinesis_efo.{name}"):
            assert getattr(kinesis_efo, former) is getattr(kinesis_efo, name)


def test_lazy_names_match_the_type_checkers_view() -> None:
    (told,) = (node for node in ast.parse(inspect.getsource(kinesis_efo)).body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in told.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert homes.keys() >= PUBLIC - {"__version__"}
    for name, home in homes.items():
        assert getattr(kinesis_efo, name) is getattr(importlib.import_module(str(home)), name)


WALKED = """importlib, pkgutil, kinesis_efo, pyspark_kinesis_efo
for module in pkgutil.walk_packages(kinesis_efo.__path__, "kinesis_efo."):
    importlib.import_module(module.name)"""
DECODED = """kinesis_efo.records.decoder as module
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, ShardKey
payload = b'{"Records":[{"SequenceNumber":"1","Data":"eA==","PartitionKey":"k","ApproximateArrivalTimestamp":1.5}]}'
(batch,) = module.decode([payload], ShardKey("orders", "s"), TRIM_HORIZON, SHARD_END, deaggregate=True)"""
OTHERS = {"kinesis_efo_local", "kinesis_efo_tools", "boto3", "cbor2", "moto", "pytest", "rich", "typer", "uv"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "never"),
    [
        # Who asks for the version or an exception need not wait for the AWS SDK, and producers and tools have no PySpark.
        ("kinesis_efo", {"pyspark", "aiobotocore", "botocore", "pyarrow", "asyncio"}),
        ("kinesis_efo.run.thread; kinesis_efo.Producer, kinesis_efo.DataLossError", {"pyspark", "pandas"}),
        # Spark imports the source in four processes before a query reads its first record, and in every worker.
        ("pyspark_kinesis_efo", {"aiobotocore", "botocore", "pyarrow", "pandas"}),
        ("kinesis_efo.spark.stream_reader", {"aiobotocore", "botocore", "pandas", "pyarrow.compute"}),
        (DECODED, {"pandas"}),
        (WALKED, OTHERS),
    ],
    ids=["the package", "a producer", "the source", "a worker", "what decodes", "the runtime"],
)
def test_processes_import_only_what_they_need(modules: str, never: set[str]) -> None:
    program = f"import sys, {modules}\nfound = {never} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_programs_import_only_the_public_package(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    ours = {name for name in imported if name and name.split(".")[0] in ("kinesis_efo", "pyspark_kinesis_efo")}
    assert ours <= {"kinesis_efo"}
