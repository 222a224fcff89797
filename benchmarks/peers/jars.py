"""Jars of other readers, by the lock `jars.toml`: from Maven Central, or from the mirror that Maven's settings name.

`python -m benchmarks.peers.jars` writes the lock anew from what it wants of each reader; that needs Maven's command, `mvn`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

from benchmarks.machine import ROOT

CENTRAL: Final = "https://repo.maven.apache.org/maven2"
LOCK: Final = Path(__file__).with_name("jars.toml")
KEPT: Final = ROOT / "build" / "jars"
_AT_ONCE: Final = 8
_SECONDS: Final = 60.0
_MIRRORS_OF_CENTRAL: Final = {"*", "central", "external:*"}


class Jar(NamedTuple):
    """An artifact, and what it must contain.

    Attributes:
        coordinates: `group:artifact:version`.
        sha256: Of the file, in hexadecimal digits.
    """

    coordinates: str
    sha256: str

    @property
    def path(self) -> str:
        """Where a repository has it."""
        group, artifact, version = self.coordinates.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"


class Locked(NamedTuple):
    """What one reader needs.

    Attributes:
        wanted: Coordinates of what was asked for.
        jars: That, and all that it depends on.
    """

    wanted: tuple[str, ...]
    jars: tuple[Jar, ...]

    def version(self, artifact: str) -> str:
        """The version of an artifact."""
        (found,) = {jar.coordinates.split(":")[2] for jar in self.jars if jar.coordinates.split(":")[1] == artifact}
        return found


def read_lock(text: str) -> dict[str, Locked]:
    """What each reader needs, by its name.

    Raises:
        ValueError: An artifact or a hash does not look like one.
    """
    found = {}
    for name, entry in tomllib.loads(text).items():
        jars = tuple(Jar(*pair) for pair in entry["jars"].items())
        for jar in jars:
            if jar.coordinates.count(":") != 2 or ".." in jar.coordinates or "/" in jar.coordinates:
                raise ValueError(f"{name}: {jar.coordinates!r} is not group:artifact:version")
            if len(jar.sha256) != 64 or not set(jar.sha256) <= set("0123456789abcdef"):
                raise ValueError(f"{name}: {jar.sha256!r} is not the SHA-256 of {jar.coordinates}")
        found[name] = Locked(tuple(entry["wanted"]), jars)
    return found


def write_lock(locked: Mapping[str, Locked]) -> str:
    """The text of a lock."""
    lines = ["# Written by `python -m benchmarks.peers.jars`."]
    for name, entry in locked.items():
        wanted = ", ".join(f'"{each}"' for each in entry.wanted)
        lines += ["", f"[{name}]", f"wanted = [{wanted}]", "", f"[{name}.jars]"]
        lines += [f'"{jar.coordinates}" = "{jar.sha256}"' for jar in sorted(entry.jars)]
    return "\n".join(lines) + "\n"


def repository(settings: str | None) -> str:
    """Where to fetch from: the first mirror of Central that Maven's settings name, or Central itself.

    Args:
        settings: The text of `~/.m2/settings.xml`, or None if there is none.
    """
    for mirror in ET.fromstring(settings).iterfind("{*}mirrors/{*}mirror") if settings else ():
        of = {part.strip() for part in mirror.findtext("{*}mirrorOf", "").split(",")}
        if of & _MIRRORS_OF_CENTRAL and "!central" not in of and (url := mirror.findtext("{*}url")):
            return url.strip().rstrip("/")
    return CENTRAL


def fetch(jars: Iterable[Jar], kept: Path = KEPT, source: str | None = None) -> list[Path]:
    """Jars as files. What was fetched before is not fetched again.

    Args:
        jars: Which.
        kept: Where they are kept, as in a repository.
        source: URL of the repository; by default what Maven's settings say.

    Raises:
        OSError: One is not within reach.
        ValueError: One is not what the lock says.
    """
    settings = Path.home() / ".m2" / "settings.xml"
    url = repository(settings.read_text() if settings.exists() else None) if source is None else source
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda jar: _fetched(jar, kept, url), jars))


def _fetched(jar: Jar, kept: Path, source: str) -> Path:
    path = kept / jar.path
    if path.exists() and _sha256(path.read_bytes()) == jar.sha256:
        return path
    with urllib.request.urlopen(f"{source}/{jar.path}", timeout=_SECONDS) as answer:
        content: bytes = answer.read()
    if (found := _sha256(content)) != jar.sha256:
        raise ValueError(f"{jar.coordinates} has the SHA-256 {found}, where the lock says {jar.sha256}")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.rename(path)
    return path


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _resolved(wanted: Iterable[str]) -> tuple[Jar, ...]:
    """What Maven takes for some artifacts at run time."""
    depends = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *each.split(":")
        )
        for each in wanted
    )
    with tempfile.TemporaryDirectory() as place:
        Path(place, "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>a</groupId><artifactId>a</artifactId><version>1</version>"
            f"<dependencies>{depends}</dependencies></project>"
        )
        copied = Path(place, "jars")
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true"]
        subprocess.run(["mvn", "-q", "-B", *goal, f"-DoutputDirectory={copied}"], cwd=place, check=True)
        jars = []
        for path in sorted(copied.rglob("*.jar")):
            *group, artifact, version, _ = path.relative_to(copied).parts
            jar = Jar(f"{'.'.join(group)}:{artifact}:{version}", _sha256(path.read_bytes()))
            if path.relative_to(copied) != Path(jar.path):
                raise ValueError(f"{path.name} has a classifier, which the lock cannot name")
            jars.append(jar)
    return tuple(jars)


if __name__ == "__main__":
    before = read_lock(LOCK.read_text())
    LOCK.write_text(write_lock({name: Locked(entry.wanted, _resolved(entry.wanted)) for name, entry in before.items()}))
    print(f"wrote {LOCK}", file=sys.stderr)
