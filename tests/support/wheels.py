"""Makes small wheels."""

from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile


def make_wheel(
    directory: Path,
    *tags: str,
    name: str = "kinesis-efo-core",
    version: str = "0.2.0",
    file: str | None = None,
    without: Sequence[str] = (),
) -> Path:
    """Write a wheel with one module, named after it.

    Args:
        directory: Where to.
        tags: What it says that it is built for; the first is in the file's name.
        name: The distribution.
        version: Its version.
        file: Name of the file; None for the one that belongs to it.
        without: Files of its metadata that are left out.
    """
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    path = directory / (file or f"{module}-{version}-{tags[0]}.whl")
    contents = {
        f"{module}/__init__.py": f"__version__ = {version!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n" + "".join(f"Tag: {tag}\n" for tag in tags),
        f"{about}/RECORD": "",
    }
    with ZipFile(path, "w") as wheel:
        for member, text in contents.items():
            if member.rpartition("/")[2] not in without:
                wheel.writestr(member, text)
    return path
