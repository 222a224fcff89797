"""The readers that are compared: how each is made and started. All read over TLS; a JVM has a heap of 1 GB at most."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pyspark

from benchmarks.machine import CREDENTIALS, ROOT, AwsProcess
from benchmarks.peers.jars import LOCK, fetch, read_lock
from tests.support.world import World

CONNECTOR: Final = "SPARK_SQL_KINESIS_JAR"
"""The variable that names the jar of AWS' connector for Spark: no repository has it."""
TRIGGERS: Final = {
    "0 seconds": "no trigger",
    "250 milliseconds": "each 250 ms",
    "1 second": "each 1 s",
    "5 seconds": "each 5 s",
}
"""The triggers with which this library is measured, and their names in the table."""
_PASSWORD: Final = "changeit"


@dataclass(frozen=True, slots=True)
class Source:
    """What a reader reads, and may use.

    Attributes:
        world: The stream `orders`, its consumer and its lease table.
        shards: Their number.
        aws: Where they are.
        place: A directory for what it keeps.
    """

    world: World
    shards: int
    aws: AwsProcess
    place: Path


@dataclass(frozen=True, slots=True)
class Reader:
    """One of those that are compared.

    Attributes:
        name: What it is, with its version.
        command: What starts it.
        begins_late: Whether it waits for a minute before it reads.
    """

    name: str
    command: Callable[[Source], Sequence[str]]
    begins_late: bool = False


def readers(place: Path) -> tuple[list[Reader], list[str]]:
    """Those that there are on this machine.

    Args:
        place: A directory for what is compiled.

    Returns:
        They, and a line for each of those that cannot be had.
    """
    ours, missing = f"kinesis-efo, Spark {pyspark.__version__}", []
    found = [Reader(f"{ours}, {words}", partial(_ours, trigger=trigger)) for trigger, words in TRIGGERS.items()]
    jar = os.environ.get(CONNECTOR)
    if jar is None:
        missing.append(f"spark-sql-kinesis-connector is left out: {CONNECTOR} does not name its jar")
    else:
        version = Path(jar).stem.partition("_2.13-")[2]
        name = f"spark-sql-kinesis-connector {version}"
        found.append(Reader(name, lambda source: _connector(source, jar)))
    for key, made in (("flink", _flink), ("kcl", _kcl)):
        try:
            found += made(place / key)
        except OSError as error:
            missing.append(f"{key} is left out: its jars cannot be had ({error})")
        except subprocess.CalledProcessError as error:
            missing.append(f"{key} is left out: its program cannot be compiled ({error})")
    return found, missing


def environment(aws: AwsProcess, place: Path) -> dict[str, str]:
    """What every reader's process has of variables.

    Args:
        aws: What it is to trust.
        place: Where the store of certificates for Java is made.
    """
    store = place / "trusted.p12"
    importing = ["-importcert", "-noprompt", "-alias", "local", "-storetype", "PKCS12", "-storepass", _PASSWORD]
    subprocess.run(
        [_java("keytool"), *importing, "-file", aws.ca_path, "-keystore", str(store)], check=True, capture_output=True
    )
    java = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword={_PASSWORD}"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        **CREDENTIALS,
        "AWS_REGION": aws.settings.region,
        "AWS_CA_BUNDLE": aws.ca_path,
        # The local Kinesis speaks JSON only: for SDKs for Java of both versions.
        "CBOR_ENABLED": "false",
        "AWS_CBOR_DISABLE": "true",
        "JAVA_TOOL_OPTIONS": java,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lib'}",
    }


def _ours(source: Source, trigger: str) -> list[str]:
    options = {"manifest": str(source.world.manifest), "endpointUrl": source.aws.tls_endpoint_url}
    options["startingPosition"] = "TRIM_HORIZON"
    return _spark("kinesis-efo", source.place, 2, trigger, options)


def _connector(source: Source, jar: str) -> list[str]:
    options = {
        "kinesis.region": source.aws.settings.region,
        # The endpoint does not name it.
        "kinesis.kinesisRegion": source.aws.settings.region,
        "kinesis.streamName": source.world.streams["orders"],
        "kinesis.endpointUrl": source.aws.tls_endpoint_url,
        "kinesis.consumerType": "SubscribeToShard",
        "kinesis.consumerName": "connector",
        "kinesis.startingposition": "TRIM_HORIZON",
    }
    # Each of its tasks subscribes to a shard for some seconds: with fewer at once, shards would wait for each other.
    return _spark("aws-kinesis", source.place, source.shards, "0 seconds", options, jar)


def _spark(source: str, place: Path, tasks: int, trigger: str, options: Mapping[str, str], *jar: str) -> list[str]:
    given = [source, str(place), str(tasks), trigger, msgspec.json.encode(options).decode(), *jar]
    return [sys.executable, "-m", "benchmarks.peers.spark_reader", *given]


def _flink(place: Path) -> list[Reader]:
    locked = read_lock(LOCK.read_text())["flink"]
    run = _compiled(place, fetch(locked.jars), "FlinkReader")
    name = f"Flink {locked.version('flink-runtime')}, connector {locked.version('flink-connector-kinesis')}"
    # As the configuration of a real Flink has it, for Java 17: its serializers look into these.
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util")]
    return [Reader(name, lambda source: [*run, *opened, "FlinkReader", *_where(source)])]


def _kcl(place: Path) -> list[Reader]:
    locked = read_lock(LOCK.read_text())["kcl"]
    run = _compiled(place, fetch(locked.jars), "KclReader", "SdkReader")
    name = f"KCL {locked.version('amazon-kinesis-client')}"
    return [
        Reader(name, lambda source: [*run, "KclReader", *_where(source), "fan-out"], begins_late=True),
        Reader(f"{name}, polling", lambda source: [*run, "KclReader", *_where(source), "polling"], begins_late=True),
        Reader(f"SDK for Java {locked.version('kinesis')}", lambda source: [*run, "SdkReader", *_where(source)]),
    ]


def _where(source: Source) -> tuple[str, str]:
    return source.aws.tls_endpoint_url, source.world.streams["orders"]


def _compiled(place: Path, jars: Sequence[Path], *programs: str) -> list[str]:
    """The beginning of a command that runs one of the programs."""
    path = os.pathsep.join([str(place), *map(str, jars)])
    sources = [str(Path(__file__).with_name(f"{name}.java")) for name in ("Seen", *programs)]
    subprocess.run(
        [_java("javac"), "-nowarn", "-d", str(place), "-cp", path, *sources], check=True, capture_output=True
    )
    return [_java("java"), "-Xmx1g", "-cp", path]


def _java(program: str) -> str:
    return str(Path(os.environ["JAVA_HOME"], "bin", program))
