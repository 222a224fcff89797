"""Reads a wheel of kinesis-efo-core, the native core, and tells whether it runs on a cluster.

Its metadata count, not the name of its file, which is changed easily. A core that a cluster cannot load must not be packed: Python
would decode in its place, and only the log would say so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Final, NamedTuple
from zipfile import BadZipFile, ZipFile

from kinesis_efo.errors import PackagingError

DISTRIBUTION: Final = "kinesis-efo-core"
"""What such a wheel installs."""

# What the names before PEP 600 stand for.
_LEGACY: Final = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_MANYLINUX: Final = re.compile(r"(?:(manylinux1|manylinux2010|manylinux2014)|manylinux_(\d+)_(\d+))_(\w+)")
_INTERPRETER: Final = re.compile(r"cp3(\d+)")


class _Tag(NamedTuple):
    interpreter: str
    abi: str
    platform: str


@dataclass(frozen=True, slots=True)
class CoreWheel:
    """A wheel of the native core.

    Attributes:
        path: The file.
        version: Its version.
        tags: What it is built for, such as `cp311-abi3-manylinux_2_17_x86_64`.
    """

    path: Path
    version: str
    tags: Sequence[str]

    def check(self, python: str, machine: str, glibc: tuple[int, int]) -> None:
        """Check that a cluster can load it.

        Args:
            python: The cluster's version of Python, such as `3.11`.
            machine: Its processors, as Linux calls them: `x86_64` or `aarch64`.
            glibc: Its version of glibc.

        Raises:
            PackagingError: It cannot.
        """
        minor = int(python.partition(".")[2])
        left = [_Tag(*tag.split("-")) for tag in self.tags]
        for fits, otherwise in (
            (lambda tag: "linux" in tag.platform, "and a cluster runs Linux"),
            (
                lambda tag: tag.platform.endswith(f"_{machine}"),
                f"and the package is for {machine}: give the wheel for it, or another --architecture",
            ),
            (
                lambda tag: (least := _glibc(tag.platform)) is not None and least <= glibc,
                f"and a cluster loads what is built for manylinux_{glibc[0]}_{glibc[1]} or older: give such a wheel",
            ),
            (lambda tag: _loads(tag, minor), f"and the package is for Python {python}: give an abi3 wheel"),
        ):
            left = [tag for tag in left if fits(tag)]
            if not left:
                raise PackagingError(f"--core: {self.path} is built for {', '.join(self.tags)}, {otherwise}")

    def check_version(self, library: str) -> None:
        """Check that it belongs to a version of the library.

        Raises:
            PackagingError: It does not.
        """
        if self.version != library:
            raise PackagingError(
                f"--core: {self.path} is {DISTRIBUTION} {self.version}, and the package has kinesis-efo {library}: "
                "give the wheel of the same version"
            )


def read_core_wheel(path: Path) -> CoreWheel:
    """Read what a wheel says of itself.

    Raises:
        PackagingError: The file cannot be read, or is no wheel of the core.
    """
    try:
        with ZipFile(path) as wheel:
            metadata, about = (_headers(wheel, name) for name in ("METADATA", "WHEEL"))
        name, version = metadata["Name"], metadata["Version"]
        tags = [tag for tag in about.get_all("Tag", []) if tag.count("-") == 2]
    except (OSError, BadZipFile, KeyError, ValueError) as error:
        raise PackagingError(
            f"--core: {path} is no wheel of {DISTRIBUTION}: {type(error).__name__}: {error}"
        ) from error
    if re.sub(r"[-_.]+", "-", str(name)).lower() != DISTRIBUTION:
        raise PackagingError(f"--core: {path} is no wheel of {DISTRIBUTION}: it is one of {name}")
    if not version or not tags:
        raise PackagingError(f"--core: {path} is no wheel of {DISTRIBUTION}: it names no version, or no platform")
    return CoreWheel(path, version, tags)


def _headers(wheel: ZipFile, name: str) -> Message:
    (member,) = (each for each in wheel.namelist() if re.fullmatch(rf"[^/]+\.dist-info/{name}", each))
    return HeaderParser().parsestr(wheel.read(member).decode(), headersonly=True)


def _glibc(platform: str) -> tuple[int, int] | None:
    """The oldest glibc that a platform promises to run with; None if it promises none, as musllinux and plain Linux do."""
    found = _MANYLINUX.fullmatch(platform)
    if not found:
        return None
    return _LEGACY[found[1]] if found[1] else (int(found[2]), int(found[3]))


def _loads(tag: _Tag, minor: int) -> bool:
    """Whether Python 3.`minor` loads what has a tag: the stable ABI serves every version from the tag's own on."""
    found = _INTERPRETER.fullmatch(tag.interpreter)
    if not found:
        return False
    built = int(found[1])
    return built <= minor if tag.abi == "abi3" else built == minor and tag.abi == tag.interpreter
