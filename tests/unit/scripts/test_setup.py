"""`scripts/setup` on machines that are not ready, made of stand-ins for the programs it calls."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pytest

SETUP = Path(__file__).resolve().parents[3] / "scripts" / "setup"

HASH = "c0ffee" + "0" * 58
PACKAGE = '[[package]]\nname = "{}"\nversion = "{}"\n{}wheels = [\n    {{ url = "https://x/{}.whl", hash = "sha256:{}" }},\n]\n\n'


def lock(digest: str) -> str:
    """A lock file with uv between packages whose names or needs are like it."""
    return "".join(
        PACKAGE.format(*each)
        for each in (
            ("other", "1", 'dependencies = [\n    { name = "uv" },\n]\n', "other", "1"),
            ("uv", "0.13.9", "", "uv-0.13.9-py3-none-any", digest),
            ("uvloop", "1", "", "uvloop", "2"),
        )
    )


class Machine:
    """A machine with only the programs that a test gives it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.jvm = root / "jvm"
        self.calls = root / "calls"
        project = root / "project"
        for directory in (self.bin, self.jvm, project / "scripts"):
            directory.mkdir(parents=True)
        self.script = project / "scripts" / "setup"
        shutil.copy(SETUP, self.script)
        (project / "uv.lock").write_text(lock(HASH))
        self.calls.touch()
        for tool in ("sh", "sed", "head", "dirname", "readlink", "env"):
            self.tool(tool)

    def tool(self, name: str) -> None:
        """A program of the real machine."""
        (self.bin / name).symlink_to(shutil.which(name) or "")

    def program(self, name: str, body: str, directory: Path | None = None) -> None:
        """A program that notes its call and then does what `body` says."""
        path = (directory or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{body}\n')
        path.chmod(0o755)

    def python(
        self, name: str, *, recent: bool, pip: bool = True, venv: str = "exit 1", directory: Path | None = None
    ) -> None:
        """A Python that is recent enough or not, has pip or not; `venv` is what its module of that name does."""
        self.program(
            name,
            f'case "$1 $2" in "-c "*) exit {0 if recent else 1} ;; --version*) echo Python 3.9.2 ;; '
            f'"-m venv") {venv} ;; "-m pip") [ {int(pip)} = 1 ] || exit 1 ;; esac',
            directory,
        )

    def java(self, home: Path, version: str) -> None:
        """A Java in its own home."""
        self.program("java", f"""echo 'openjdk version "{version}" 2025-04-15' >&2""", home / "bin")

    def apt(self, user: int, *packages: str, installs: str = "") -> None:
        """The number of the user, and apt that knows these packages; `installs` runs when one is installed."""
        self.program("id", f"echo {user}")
        known = "|".join(packages) or "nothing"
        self.program("apt-cache", f'case "$2" in {known}) exit 0 ;; esac; exit 100')
        self.program("apt-get", f'case "$1" in install) {installs or ":"} ;; esac')

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / "sh"), str(self.script), *arguments],
            env={"PATH": str(self.bin), "HOME": str(self.root), "JVM_DIR": str(self.jvm), **environment},
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip

    @property
    def called(self) -> str:
        return self.calls.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("recent", "said"),
    [(False, "Python 3.11 or newer is needed; python3 is Python 3.9.2"), (True, "apt-get install python3-pip")],
)
def test_unfit_python_is_refused_with_a_remedy(machine: Machine, recent: bool, said: str) -> None:
    machine.python("python3", recent=recent, pip=False)
    done = machine.run("venv", ".venv")
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


def test_newest_python_makes_and_keeps_the_environment(machine: Machine) -> None:
    machine.python("python3", recent=False)
    machine.python("python3.12", recent=True)
    machine.program("uv", 'echo "uv with $UV_PYTHON in $UV_PROJECT_ENVIRONMENT, downloads $UV_PYTHON_DOWNLOADS" >&2')
    done = machine.run("venv", ".venv", "--extra", "local")
    assert done.returncode == 0, done.stderr
    assert f"uv with {machine.bin}/python3.12 in .venv, downloads never" in done.stderr
    assert "uv sync --locked --quiet --extra local" in machine.called
    machine.program("python", "exit 0", machine.script.parent.parent / ".venv" / "bin")
    assert "project/.venv/bin/python" in machine.run("venv", ".venv").stderr, "an environment keeps its Python"
    machine.program("uv", "exit 2")
    assert "uv could not build .venv" in machine.run("venv", ".venv").stderr


def test_environment_brings_pip_where_none_is(machine: Machine) -> None:
    uv = machine.script.parent.parent / ".venv-uv" / "bin"
    machine.python("made", recent=True)
    machine.tool("ln")
    machine.tool("mkdir")
    make = f"mkdir -p {uv}; ln -s {machine.bin}/made {uv}/python"
    machine.python("python3", recent=True, pip=False, venv=make)
    machine.run("venv", ".venv")
    assert "python3 -m venv .venv-uv" in machine.called
    assert "made -m pip install --quiet --require-hashes" in machine.called


@pytest.mark.parametrize("locked", [True, False])
def test_uv_with_another_hash_is_not_installed(machine: Machine, tmp_path: Path, locked: bool) -> None:
    wheel = tmp_path / "wheels" / "uv-0.13.9-py3-none-any.whl"
    wheel.parent.mkdir()
    with ZipFile(wheel, "w") as archive:
        about = "uv-0.13.9.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 0.13.9\n")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
        program = ZipInfo("uv-0.13.9.data/scripts/uv")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, f'#!/bin/sh\necho "uv $*" >> {machine.calls}\n')
    found = hashlib.sha256(wheel.read_bytes()).hexdigest() if locked else HASH
    (machine.script.parent.parent / "uv.lock").write_text(lock(found))
    machine.program("python3", f'exec {Path(sys.base_prefix, "bin", "python3")} "$@"')
    done = machine.run("venv", ".venv", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheel.parent))
    assert ("uv sync --locked" in machine.called) is locked, done.stderr
    assert done.returncode == (0 if locked else 1)
    assert locked or "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize(
    ("version", "fits"), [("17.0.15", True), ("21.0.2", True), ("17", True), ("1.8.0_392", False), ("25.0.1", False)]
)
def test_java_of_the_right_version_is_found(machine: Machine, version: str, fits: bool) -> None:
    home = machine.jvm / "java-17-or-21"
    machine.java(home, version)
    done = machine.run("java-home")
    assert (done.returncode, done.stdout.strip()) == ((0, str(home)) if fits else (1, ""))
    wanted = machine.run("java-home", WITH_JAVA=version.split(".")[0])
    assert wanted.stdout.strip() == str(home), "or the one that is asked for"
    assert machine.run("java-home", WITH_JAVA="18").returncode == 1
    machine.java(machine.root / "mine", "21.0.1")
    assert machine.run("java-home", JAVA_HOME=str(machine.root / "mine")).stdout.strip() == str(machine.root / "mine")


@pytest.mark.parametrize(
    ("user", "sudo", "known", "installed", "message"),
    [
        (1000, "exit 1", "17", "", "Ask for: apt-get install openjdk-17-jre-headless"),
        (0, "exit 1", "17 21", "17", ""),
        (1000, 'shift; "$@"', "21", "21", ""),
        (0, "exit 1", "17", "", "apt-get could not install openjdk-17-jre-headless"),
    ],
    ids=["user without sudo", "root", "user with sudo, no 17", "apt fails"],
)
def test_java_is_installed_by_apt(
    machine: Machine, user: int, sudo: str, known: str, installed: str, message: str
) -> None:
    machine.program("sudo", sudo)
    machine.tool("cp")
    machine.java(machine.root / "package" / "java-17-or-21", f"{installed}.0.9")
    command = f"cp -r {machine.root}/package/java-17-or-21 {machine.jvm}/" if installed else "exit 100"
    machine.apt(user, *(f"openjdk-{each}-jre-headless" for each in known.split()), installs=command)
    done = machine.run("java")
    assert (done.returncode, message in done.stderr) == (1 if message else 0, True), done.stderr
    assert ("apt-get install" in machine.called) == ("Ask" not in message)
    assert message or f"openjdk-{installed}-jre-headless" in machine.called.split("apt-get install")[1]


@pytest.mark.parametrize(("cargo", "builds"), [(True, True), (True, False), (False, False)])
def test_native_core_is_built_with_the_locked_tool(machine: Machine, cargo: bool, builds: bool) -> None:
    if cargo:
        machine.program("cargo", "exit 0")
    machine.program("uv", f"exit {0 if builds else 1}")
    done = machine.run("core", ".venv")
    assert done.returncode == 0
    locked = "--build-constraints packages/kinesis-efo-core/maturin.txt"
    assert (f"uv pip install --quiet --python .venv/bin/python {locked}" in machine.called) == cargo
    why = "the build failed" if cargo else "cargo is missing (install Rust 1.86 or newer)\n"
    assert (f"setup: no native core, Python decodes: {why}" in done.stderr) is not builds
