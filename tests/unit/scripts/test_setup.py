"""`scripts/setup` on machines that are not ready, made of stand-ins for the programs it calls."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import outcome, program

SETUP = Path(__file__).resolve().parents[3] / "scripts" / "setup"


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
        self.calls.touch()
        for tool in ("sh", "sed", "head", "dirname", "readlink", "env"):
            self.tool(tool)

    def tool(self, name: str) -> None:
        """A program of the real machine."""
        (self.bin / name).symlink_to(shutil.which(name) or "")

    def program(self, name: str, body: str, directory: Path | None = None) -> None:
        """A program that notes its call and then does what `body` says."""
        program((directory or self.bin) / name, f'echo "{name} $*" >> {self.calls}\n{body}')

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
        return outcome(
            [str(self.bin / "sh"), str(self.script), *arguments],
            seconds=20,
            env={"PATH": str(self.bin), "HOME": str(self.root), "JVM_DIR": str(self.jvm), **environment},
        )

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
    answers = f'"-c "*) exit {0 if recent else 1} ;; --version*) echo Python 3.9.2 ;; "-m "*) exit 1 ;;'
    machine.program("python3", f'case "$1 $2" in {answers} esac')
    done = machine.run("venv", ".venv")
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


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
