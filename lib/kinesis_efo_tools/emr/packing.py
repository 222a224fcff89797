"""Builds the environment archive: a project with its locked dependencies, for the Python of a cluster.

Spark unpacks it for the driver and each executor (`--archives`), and starts its `bin/python`: a launcher that finds the cluster's own
Python and puts the packages on its path. The launcher starts the driver, the planner process and the workers; in Spark 4, `--py-files`
would not reach the planner process.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Final, Literal, TypeAlias
from urllib.request import url2pathname
from zipfile import BadZipFile

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from kinesis_efo.errors import PackagingError
from kinesis_efo_tools.emr.core_wheel import DISTRIBUTION, CoreWheel
from kinesis_efo_tools.emr.wheels import SUFFIX, pack_wheels, read_wheels

Architecture: TypeAlias = Literal["x86_64", "arm64"]
Run: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], str]
"""Runs a command with additional environment variables; returns its output. Raises `PackagingError` if the command fails."""

# EMR 7 and later run on Amazon Linux 2023, which has glibc 2.34.
_GLIBC: Final = (2, 34)
_PLATFORMS: Final = {"x86_64": "x86_64-manylinux_2_34", "arm64": "aarch64-manylinux_2_34"}
_MACHINES: Final = {"x86_64": "x86_64", "arm64": "aarch64"}
PYTHONS: Final = ("3.11", "3.12", "3.13")
"""Python versions in emr-spark-8.0.0 (EMR Release Guide)."""
# Packages that the cluster provides; copies in the archive would shadow them.
_CLUSTERS_OWN: Final = ("pyspark", "py4j")
# Modification time of all packed files: 1980, the earliest that a zip file, such as a wheel, supports.
_EPOCH: Final = 315_532_800
_KEPT_BACK: Final = ("AWS_", "ACTIONS_", "GH_TOKEN", "GITHUB_TOKEN", "VIRTUAL_ENV")
"""Prefixes of environment variables that are not passed to uv and build backends: AWS and GitHub credentials, and means to obtain them."""
_LAUNCHER: Final = Template("""\
#!/bin/sh
# Python $python of this host, with the packages of this archive on its path.
here=$$(cd "$$(dirname "$$0")/.." && pwd) || exit 1
fail() { echo "kinesis-efo environment $$here: $$*" >&2; exit 1; }
[ "$$(uname -m)" = $machine ] ||
    fail "built for $architecture, but this host is $$(uname -m); package with the --architecture of the cluster"
right='import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$python")'
if [ -n "$${KINESIS_EFO_PYTHON:-}" ] && ! "$$KINESIS_EFO_PYTHON" -c "$$right"; then
    fail "KINESIS_EFO_PYTHON must be the path of a Python $python; got '$$KINESIS_EFO_PYTHON'"
fi
for python in "$${KINESIS_EFO_PYTHON:-python$python}" python$python /usr/bin/python$python /usr/local/bin/python$python; do
    if command -v "$$python" >/dev/null 2>&1; then
        PYTHONPATH="$$here/lib$${PYTHONPATH:+:$$PYTHONPATH}"
        export PYTHONPATH
        exec "$$python" "$$@"
    fi
done
fail "built for Python $python, which this host does not have (PATH is $$PATH);" \\
    "package with the --python of the cluster, or set KINESIS_EFO_PYTHON to the path of a Python $python"
""")

# Python imports this as `sitecustomize` at startup. Removes the launcher's PYTHONPATH from the environment of child processes.
_SITE: Final = """\
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

here = os.path.dirname(os.path.abspath(__file__))
original = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and os.path.abspath(each) != here]
if original:
    os.environ["PYTHONPATH"] = os.pathsep.join(original)
else:
    os.environ.pop("PYTHONPATH", None)
# A child that is started with sys.executable finds the packages through the launcher.
sys.executable = os.path.join(os.path.dirname(here), "bin", "python")
# This module hides the one that the host may have.
found = PathFinder.find_spec("sitecustomize", [each for each in sys.path if os.path.abspath(each) != here])
if found is not None and found.loader is not None:
    found.loader.exec_module(module_from_spec(found))
"""


@dataclass(frozen=True, slots=True)
class PythonPlatform:
    """Python version and processor architecture of a cluster."""

    python: str = "3.11"
    architecture: Architecture = "x86_64"

    def __post_init__(self) -> None:
        if self.python not in PYTHONS:
            raise PackagingError(
                f"--python must be one that EMR has with Spark 4 ({', '.join(PYTHONS)}); got {self.python!r}"
            )
        if self.architecture not in _PLATFORMS:
            raise PackagingError(f"--architecture must be one of {', '.join(_PLATFORMS)}; got {self.architecture!r}")


@dataclass(frozen=True, slots=True)
class Archive:
    """An environment archive. `digest` is the SHA-256 of the contents, in hex; `packages` has the versions of packages by name."""

    path: Path
    digest: str
    platform: PythonPlatform
    packages: Mapping[str, str]

    @property
    def suffix(self) -> str:
        """Suffix of the file's name: `.tar.gz`, or for Glue, the suffix of a zip of wheels."""
        return SUFFIX if self.path.name.endswith(SUFFIX) else ".tar.gz"

    @property
    def core(self) -> str | None:
        """Version of the native core in the archive; None without a core, in which case Python decodes the records."""
        return self.packages.get(DISTRIBUTION)


def package(
    project: Path,
    directory: Path,
    platform: PythonPlatform,
    *,
    core: CoreWheel | None = None,
    run: Run | None = None,
    wheels: bool = False,
) -> Archive:
    """Build the environment archive of a project; with `wheels`, as a zip of wheels for Glue.

    `project` is the directory of a uv project that is or uses this library. It contains `pyproject.toml`, and it or a parent directory
    contains `uv.lock`. `core` is a native core to add; None adds a core only if the project depends on one.

    Raises:
        PackagingError: uv is missing; the lock file is missing or out of date; a dependency has no wheel for the platform or comes
            from git; or the core does not run on the platform or has a different version than the library.
    """
    if core:
        core.check(platform.python, _MACHINES[platform.architecture], _GLIBC)
    project = project.absolute()
    places = {"pyproject.toml": [project], "uv.lock": [project, *project.parents]}
    for name, directories in places.items():
        if not any((each / name).is_file() for each in directories):
            raise PackagingError(
                f"{project} has no {name}: --project must be the directory of a uv project with a lock file"
            )
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="kinesis-efo-package-") as scratch:
        root = Path(scratch)
        tree = root / "tree"
        _install(project, root, tree / "lib", platform, core, run or _run)
        if not wheels:
            _strip(tree / "lib")
        packages = installed(tree / "lib")
        if "kinesis-efo" not in packages:
            raise PackagingError(
                f"the project {project} does not depend on kinesis-efo, which its jobs need: add the dependency"
            )
        if core:
            core.check_version(packages["kinesis-efo"])
        described = {"python": platform.python, "architecture": platform.architecture, "packages": packages}
        archive, suffix = root / "archive", SUFFIX if wheels else ".tar.gz"
        if wheels:
            digest = pack_wheels(tree / "lib", archive, _left_out(tree / "lib"), described)
        else:
            _write_launcher(tree / "bin" / "python", platform)
            text = json.dumps(described, indent=1, sort_keys=True) + "\n"
            (tree / "environment.json").write_text(text, encoding="utf-8")
            digest = pack(tree, archive)
        name = f"environment-py{platform.python}-{platform.architecture}-{digest[:16]}{suffix}"
        shutil.move(archive, directory / name)
    return Archive(directory / name, digest, platform, packages)


def read_archive(path: Path) -> Archive:
    """Read the metadata of an environment archive. Raises PackagingError if the file is not such an archive, or cannot be read."""
    try:
        if path.name.endswith(SUFFIX):
            described = read_wheels(path)
            digest = described["digest"]
        else:
            digest = _digest(path)
            with tarfile.open(path) as tar:
                member = tar.extractfile("environment.json")
                described = json.loads(member.read()) if member else {}
        platform = PythonPlatform(described["python"], described["architecture"])
        return Archive(path, digest, platform, described["packages"])
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, BadZipFile) as error:
        raise PackagingError(
            f"{path} is not an archive of `kinesis-efo emr package`: {type(error).__name__}: {error}"
        ) from error


def pack(tree: Path, file: Path) -> str:
    """Write a directory as a reproducible `.tar.gz`: its bytes do not depend on time, path or user.

    Returns the SHA-256 of the uncompressed archive, in hex.
    """
    with (
        file.open("wb") as raw,
        # Most of the contents are machine code. With level 6, packing would take four times as long for an archive that is a tenth smaller.
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in _contents(tree):
            tar.add(path, str(path.relative_to(tree)), recursive=False, filter=_normalized)
    return _digest(file)


def _digest(file: Path) -> str:
    # Hash the uncompressed contents, because the compressed bytes depend on the version of zlib.
    with gzip.open(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _contents(tree: Path) -> Iterator[Path]:
    return (path for path in sorted(tree.rglob("*")) if "__pycache__" not in path.parts)


def _normalized(member: tarfile.TarInfo) -> tarfile.TarInfo:
    executable = member.isdir() or member.name == "bin/python"
    member.mode = 0o755 if executable else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = _EPOCH
    return member


def installed(directory: Path) -> dict[str, str]:
    """Return the versions of the packages in a directory, by name."""
    return {canonicalize_name(each.name): each.version for each in distributions(path=[str(directory)])}


def _write_launcher(file: Path, platform: PythonPlatform) -> None:
    file.parent.mkdir()
    text = _LAUNCHER.substitute(
        python=platform.python, architecture=platform.architecture, machine=_MACHINES[platform.architecture]
    )
    file.write_text(text, encoding="ascii")
    (file.parents[1] / "lib" / "sitecustomize.py").write_text(_SITE, encoding="ascii")


def _install(
    project: Path, scratch: Path, target: Path, platform: PythonPlatform, core: CoreWheel | None, run: Run
) -> None:
    """Install the project, its locked dependencies and the native core into a directory."""
    uv = find_uv()
    # Hatchling and setuptools write this time into the wheel, instead of the files' times.
    environment = {"SOURCE_DATE_EPOCH": str(_EPOCH)}
    requirements, wheels = scratch / "requirements.txt", scratch / "wheels"
    exported = run(
        [
            uv, "export", "--quiet", "--project", str(project), "--locked", "--no-default-groups", "--no-emit-project", "--no-editable",
            *(argument for name in _CLUSTERS_OWN for argument in ("--prune", name)),
            "--no-annotate", "--no-header",
        ],
        environment,
    )  # fmt: skip
    root = next(each for each in (project, *project.parents) if (each / "uv.lock").is_file())
    locked, sources = _sorted(exported, root, platform)
    requirements.write_text("\n".join(locked), encoding="utf-8")
    for source in (*sources, project):
        run([uv, "build", "--quiet", "--wheel", "--out-dir", str(wheels), str(source)], environment)
    install = [
        uv, "pip", "install", "--quiet", "--target", str(target), "--python-platform", _PLATFORMS[platform.architecture],
        "--python-version", platform.python, "--only-binary", ":all:", "--no-deps", "--no-compile-bytecode", "--link-mode", "copy",
    ]  # fmt: skip
    run([*install, "--require-hashes", "--requirements", str(requirements)], environment)
    run([*install, *map(str, sorted(wheels.glob("*.whl"))), *([str(core.path)] if core else [])], environment)


def _left_out(target: Path) -> tuple[str, ...]:
    """Return the packages to leave out. `kinesis_efo_tools` stays if the extra `cli` is installed, so that jobs can run `doctor`."""
    return ("kinesis_efo_local", *(() if (target / "typer").exists() else ("kinesis_efo_tools",)))


def _strip(target: Path) -> None:
    """Remove files that the cluster does not need."""
    # Also remove scripts and metadata with local paths or the installer's name, because archives would differ between machines.
    for name in ("bin", *_left_out(target)):
        shutil.rmtree(target / name, ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)
    for information in target.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"):
            (information / name).unlink(missing_ok=True)


def _sorted(exported: str, root: Path, platform: PythonPlatform) -> tuple[list[str], list[Path]]:
    """Split the requirements into lines with hashes, which uv installs, and local sources from which wheels must be built.

    `exported` is the output of `uv export`; its paths are relative to `root`, the directory of the lock file. Raises PackagingError
    if a dependency comes from git.
    """
    locked: list[str] = []
    sources: list[Path] = []
    for line in exported.replace("\\\n", " ").splitlines():
        wanted, _, hashes = line.partition(" --hash=")
        found, _, marker = wanted.strip().partition(" ; ")
        if " @ git+" in found:
            name, _, url = found.partition(" @ ")
            raise PackagingError(
                f"the project depends on {name} from git ({url}), of which no hash is known: take it from an index, or clone it and write "
                f"`{name} = {{ path = ... }}` in [tool.uv.sources]"
            )
        if not found.startswith(("./", "../", "/", "file:")):
            locked.append(line)
        elif not marker or Marker(marker).evaluate(_markers(platform)):
            path = root / (url2pathname(found[len("file://") :]) if found.startswith("file:") else found)
            if path.suffix == ".whl":
                locked.append(f"{path.as_uri()} --hash={hashes}")
            else:
                sources.append(path)
    return locked, sources


def _markers(platform: PythonPlatform) -> dict[str, str]:
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": _MACHINES[platform.architecture],
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{platform.python}.0",
        "python_version": platform.python,
        "sys_platform": "linux",
    }


def find_uv() -> str:
    """Return the path of uv: the one that is installed with this Python, else the one on the PATH."""
    try:
        from uv import find_uv_bin

        uv: str | None = find_uv_bin()
    except (ImportError, FileNotFoundError):
        uv = shutil.which("uv")
    if uv is None:
        raise PackagingError(
            f"packing needs the program uv, which is neither installed with {sys.executable} nor on the PATH: "
            "pip install 'kinesis-efo[emr]'"
        )
    return uv


def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    # Do not pass credentials to the project's build backend, whose version is not locked.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_KEPT_BACK)}
    completed = subprocess.run(
        command,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if completed.returncode:
        raise PackagingError(f"`{' '.join(['uv', *command[1:3]])}` failed:\n{completed.stderr.strip()}")
    return completed.stdout
