"""The parts of `kinesis-efo quickstart` that need no Spark."""

import os
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
import pytest

from kinesis_efo.driver.java import Java, find_java
from kinesis_efo.errors import ConfigurationError
from kinesis_efo_tools.cli.local_process import Ready
from kinesis_efo_tools.cli.quickstart.command import check, introduction, template, write
from kinesis_efo_tools.cli.quickstart.flights import flights
from kinesis_efo_tools.operate.findings import Finding, Status
from tests.support.commands import outcome
from tests.support.messages import raises

SPARK = Finding("Spark", Status.PASSED, "PySpark 4.3.0")
JAVA = Java(True, "Java 17 (/usr/bin/java)")


def java_of(directory: Path, version: str) -> dict[str, str]:
    """The environment of a machine with a Java of that version."""
    found = directory / "bin" / "java"
    found.parent.mkdir(exist_ok=True)
    found.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    found.chmod(0o755)
    return {"JAVA_HOME": str(directory)}


@pytest.mark.parametrize(
    ("spark", "java", "fits"), [("4.0.1", 21, True), ("4.0.1", 24, False), ("4.1.0", 25, False), ("4.3.0", 25, True)]
)
def test_java_that_is_too_new_for_spark_is_refused(spark: str, java: int, fits: bool, tmp_path: Path) -> None:
    found = find_java(java_of(tmp_path, f"{java}.0.1"), spark)
    assert found.runs_spark is fits
    assert (f"is too new for Spark {spark}" in found.detail, bool(found.fix)) == (not fits, not fits)


def test_missing_spark_or_java_has_its_remedy(tmp_path: Path) -> None:
    missing = Finding("Spark", Status.UNKNOWN, "PySpark is not installed here")
    with raises(ConfigurationError, "PySpark is not installed here; pip install 'kinesis-efo[spark,local]'"):
        check(JAVA, missing)
    with pytest.raises(ConfigurationError, match=r"there is no Java here.*apt-get install openjdk-17-jre-headless"):
        check(find_java({"PATH": str(tmp_path)}), SPARK)
    check(find_java(java_of(tmp_path, "21.0.2")), SPARK)
    with pytest.raises(ConfigurationError, match=r"Spark needs Java 17 or 21, but Java 11 \(.*brew install"):
        check(find_java(java_of(tmp_path, "11.0.22")), SPARK)


def test_program_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "first.py"
    assert not write(path)
    assert path.read_text() == template()
    assert not write(path)
    path.write_text(template() + "# mine\n")
    assert write(path)
    assert path.read_text().endswith("# mine\n")


def test_program_fits_flights_and_manifest() -> None:
    text = template()
    compile(text, "first.py", "exec")
    (flight,) = islice(flights(Random(1)), 1)
    schema = text.partition('SCHEMA = "')[2].partition('"')[0]
    assert [column.split()[0] for column in schema.split(", ")] == list(msgspec.to_builtins(flight))
    assert 'manifest="quickstart-local.json"' in text


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("own", [False, True])
def test_lines_for_the_shell_are_whole(width: int, own: bool) -> None:
    variables = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:40955",
        "AWS_ACCESS_KEY_ID": "AKIALOCALKINESISEFO0",
        "AWS_SECRET_ACCESS_KEY": "local-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    manifest = Path("/home/somebody/a folder/quickstart-local.json")
    ready = Ready.of_this_process("http://127.0.0.1:40955", variables, manifest, ["flights"])
    lines = introduction(ready, width, own=own).splitlines()
    assert max(map(len, lines)) <= width
    start = lines.index("in another shell:") + 1
    commands = [line for line in lines[start:] if "kinesis-efo" not in line]
    names = [*variables, "KINESIS_EFO_MANIFEST"]
    script = "\n".join(commands) + "\n" + "\n".join(f'echo "${name}"' for name in names)
    said = outcome(["sh", "-c", script], env={"PATH": os.environ["PATH"]}, check=True)
    assert said.stdout.splitlines() == [*variables.values(), str(manifest)]
