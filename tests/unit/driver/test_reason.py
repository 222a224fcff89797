"""What users are told of errors that Spark has wrapped."""

import gc
import socket

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway

from kinesis_efo import errors
from kinesis_efo.driver.reason import cause, own_message, reason
from kinesis_efo.errors import DataLossError, OptionsError
from tests.support.ports import free_ports

pytestmark = pytest.mark.spark43
FAULTS = (
    "kinesis-efo option 'bufferBytes' must be a size such as 256m; got 'lots'",
    "kinesis-efo option 'readMode' must be efo or polling; got 'push'",
    "kinesis-efo has no option 'bufferbyte'; did you mean 'bufferBytes'?",
)
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "options/table.py", line 107, in parse\n'
    "    raise OptionsError(faults)\n"
    f"kinesis_efo.errors.OptionsError: {chr(10).join(FAULTS)}\n"
)
TASK = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: org.apache.spark.api.python.PythonException: "
    f"{TRACEBACK}\n\tat org.apache.spark.api.python.BasePythonRunner\n\nDriver stacktrace:\n\tat org.apache.spark.scheduler"
)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: {TRACEBACK} SQLSTATE: 38000", id="load"),
        pytest.param(
            f"[STREAM_FAILED] Query terminated with exception: {TRACEBACK} SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
            "Identifier: [id = 1, runId = 2]\nCurrent Committed Offsets: {}\n\nLogical Plan:\n~WriteToMicroBatchDataSourceV1\n",
            id="query",
        ),
        pytest.param(f"{TRACEBACK.rstrip()}\n=== Streaming Query ===\nIdentifier: [id = 1]", id="query without states"),
        pytest.param(f"{TASK}\nCaused by: {TASK}", id="task, twice"),
        pytest.param(
            f"kinesis_efo.errors.ManifestError: not this one\n\nDuring handling of the above, another occurred:\n\n{TRACEBACK}",
            id="the last of a chain",
        ),
    ],
)  # fmt: skip
def test_the_librarys_message_is_found_in_full(text: str) -> None:
    whole = "OptionsError: " + "\n".join(FAULTS)
    assert own_message(RuntimeError(text)) == reason(RuntimeError(text)) == reason(OptionsError(FAULTS)) == whole


def test_an_error_in_a_chain_is_returned_itself() -> None:
    inner, outer = DataLossError("gone"), RuntimeError("outer")
    outer.__cause__ = inner
    assert cause(outer) is inner


@pytest.mark.parametrize("error", [None, "", "Traceback\nValueError: kinesis_efo", ValueError("no")])
def test_other_errors_have_no_cause_here(error: BaseException | str | None) -> None:
    assert cause(error) is None


def test_every_exception_can_be_made_again() -> None:
    for name in errors.__dict__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, errors.KinesisEfoError):
            found = cause(f"Traceback\nkinesis_efo.errors.{name}: what: why; how")
            assert (type(found), str(found)) == (kind, "what: why; how")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("[PATH_NOT_FOUND] no path\n\nDriver stacktrace:\n..."), "RuntimeError: [PATH_NOT_FOUND] no path"),
        (
            RuntimeError(
                "[STREAM_FAILED] Query terminated with exception: Return Message: Traceback (most recent call last):\n"
                '  File "py4j/clientserver.py", line 644, in _call_proxy\n    return_value = getattr(self.pool[obj_id], method)()\n'
                "sqlite3.OperationalError: database is locked\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
            ),
            "sqlite3.OperationalError: database is locked",
        ),
        (
            RuntimeError(
                "An error occurred while calling o29.load.\n: java.io.IOException: no space\n\tat java.base/x\n\tat y"
            ),
            "RuntimeError: An error occurred while calling o29.load.\n: java.io.IOException: no space",
        ),
        (
            RuntimeError(
                "[STREAM_FAILED] Query terminated with exception: disk is full SQLSTATE: XXKST\n=== Streaming Query ==="
            ),
            "RuntimeError: [STREAM_FAILED] Query terminated with exception: disk is full SQLSTATE: XXKST\n=== Streaming Query ===",
        ),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (KeyError("database"), "KeyError: 'database'"),
    ],
)
def test_other_errors_are_described_by_their_first_lines(error: Exception, told: str) -> None:
    assert own_message(error) is None
    assert reason(error) == told


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: kinesis-efo. Make sure",
        "Traceback (most recent call last):\n  File serializers.py\nModuleNotFoundError: No module named 'kinesis_efo'\n SQLSTATE: 38000",
    ],
)
def test_a_python_without_the_library_is_explained(text: str) -> None:
    assert "set PYSPARK_PYTHON" in reason(RuntimeError(text))
    assert "PYSPARK" not in reason(RuntimeError("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka."))


def test_a_slow_python_process_is_explained() -> None:
    text = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST\n=== Streaming"
    assert "start each when the one before has its first micro-batch" in reason(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        "[STREAM_FAILED] Query [id = 1e58, runId = 9491] terminated with exception:  SQLSTATE: XXKST (no cause message)\n=== Streaming",
        "[STREAM_FAILED] Query [id = 1e58, runId = 9491] terminated with exception: null SQLSTATE: XXKST\n=== Streaming Query ===",
        "Query [id = 1e58, runId = 9491] terminated with exception: null",
        "null\n=== Streaming Query ===\nIdentifier: orders [id = 1e58, runId = 9491]",
        "Job aborted: java.io.EOFException\n\tat java.base/java.io.DataInputStream.readInt",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
    ],
)
def test_a_killed_python_process_is_explained(text: str) -> None:
    told = reason(RuntimeError(text))
    assert "killed a Python process of Spark" in told
    assert "memoryOverhead" in told


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's
def test_the_jvms_end_is_reported_with_its_cause() -> None:
    # Nothing listens at the port, as after the end of the JVM.
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=free_ports()[0]))
    with pytest.raises(Exception) as ended:  # noqa: PT011
        gateway.jvm.java.lang.System.currentTimeMillis()
    assert "Spark's JVM has ended, and with it all queries" in reason(ended.value)
    assert "Nothing was lost: start the program again" in reason(ended.value)
    with pytest.raises(ConnectionRefusedError) as refused, socket.socket() as other:
        other.connect(("127.0.0.1", free_ports()[0]))
    gateway.close()
    del gateway, ended
    gc.collect()
    assert reason(refused.value) == "ConnectionRefusedError: [Errno 111] Connection refused", "that is not the JVM"


def test_damaged_checkpoint_names_the_file_and_doctor() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 6527, runId = ffbc] terminated with exception: Failed to read log file file:/cp/offsets/2. Incomplete log "
        "file SQLSTATE: XXKST\n=== Streaming Query ==="
    )
    assert reason(RuntimeError(text)) == (
        "the checkpoint is damaged: Failed to read log file file:/cp/offsets/2. Incomplete log file; `kinesis-efo doctor --checkpoint` with "
        "its location says how to recover"
    )
