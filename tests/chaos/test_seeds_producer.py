"""Runs of the producer from seeds, in virtual time: what is confirmed is stored, in order and once, or a call raises an error.

`make test` plays ten seeds, `make seeds` 1,000. The second test reverts one fix at a time, and requires that the search finds it.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.emulator.writing import play
from tests.support.commands import outcome

ROOT = Path(__file__).parents[2]
FIRST, LAST = map(int, os.environ.get("KINESIS_EFO_SEEDS", "0:10").split(":"))
TOGETHER = 10
SEEDS = 200


# A simulated Ctrl-C may come while a generator is closed, which ignores it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("first", range(FIRST, LAST, TOGETHER))
def test_what_is_confirmed_is_stored_or_a_call_raises(first: int) -> None:
    outcomes = [play(seed) for seed in range(first, min(first + TOGETHER, LAST))]
    # A run in which nothing was confirmed would prove nothing.
    assert sum(outcome.confirmed for outcome in outcomes) > 5 * len(outcomes)


ENGINE, QUEUE, RECORD = "producer/engine.py", "producer/queue.py", "producer/record.py"
Edit = tuple[str, str, str]
REVERTED: dict[str, tuple[int, list[Edit]]] = {
    "an outage leaves records out": (32, [
        (QUEUE, "or \"\"), outcome, settled)", "or \"\"), outcome, settled, now)"),
        (QUEUE, "fault: WriteFault, outcome: _LaneOutcome, settled: RequestOutcome) -> None:", "fault: WriteFault, outcome: _LaneOutcome, settled: RequestOutcome, now: float) -> None:"),
        (QUEUE, "            self._retry(parcel, fault.code, fault.text, outcome, settled)\n", """
            for record in parcel.records:
                if record.refused_at is not None and now - record.refused_at > self._settings.retry_timeout:
                    settled.refused.append((record, RetriesExhaustedError("given up")))
                else:
                    outcome.again.append(record)
"""),
    ]),
    "a put does not hold the lock": (17, [
        (ENGINE, "        with self._lock:\n            self._check_signal()\n            self.check()\n", "        if True:\n            self.check()\n"),
    ]),
    "an outage of requests and one of their shard are counted apart": (16, [
        (QUEUE, "                self._fails(lane, fault.text, now, settled)\n", "                pass\n"),
    ]),
    "each request in flight counts as a try with expired keys": (0, [(QUEUE, "        elif self._backoff.counts(request.sent_at):\n", "        else:\n")]),
    "credentials out of reach end it": (21, [(
        "producer/faults.py", "Retry.YES, AccessRefusedError, \"check", "Retry.BRIEFLY, AccessRefusedError, \"check"
    )]),
    "progress does not end an outage": (22, [(QUEUE, "        if outcome.taken or not outcome.again:\n", "        if False:\n")]),
    "an aggregate that readers drop counts as written": (27, [
        (QUEUE, "not request.keyed or self._is_readable(parcel, result.shard, shard if is_current else None):", "True:"),
    ]),
    "records that are left out are not counted": (6, [(ENGINE, "            self._counts.records_refused += len(settled.refused)\n", "")]),
    "a failure ends futures of acknowledged records": (79, [
        (ENGINE, "                sent = self._take_sent(settled) if self._sent else []\n                self._conclude(settled)\n", "                self._conclude(settled)\n                sent = self._take_sent(settled) if self._sent else []\n"),
    ]),
    "an interrupted abort forgets futures": (1278, [
        (ENGINE, "            sent = [*self._sent]\n", "            sent, self._sent = self._sent, set()\n"),
    ]),
    "two threads end one future": (2259, [
        (ENGINE, "            sent = [*self._sent]\n        self._end_sent(sent,", "        self._end_sent([*self._sent],"),
        (ENGINE, "    with suppress(InvalidStateError):  # another thread may have ended it\n", "    if not future.done():\n"),
    ]),
    "an interrupted put leaves wrong counts": (356, [(ENGINE, "                self._break(error)\n                raise\n", "                raise\n")]),
    "a put is accepted after the close": (11, [(ENGINE, "            self.check()\n            try:", "            try:")]),
    "a put that waits is accepted after the close": (4, [(ENGINE, "            self._end_waits(self._failure or self.closed_error())\n", "")]),
    "close accepts puts until it returns": (3, [("producer/producer.py", "            engine.begin_closing()\n", "")]),
    "a second close reports nothing": (0, [
        (ENGINE, "        if self._failure is not None:\n            raise self._failure.with_traceback(None)\n        if self._left.records:", "        if False:"),
    ]),
    "hash keys have leading zeros": (0, [(RECORD, 'plain = text.lstrip("0") or text[-1:]', "plain = text")]),
    "a refused request is not halved": (29, [
        (QUEUE, "        if fault.kind is RecordRefusedError:\n            # Repeatedly halve", "        if False:\n            # Repeatedly halve"),
    ]),
    "records of a key change their order in a retry": (4, [(QUEUE, "        for record in reversed(records):", "        for record in records:")]),
    "two records of a key share a request": (3, [(QUEUE, "            if one_per_key and", "            if False and")]),
    "an idle producer trusts its list of shards": (19, [(ENGINE, "        if self._clock.monotonic() - self._seen_at > REPLACED_SECONDS:", "        if False:")]),
    "a shard keeps its range when its stream is created again": (81, [(QUEUE, "is_current = request.map is self.shards or", "is_current = True or")]),
    "a list of shards is requested once": (0, [
        (ENGINE, "await self._patience.call(f\"ListShards of stream {self._stream!r}\", self._service.shards)", "await self._service.shards()"),
    ]),
    "a shard that backs off delays others": (0, [
        (ENGINE, "self._settings.max_in_flight and self._is_later(self._settings.linger):", "self._settings.max_in_flight and self._timer is None:"),
    ]),
    "a close calls a loop that ends": (0, [("producer/blocking.py", "if self._ending is not None:", "if False:")]),
    "a forked process may call it": (0, [("processes.py", "return os.getpid() != self.pid", "return False")]),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what", REVERTED)
def test_a_fix_that_is_reverted_is_found(what: str, tmp_path: Path) -> None:
    found_by, edits = REVERTED[what]
    shutil.copytree(
        ROOT / "lib" / "kinesis_efo", tmp_path / "kinesis_efo", ignore=shutil.ignore_patterns("__pycache__")
    )
    for file, now, before in edits:
        path = tmp_path / "kinesis_efo" / file
        text = path.read_text()
        assert text.count(now) == 1, f"{file} has changed: {now!r}"
        path.write_text(text.replace(now, before))
    # The seed that found it when this was written comes first. Another one does once the runs have changed.
    program = f"from tests.emulator.writing import first_broken; print(first_broken([{found_by}, *range({SEEDS})]))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    done = outcome([sys.executable, "-c", program], 3600, cwd=ROOT, env=environment, check=True)
    assert done.stdout.startswith("seed "), done.stdout + done.stderr
