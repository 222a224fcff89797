"""Runs real Terraform on synthesized stacks, with the stand-in provider instead of AWS."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.commands import outcome
from tests.support.isolated import PROVIDER, isolated
from tests.support.missing import terraform

HERE = Path(__file__).parent


@contextmanager
def stand_in(directory: Path, aws: Mapping[str, str] | None = None) -> Iterator[Mapping[str, str]]:
    """Run the provider; yields the environment variables with which Terraform finds it.

    It runs in a separate Python environment, because `tf` needs an older protobuf than this project's packages.

    Args:
        directory: Directory for its socket.
        aws: The variables that point to a local AWS in which it creates resources, if the stacks name none.
    """
    environment = {**os.environ, **(aws or {})}
    script = [str(HERE / "provider.py"), str(HERE / "schemas.json"), str(directory / "aws.sock")]
    # `-I` keeps this project's packages out.
    command = [*isolated(*PROVIDER), "-I", *script]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        reattach = process.stdout.readline()
        assert reattach, "the stand-in provider did not start; its message is above"
        try:
            yield {
                **environment,
                "TF_REATTACH_PROVIDERS": reattach.strip(),
                "CHECKPOINT_DISABLE": "1",
                "TF_IN_AUTOMATION": "1",
            }
        finally:
            process.stdin.close() if process.stdin else None
            process.wait(timeout=60)


class Terraform:
    """Terraform in the directory of a stack, its state in a file there.

    Args:
        stack: Directory that holds `cdk.tf.json`.
        environment: From `stand_in`.
    """

    def __init__(self, stack: Path, environment: Mapping[str, str]) -> None:
        self.stack = stack
        self._environment = environment
        # The only change to the stack: its S3 backend cannot be reached.
        override = {"terraform": {"backend": {"local": {"path": "test.tfstate"}}}}
        (stack / "test_override.tf.json").write_text(json.dumps(override), encoding="utf-8")
        self.run("init", "-input=false")

    def run(self, *arguments: str) -> str:
        """Run a command; returns what it printed."""
        ran = outcome(
            [terraform(), f"-chdir={self.stack}", *arguments, *([] if "-json" in arguments else ["-no-color"])],
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
        )
        assert ran.returncode == 0, f"terraform {' '.join(arguments)}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def apply(self) -> None:
        """Apply the stack."""
        self.run("apply", "-input=false", "-auto-approve")

    def plan(self) -> dict[str, Any]:
        """The plan, as Terraform shows it in JSON."""
        self.run("plan", "-input=false", "-out=test.tfplan")
        plan: dict[str, Any] = json.loads(self.run("show", "-json", "test.tfplan"))
        return plan

    def changes(self) -> dict[str, list[str]]:
        """The actions of a plan, by address, without those that change nothing."""
        return {
            change["address"]: change["change"]["actions"]
            for change in self.plan().get("resource_changes", [])
            if change["change"]["actions"] not in (["no-op"], ["read"])
        }

    def state(self) -> dict[str, dict[str, Any]]:
        """The values in the state, by address."""
        shown = json.loads(self.run("show", "-json"))
        return {each["address"]: each["values"] for each in shown["values"]["root_module"]["resources"]}
