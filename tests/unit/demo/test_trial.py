"""The trial of an account, with a query that only copies what is put."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from demo.run import DemoError
from demo.trial import Line, Means, Reading, declared, report
from tests.support.shared_runs import manifest

KINESIS: list[tuple[float, bytes]] = []


class Fed:
    """Puts each record at once."""

    def __init__(self, records: Iterator[tuple[str, bytes, str]], *_: Any) -> None:
        self.done, self.error, self._records = False, None, records

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _run(self) -> None:
        for _, data, _ in self._records:
            KINESIS.append((time.time(), data))
            time.sleep(0.01)
        self.done = True


class Query:
    """Copies what was put as rows: in one micro-batch every 50 ms, or as `fault` says."""

    exit_code = None

    def __init__(self, directory: Path, fault: str) -> None:
        self._rows, self._fault, self._read, self._batch = directory / "rows", fault, 0, 0
        self._running = threading.Event()
        self.shard = "shard-0"

    def start(self) -> None:
        self._rows.mkdir(exist_ok=True)
        self._running.set()
        threading.Thread(target=self._run, args=[self._running], daemon=True).start()

    def kill(self) -> None:
        self._running.clear()
        self._running = threading.Event()

    def wait(self, *_: object, **__: object) -> int:
        return 0

    def tail(self, _: int) -> str:
        return ""

    def _run(self, running: threading.Event) -> None:
        while running.is_set():
            found = KINESIS[self._read :]
            rows = [[self.shard, *json.loads(data)["record"], time.time()] for _, data in found]
            self._read += len(found)
            (path := self._rows / "writing").write_text(json.dumps(rows * 2 if self._fault == "twice" else rows))
            path.rename(self._rows / f"{self._batch}.json")
            self._batch += 1
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "twice"])
def test_each_phase_is_seen_and_every_record_is_counted(fault: str, tmp_path: Path) -> None:
    KINESIS.clear()
    query = Query(tmp_path, fault)

    def split(name: str) -> str:
        query.shard = "shard-1"
        return f"split {name}"

    means: Any = Means(lambda _: manifest("orders"), lambda *_: query, Fed, split, lambda: None, 0.2, 0.5)
    said: list[str] = []
    lines = Reading(tmp_path / "manifest.json", tmp_path, 0.5, said.append, means).lines()
    once = next(line for line in lines if line.what == "each record once")
    number = len(KINESIS)
    assert (once.status, once.found) == (
        ("failed", f"{number:,} put, 0 lost, {number} twice")
        if fault
        else ("passed", f"{number:,} put, 0 lost, 0 twice")
    )
    assert [line.what for line in lines][:3] == [
        "a split while it reads",
        "the process that reads killed",
        "the driver, with all its processes, killed",
    ]
    assert "records while nothing was disturbed" in lines[-1].found
    assert said[1] == "split dev-orders"


def test_a_report_has_no_id_of_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    shard = Line.of("in use", True, "123456789012:orders:shardId-000000000001:lake")
    text = report([Line.of("consumer", True, "arn:aws:kinesis:us-east-1:123456789012:stream/orders\nACTIVE"), shard])
    assert "(account):orders:shardId-000000000001:lake" in text
    assert "**not AWS, but http://127.0.0.1:4566**" in text
    assert "| passed | consumer | arn:aws:kinesis:us-east-1:(account):stream/orders ACTIVE |" in text


def test_trial_without_terraform_can_be_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", "no-such-terraform")
    with pytest.raises(DemoError, match="no-such-terraform is not on the PATH"), declared(tmp_path, print):
        pass
    assert list(tmp_path.iterdir()) == []
