"""Runs Terraform, or OpenTofu, in the directory of a stack, with the credentials in the environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinesis_efo_infra.errors import PipelineError, StalePlanError

_DECORATION = re.compile(r"\x1b\[[0-9;]*m|[\u2502\u2575\u2577] ?")
_VERSION = re.compile(r"(Terraform|OpenTofu) v(\S+)")
LOCK_FILE = ".terraform.lock.hcl"
PLATFORMS = ("darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64")
_INSTALLATION = Path(__file__).with_name("providers.tfrc")
_OWN_INSTALLATION = (".terraformrc", ".tofurc")
"""Names of the user's own CLI configuration files, which may set where providers are installed from, such as a mirror."""


@dataclass(frozen=True, slots=True)
class StateVersion:
    """Identifies a version of a Terraform state; the state has changed if either part differs.

    Attributes:
        lineage: Id that the state got when it was created; empty if there is no state yet.
        serial: A number that grows with every change.
    """

    lineage: str
    serial: int

    def __str__(self) -> str:
        return f"serial {self.serial} of {self.lineage or 'a state that is not there yet'}"


class Terraform:
    """Runs Terraform in one directory, or OpenTofu if `$TERRAFORM_BINARY_NAME` names it.

    Args:
        directory: Directory with the stack's `cdk.tf.json`.
        variables: Environment variables, in addition to those of this process.

    Raises:
        PipelineError: The binary is missing.
    """

    def __init__(self, directory: Path, variables: Mapping[str, str] | None = None) -> None:
        found = find_binary()
        if found is None:
            raise PipelineError(missing_binary())
        self._binary, self._directory, self._variables = found, directory, variables or {}

    @property
    def version(self) -> str:
        """Name and version of the binary: `Terraform 1.11.4`, or `OpenTofu 1.10.6`.

        Raises:
            PipelineError: The binary is neither Terraform nor OpenTofu.
        """
        # Do not use the JSON output, in which OpenTofu calls itself Terraform, so that the two could not be told apart.
        said = self._run("version")
        if (found := _VERSION.match(said)) is None:
            raise PipelineError(
                f"{self._binary} is neither Terraform nor OpenTofu: `version` prints {said[:80]!r}; "
                "TERRAFORM_BINARY_NAME says which program is run"
            )
        return " ".join(found.groups())

    @property
    def providers(self) -> Mapping[str, str]:
        """Versions of the providers that `init` installed, by their addresses."""
        return dict(json.loads(self._run("version", "-json")).get("provider_selections") or {})

    def lock(self) -> str:
        """Return the content of a lock file: versions and hashes of the stack's providers, from their registry.

        It covers the platforms of the pipeline and of developers, so that plans can be made on any of them.
        """
        self._run("providers", "lock", *(f"-platform={each}" for each in PLATFORMS))
        return (self._directory / LOCK_FILE).read_text(encoding="utf-8")

    def init(self, *, reconfigure: bool = False, migrate: bool = False) -> None:
        """Connect to the backend, and install the providers; with a lock file, exactly the versions that it names.

        Args:
            reconfigure: Ignore the backend that this directory used before.
            migrate: Copy the state from the backend that this directory used before to the current one.
        """
        options = ["-lockfile=readonly"] if (self._directory / LOCK_FILE).exists() else []
        options += ["-reconfigure"] if reconfigure else []
        options += ["-migrate-state", "-force-copy"] if migrate else []
        self._run("init", "-input=false", *options)

    def validate(self) -> None:
        """Check the configuration.

        Raises:
            PipelineError: The configuration is invalid.
        """
        self._run("validate")

    def destroy(self) -> None:
        """Destroy everything that is in the state, without asking for confirmation.

        Raises:
            PipelineError: A resource is protected, or could not be destroyed.
        """
        self._run("destroy", "-input=false", "-auto-approve")

    def state_version(self) -> StateVersion:
        """Return the current version of the state."""
        text = self._run("state", "pull").strip()
        state: dict[str, Any] = json.loads(text) if text else {}
        return StateVersion(state.get("lineage", ""), state.get("serial", 0))

    def plan(self, to: Path) -> bool:
        """Write a plan, and return whether it changes anything.

        The state is not locked, because the role that plans may only read. If the state changes meanwhile, Terraform rejects the
        plan when it is applied.
        """
        arguments = ("plan", "-input=false", "-lock=false", "-detailed-exitcode", f"-out={to.resolve()}")
        return self._execute(arguments, ok=(0, 2)).returncode == 2

    def show(self, plan: Path) -> dict[str, Any]:
        """Return a plan as JSON."""
        shown: dict[str, Any] = json.loads(self._run("show", "-json", str(plan.resolve())))
        return shown

    def show_text(self, plan: Path) -> str:
        """Return a plan in Terraform's human-readable format, which hides sensitive values."""
        return self._run("show", "-no-color", str(plan.resolve())).strip()

    def apply(self, plan: Path) -> None:
        """Apply a saved plan; Terraform's output goes to the terminal.

        Raises:
            StalePlanError: The state has changed since the plan was made.
            PipelineError: Applying failed; part of the plan may have been applied.
        """
        # Wait for the state's lock: if the command failed, the run would have to be restarted by hand.
        command = self._command("apply", "-input=false", "-no-color", "-lock-timeout=5m", str(plan.resolve()))
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, env=self._environment()
        )
        if "Saved plan is stale" in ran.stderr:
            raise StalePlanError(f"the state moved after the plan was made: {' '.join(_readable(ran.stderr).split())}")
        if ran.returncode:
            raise PipelineError(
                f"{self._name} apply failed; part of the plan may have been applied, so that a new one is needed:\n"
                f"{_readable(ran.stderr)}{_locked(ran.stderr)}"
            )

    def apply_now(self, *, approve: bool) -> None:
        """Plan and apply interactively; Terraform asks before it applies, unless `approve` is set.

        Raises:
            PipelineError: Applying failed, or was declined.
        """
        ran = subprocess.run(
            self._command("apply", *(["-auto-approve"] if approve else [])), check=False, env=self._environment()
        )
        if ran.returncode:
            raise PipelineError(f"{self._name} apply failed, or was declined; its message is above")

    def _run(self, *arguments: str) -> str:
        return self._execute(arguments, ok=(0,)).stdout

    def _execute(self, arguments: tuple[str, ...], ok: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            self._command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
        )
        if ran.returncode not in ok:
            raise PipelineError(
                f"{self._name} {arguments[0]} failed in {self._directory}:\n{_readable(ran.stderr)}{_locked(ran.stderr)}"
            )
        return ran

    @property
    def _name(self) -> str:
        return Path(self._binary).name

    def _command(self, *arguments: str) -> list[str]:
        return [self._binary, f"-chdir={self._directory}", *arguments]

    def _environment(self) -> Mapping[str, str]:
        # Prevent Terraform from checking for newer versions, and from printing hints for interactive use.
        settings = {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
        own = [Path(os.environ.get("TF_CLI_CONFIG_FILE") or "."), *(Path.home() / each for each in _OWN_INSTALLATION)]
        if not any(each.is_file() for each in own):
            settings["TF_CLI_CONFIG_FILE"] = str(_INSTALLATION)
        return {**os.environ, **settings, **self._variables}


def binary_name() -> str:
    """Return the name or path of Terraform or OpenTofu: `$TERRAFORM_BINARY_NAME` (as for CDKTF and CDK Terrain), else `terraform`."""
    return os.environ.get("TERRAFORM_BINARY_NAME") or "terraform"


def find_binary() -> str | None:
    """Return the path of Terraform or OpenTofu; None if it is missing."""
    return shutil.which(binary_name())


def missing_binary() -> str:
    """Return the error message for a missing Terraform or OpenTofu."""
    return (
        f"there is no {binary_name()} on the PATH: install Terraform or OpenTofu, 1.10 or later; "
        "TERRAFORM_BINARY_NAME says which of them is run (default: terraform)"
    )


def _locked(text: str) -> str:
    """Return what to do about a locked state, such as after a process was killed while applying; empty for other errors."""
    if "Error acquiring the state lock" not in text:
        return ""
    found = re.search(r"^[│ ]*Path:\s*(\S+)", _readable(text), re.MULTILINE)
    lock = f"s3://{found[1]}.tflock" if found else "the lock, <state_key>.tflock beside the state"
    return (
        "\nThe state is locked. If the deployment that *Who* and *Created* name still runs, wait for it. If it was killed, "
        f"delete the lock (`aws s3 rm {lock}`), and deploy again: what it did half way, the next plan shows (docs/pipeline.md#when-it-is-stuck)"
    )


def _readable(text: str) -> str:
    """Return Terraform's messages without colors and boxes."""
    return _DECORATION.sub("", text).strip()
