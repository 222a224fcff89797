"""Runs checkov with exactly the packages of its lock file, and without the credentials in this process's environment variables.

checkov and its 95 packages are third-party code, and the pipeline has credentials when it scans a plan.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kinesis_efo_infra.errors import GateError

LOCKED = Path(__file__).parent / "checkov"
"""The directory of checkov's `pyproject.toml`, and of the lock file with the hashes of all packages."""
ENVIRONMENT = Path(".venv-checkov")
"""The directory of checkov's virtual environment, in the pipeline's working directory."""
LONGEST_SCAN = 600.0
"""Maximum duration of a scan in seconds. This project's own stacks take less than ten."""
_CHECKOV = "import gc, runpy; gc.disable(); runpy.run_module('checkov.main', run_name='__main__', alter_sys=True)"
"""Python code that runs `checkov.main` without garbage collection. Collection took a sixth of the time, mostly to traverse checkov's own
modules; memory use is the same without it, within a few percent."""
_STEERS_UV = {"VIRTUAL_ENV", "UV_PROJECT", "UV_PROJECT_ENVIRONMENT", "UV_FROZEN"}


def install(project: Path = LOCKED, environment: Path | None = None) -> Path:
    """Install the packages of the lock file, and return the path of checkov's Python. Fast if they are already installed.

    uv does not run code of the packages, so it may see all environment variables, such as those for proxies and package indexes.

    Raises:
        GateError: uv is missing, or a package cannot be downloaded or does not match the lock file.
    """
    environment = (environment or ENVIRONMENT).absolute()
    python = environment / "bin" / "python"
    # Compile only on the first installation: uv would otherwise check all 5,600 modules each time.
    compiling = () if python.exists() else ("--compile-bytecode",)
    inherited = {name: value for name, value in os.environ.items() if name not in _STEERS_UV}
    synced = subprocess.run(
        [find_uv(), "sync", "--project", str(project), "--locked", "--quiet", *compiling, "--python", sys.executable],
        env={**inherited, "UV_PROJECT_ENVIRONMENT": str(environment)},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if synced.returncode:
        raise GateError(
            f"checkov could not be installed as {project / 'uv.lock'} says; it was not run: {synced.stderr.strip()}"
        )
    return python


def run(arguments: Sequence[str], scratch: str, timeout: float = LONGEST_SCAN) -> subprocess.CompletedProcess[str]:
    """Run checkov so that it does not contact its vendor for check descriptions or newer versions.

    Args:
        arguments: checkov's arguments.
        scratch: An empty directory, used as current and home directory so that checkov does not find a `.checkov.yaml` there.
        timeout: Seconds after which checkov is stopped.

    Raises:
        GateError: checkov could not be installed, or did not end in time.
    """
    try:
        return subprocess.run(
            [str(install()), "-c", _CHECKOV, "--skip-download", *arguments],
            env=_visible(os.environ, scratch),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=scratch,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as stopped:
        said = (stopped.stderr or b"")[-2000:].decode(errors="replace") or "nothing"
        raise GateError(
            f"checkov did not end within {timeout:g} s and was stopped, so that nothing was scanned; run it again. "
            f"What it had said: {said}"
        ) from None


def _visible(environment: Mapping[str, str], scratch: str) -> Mapping[str, str]:
    """Return the environment variables for checkov, with `scratch` as its home directory and without credentials."""
    return {
        "PATH": environment.get("PATH", os.defpath),
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        # Use one process: checkov forks for each framework and for groups of files, and has hung while waiting for such a process
        # (also github.com/bridgecrewio/checkov/issues/7186). This project's stacks take no longer in one process.
        "CHECKOV_PARALLELIZATION_TYPE": "none",
        "CKV_SKIP_PACKAGE_UPDATE_CHECK": "true",
    }


def find_uv() -> str:
    """Return the path of uv: the one installed with this Python, else the one on the PATH.

    Raises:
        GateError: uv is missing.
    """
    try:
        from uv import find_uv_bin

        uv: str | None = find_uv_bin()
    except (ImportError, FileNotFoundError):
        uv = shutil.which("uv")
    if uv is None:
        raise GateError(
            f"checkov runs in an environment that uv makes, and uv is neither installed with {sys.executable} nor on the "
            "PATH: pip install uv"
        )
    return uv
