"""Installs each wheel that was built in an empty environment, as a new user does, and runs what its page begins with.

python -m scripts.release_check dist
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CORE: Final = ROOT / "packages" / "kinesis-efo-core"
CONSTRUCTS: Final = ROOT / "packages" / "kinesis-efo-infra"
_UV: Final = str(Path(sys.executable).with_name("uv"))
_ROW: Final = re.compile(r"^\|\w+ *\|\w{3} *\|\w{3} *\|", re.MULTILINE)
"""A flight, as the quick start prints it."""
_PATIENCE: Final = 300
"""Seconds until the first row: Spark starts, on a machine that may be busy."""
_KEPT: Final = ("HOME", "JAVA_HOME", "LANG", "SSL_CERT_FILE")
"""What the programs of an environment see of that of the maintainer."""


class FailedError(Exception):
    """A wheel does not do what its page says; the message has what was printed."""


class Environment:
    """An empty virtual environment, and an empty directory to work in.

    Args:
        directory: Where both are made.
    """

    def __init__(self, directory: Path) -> None:
        self.work, self._bin = directory / "work", directory / "venv" / "bin"
        self.work.mkdir(parents=True)
        _run([_UV, "venv", "--quiet", "--python", sys.executable, str(self._bin.parent)], directory, os.environ.copy())

    def install(self, *wanted: str) -> None:
        """Install what `pip install` could be asked for."""
        _run(
            [_UV, "pip", "install", "--quiet", "--python", str(self._bin / "python"), *wanted],
            self.work,
            os.environ.copy(),
        )

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the environment prints."""
        return _run([str(self._bin / program), *arguments], self.work, self._variables())

    def quickstart(self) -> None:
        """Run the quick start until it prints a row."""
        quickstart(self._bin / "kinesis-efo", self.work, self._variables())

    def _variables(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return {**kept, "PATH": f"{self._bin}:{os.defpath}", "VIRTUAL_ENV": str(self._bin.parent)}


def quickstart(program: Path, work: Path, environment: Mapping[str, str]) -> str:
    """Run the quick start in a directory until it prints a row, end it with Ctrl-C, and return what it printed.

    Raises:
        FailedError: It prints no row, or does not end cleanly.
    """
    output = work / "output"
    with output.open("w", encoding="utf-8") as file:
        running = subprocess.Popen([program, "quickstart"], cwd=work, env=environment, stdout=file, stderr=file)
    try:
        end = time.monotonic() + _PATIENCE
        while not _ROW.search(output.read_text(encoding="utf-8")):
            if running.poll() is not None or time.monotonic() > end:
                raise FailedError(f"the quick start printed no row:\n{output.read_text(encoding='utf-8')}")
            time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        code, printed = running.wait(60), output.read_text(encoding="utf-8")
        if code:
            raise FailedError(f"the quick start ended with code {code}:\n{printed}")
        return printed
    finally:
        running.kill()
        running.wait()


def check(built: Path, scratch: Path) -> None:
    """Check the wheels of a directory: of the library, the constructs, and the native core for this machine.

    Args:
        built: The directory.
        scratch: An empty directory for environments.

    Raises:
        FailedError: One is missing, cannot be installed, or does not do what its page says.
    """
    (wheel, constructs) = (_wheel(built, name) for name in ("kinesis_efo", "kinesis_efo_infra"))
    reader = Environment(scratch / "library")
    reader.install(f"kinesis-efo[spark,local] @ {wheel.as_uri()}")
    _say(f"{reader.run('kinesis-efo', '--version').strip()}: the quick start")
    reader.quickstart()
    reader.install("--no-index", "--find-links", str(built), "--no-deps", "kinesis-efo-core")
    reader.run("python", str(CORE / "check.py"))
    _say("kinesis-efo-core: the quick start again, decoded by the native core")
    reader.quickstart()
    owner = Environment(scratch / "constructs")
    owner.install(f"kinesis-efo-infra[cdktf] @ {constructs.as_uri()}")
    _say("kinesis-efo-infra: the program of its page")
    (program,) = re.findall(r"```python\n(.*?)```", (CONSTRUCTS / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    owner.run("python", "-c", program)
    if not (owner.work / "cdktf.out" / "stacks" / "streaming-dev" / "cdk.tf.json").exists():
        raise FailedError("kinesis-efo-infra: the program of its page wrote no stack")


def _wheel(built: Path, name: str) -> Path:
    found = list(built.resolve().glob(f"{name}-*.whl"))
    if len(found) != 1:
        raise FailedError(f"{built} has {len(found)} wheels of {name}, and must have one: `make release-check`")
    return found[0]


def _run(command: list[str], directory: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise FailedError(f"{' '.join(command)} ended with code {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def _say(text: str) -> None:
    sys.stderr.write(f"release-check: {text}\n")


def main(directory: str) -> int:
    """Check the wheels of a directory and return 0, or say what is wrong and return 1."""
    with TemporaryDirectory(prefix="kinesis-efo-release-") as scratch:
        try:
            check(Path(directory), Path(scratch))
        except FailedError as error:
            _say(str(error))
            return 1
    _say("all wheels do what their pages begin with")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
