"""The demo itself, with few events: its exit code is what people believe."""

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from demo import trial
from demo.ledger import Tally, compare, sentence, sentence_of_read
from demo.output import committed, tally, tally_of_read
from demo.run import FLIGHTS, LATE, events
from kinesis_efo_local import LocalAws
from tests.support.class_archive import jvm_options
from tests.support.commands import outcome
from tests.support.missing import terraform
from tests.support.terraform.harness import stand_in

ROOT = Path(__file__).resolve().parents[2]
EVENTS = 3000


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_demo_passes_and_detects_a_wrong_event(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    command = [sys.executable, "-m", "demo", "--events", str(EVENTS), "--seconds", "4", "--directory", str(directory)]
    # Users have Spark as it is shipped.
    environment = {**os.environ, "CI": "true", "JAVA_TOOL_OPTIONS": jvm_options(as_shipped=True)}
    done = outcome(command, seconds=380, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        f"EXACTLY ONCE: all {EVENTS:,} events are archived, none lost, none twice, with the job killed once"
        in done.stdout
    )
    assert f"THE SAME AGAIN: a batch read of the streams gives the archive's {EVENTS:,} events" in done.stdout
    assert "split shard shardId-000000000000 of flights in two" in done.stdout
    assert done.stdout.count(", 0 lost, 0 too many, checksum = ") == 2

    read = tally_of_read(directory / "read")
    assert sum(one.count for one in read.values()) == EVENTS
    # The same comparison, over an archive in which one file is tampered with.
    lake = directory / "lake"
    put = tally(lake)
    assert sum(one.count for one in put.values()) == EVENTS
    victim = max(committed(lake), key=lambda file: pq.ParquetFile(file).metadata.num_rows)
    whole = pq.ParquetFile(victim).read()
    for tampered, said in ((whole.slice(1), "1 lost"), (_doubled(whole), "1 too many"), (_altered(whole), "altered")):
        pq.write_table(tampered, victim)
        assert said in sentence(compare(put, tally(lake)), kills=1)
        assert sentence_of_read(compare(tally(lake), read), 1.0).startswith("BROKEN")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_trial_creates_reports_and_removes_resources(tmp_path: Path) -> None:
    terraform()
    directory = tmp_path / "out"
    with LocalAws() as aws, stand_in(tmp_path, aws.environment) as environment:
        done = outcome(
            [sys.executable, "-m", "demo.trial", "--directory", str(directory), "--seconds", "5"],
            seconds=880,
            cwd=ROOT,
            env={**environment, "JAVA_TOOL_OPTIONS": jvm_options(as_shipped=True)},
        )
        left = aws.client("kinesis").list_streams()["StreamNames"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert left == []
    assert not (directory / "terraform").exists()
    assert f"**not AWS, but {aws.endpoint_url}**" in done.stdout
    assert aws.settings.account_id not in done.stdout
    for passed in (
        "orders over HTTP/1.1",
        "a second subscription after 1 s",
        "a second subscription after 6 s",
        "encryption",
        "a split while it reads",
        "the process that reads killed",
        "the driver, with all its processes, killed",
        "from put to row | p50",
    ):
        assert f"| passed | {passed}" in done.stdout
    assert " put, 0 lost, 0 twice |" in done.stdout
    assert "| failed |" not in done.stdout
    assert (directory / "report.md").read_text().strip() in done.stdout


def test_leftovers_of_a_trial_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "terraform").mkdir()
    with pytest.raises(typer.Exit) as ended:
        trial.main(None, tmp_path, 30.0)
    assert ended.value.exit_code == 1
    assert f"`terraform -chdir={tmp_path / 'terraform'} destroy`" in capsys.readouterr().err


def test_each_event_is_counted_before_it_is_put() -> None:
    tallies = {FLIGHTS: Tally(), LATE: Tally()}
    put = list(events(1000, tallies))
    assert [stream for stream, _, _ in put].count(LATE) == tallies[LATE].count > 100
    again = {FLIGHTS: Tally(), LATE: Tally()}
    for stream, payload, key in put:
        again[stream].add(json.loads(payload)["id"], key, payload)
    assert all(verdict.exact for verdict in compare(tallies, again))


def _doubled(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(0, 1)])


def _altered(table: pa.Table) -> pa.Table:
    data = table["data"].to_pylist()
    data[0] = data[0][:-1] + b" }"
    return table.set_column(table.schema.get_field_index("data"), "data", pa.array(data, pa.binary()))


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    command = [sys.executable, "-m", "demo", "--directory", str(tmp_path)]
    done = outcome(command, seconds=60, cwd=ROOT)
    assert done.returncode == 1
    assert "holds files that are not the demo's" in done.stdout
    assert (tmp_path / "precious").exists()
