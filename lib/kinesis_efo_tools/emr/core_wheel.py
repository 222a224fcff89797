"""Reads a wheel of kinesis-efo-core, the native core, and checks whether it runs on a cluster.

The check uses the wheel's metadata, because a file name is easily changed. It rejects a core that the cluster cannot load. Otherwise,
Python would decode the records instead, and only the log would show this.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Final
from zipfile import BadZipFile, ZipFile

from packaging.tags import cpython_tags, parse_tag
from packaging.utils import canonicalize_name

from kinesis_efo.errors import PackagingError

DISTRIBUTION: Final = "kinesis-efo-core"
"""The distribution name of the native core."""
_OLD_NAMES: Final = ("manylinux1", "manylinux2010", "manylinux2014")


@dataclass(frozen=True, slots=True)
class CoreWheel:
    """A wheel of the native core. `tags` are its compatibility tags, such as `cp311-abi3-manylinux_2_17_x86_64`."""

    path: Path
    version: str
    tags: Sequence[str]

    def check(self, python: str, machine: str, glibc: tuple[int, int]) -> None:
        """Check that a cluster can load the core. Raises PackagingError if not.

        `machine` is the architecture's name in Linux: `x86_64` or `aarch64`.
        """
        version, abi = tuple(map(int, python.split("."))), f"cp{python.replace('.', '')}"
        # Since PEP 600, platform names contain the glibc version. The older names stand for glibc 2.5, 2.12 and 2.17.
        names = (*(f"manylinux_{glibc[0]}_{each}" for each in range(5, glibc[1] + 1)), *_OLD_NAMES)
        loaded = set(cpython_tags(version, [abi], [f"{name}_{machine}" for name in names]))
        if not any(parse_tag(each) & loaded for each in self.tags):
            raise PackagingError(
                f"--core: {self.path} is built for {', '.join(self.tags)}, and a cluster with Python {python} on {machine} loads what is "
                f"built for {abi} or abi3, and for manylinux_{glibc[0]}_{glibc[1]}_{machine} or older: give such a wheel, or another "
                "--architecture or --python"
            )

    def check_version(self, library: str) -> None:
        """Check that the core has the same version as the library. Raises PackagingError if not."""
        if self.version != library:
            raise PackagingError(
                f"--core: {self.path} is {DISTRIBUTION} {self.version}, and the package has kinesis-efo {library}: "
                "give the wheel of the same version"
            )


def read_core_wheel(path: Path) -> CoreWheel:
    """Read the metadata of a wheel. Raises PackagingError if the file is not a wheel of the native core."""
    try:
        with ZipFile(path) as wheel:
            metadata, about = (_headers(wheel, name) for name in ("METADATA", "WHEEL"))
        name, version = metadata["Name"], metadata["Version"]
        tags = [tag for tag in about.get_all("Tag", []) if tag.count("-") == 2]
    except (OSError, BadZipFile, KeyError, ValueError) as error:
        raise PackagingError(
            f"--core: {path} is not a wheel of {DISTRIBUTION}: {type(error).__name__}: {error}"
        ) from error
    if canonicalize_name(str(name)) != DISTRIBUTION:
        raise PackagingError(f"--core: {path} is not a wheel of {DISTRIBUTION}: it is one of {name}")
    if not version or not tags:
        raise PackagingError(f"--core: {path} is not a wheel of {DISTRIBUTION}: it names no version, or no platform")
    return CoreWheel(path, version, tags)


def _headers(wheel: ZipFile, name: str) -> Message:
    (member,) = (each for each in wheel.namelist() if re.fullmatch(rf"[^/]+\.dist-info/{name}", each))
    return HeaderParser().parsestr(wheel.read(member).decode(), headersonly=True)
