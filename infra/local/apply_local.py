"""Rehearses a deployment: Terraform and the AWS provider apply the stacks of an environment to local AWS, and destroy them again.

What is applied is what would be deployed; a file beside it points the provider to local AWS, which has the environment's account.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infra.errors import NotRunError, PipelineError, RehearsalError
from infra.local.account import LocalAccount
from infra.settings import ledger
from infra.settings.access import OtherAccount
from infra.settings.load import load_environments
from infra.settings.model import Environment, OwnStream
from infra.settings.names import Names, application_name
from kinesis_efo_infra.pipeline.bundle import Changes
from kinesis_efo_infra.pipeline.limits import Plan
from kinesis_efo_infra.pipeline.terraform import Terraform, find_binary, missing_binary

logger = logging.getLogger(__name__)
ADDED = "rehearsal"
"""Key of the stream that the change adds."""
_CONFIGURATION, _PLAN = "cdk.tf.json", "rehearsal.tfplan"
# A provider that is there and wrong is a failure; only what the network does not give is out of reach.
_OUT_OF_REACH = re.compile(
    r"could not connect to|failed to request discovery|no such host|connection refused|connection reset|timeout"
    r"|TLS handshake|service unavailable",
    re.IGNORECASE,
)
Serve = Callable[[Environment], AbstractContextManager[str]]


@contextmanager
def local_aws(environment: Environment) -> Iterator[str]:
    """Run a local AWS with the account of an environment, as a process of its own; yields its URL.

    Raises:
        RehearsalError: It does not start.
    """
    with TemporaryDirectory(prefix="kinesis-efo-rehearsal-") as scratch:
        ready = Path(scratch) / "ready.json"
        program = [str(Path(sys.executable).with_name("kinesis-efo")), "local", "--port=0"]
        options = [f"--region={environment.region}", f"--set=account_id={environment.account_id}"]
        with subprocess.Popen([*program, *options, f"--ready-file={ready}"], stdout=subprocess.DEVNULL) as process:
            try:
                deadline = time.monotonic() + 60
                while not ready.exists():
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise RehearsalError("local AWS does not start; its message is above")
                    time.sleep(0.05)
                yield str(json.loads(ready.read_text(encoding="utf-8"))["endpointUrl"])
            finally:
                process.terminate()


def apply_local(directory: Path, name: str, serve: Serve = local_aws) -> None:
    """Apply the stacks of an environment to local AWS, plan them again, change them, and destroy them.

    Args:
        directory: Directory of the environment files.
        name: The environment.
        serve: Runs a local AWS for an environment.

    Raises:
        SettingsError: The environment file is wrong.
        NotRunError: Terraform is missing, or the provider's registry is out of reach.
        RehearsalError: A second plan is not empty, the change replaces something, or something is left in the end.
        PipelineError: Terraform failed.
    """
    if find_binary() is None:
        raise NotRunError(missing_binary())
    (environment,) = load_environments(directory, [name])
    with TemporaryDirectory(prefix="kinesis-efo-rehearsal-") as scratch:
        with serve(environment) as endpoint:
            _streaming(environment, endpoint, Path(scratch))
        if environment.pipeline is not None:
            with serve(environment) as endpoint:
                _bootstrap(environment, endpoint, Path(scratch))


def _streaming(environment: Environment, endpoint: str, scratch: Path) -> None:
    """Rehearse the stack of streams and applications."""
    from infra.stacks.app import synthesize

    def written(wanted: Environment) -> None:
        # The ledger of the environment is not touched.
        ledger.accept(scratch, wanted)
        synthesize([wanted], scratch, outdir=scratch / "streaming")

    account = LocalAccount(environment, endpoint)
    present = account.prepare()
    before = account.holds()
    written(present)
    stack = Stack(scratch / "streaming" / "stacks" / Names(environment).stack_name, endpoint)
    stack.begin()
    stack.apply()
    later = changed(present)
    written(later)
    changes = stack.apply()
    if changes.replace or changes.destroy:
        raise RehearsalError(f"{stack}: more retention, a stream and a consumer would {changes}; nothing may be lost")
    _check_change(later, account)
    stack.end()
    _check_left(account, before, stack)


def _bootstrap(environment: Environment, endpoint: str, scratch: Path) -> None:
    """Rehearse the stack that the pipeline needs."""
    from infra.stacks.app import synthesize_bootstrap

    account = LocalAccount(environment, endpoint)
    account.prepare()
    before = account.holds()
    written = synthesize_bootstrap([environment], scratch / "bootstrap")
    stack = Stack(written / "stacks" / Names(environment).bootstrap_stack_name, endpoint)
    stack.begin()
    stack.apply()
    stack.end()
    _check_left(account, before, stack)


def changed(environment: Environment) -> Environment:
    """The environment with more retention, and with one more stream, which an application reads."""
    streams = {
        key: stream.model_copy(update={"retention_hours": min(stream.retention_hours + 24, 8760)})
        if isinstance(stream, OwnStream)
        else stream
        for key, stream in environment.streams.items()
    }
    streams[ADDED] = OwnStream(mode="provisioned", shards=1)
    applications = dict(environment.applications)
    reader = next((key for key, each in applications.items() if not isinstance(each.access, OtherAccount)), None)
    if reader is not None:
        application = applications[reader]
        applications[reader] = application.model_copy(update={"streams": [*application.streams, ADDED]})
    return environment.model_copy(update={"streams": streams, "applications": applications})


def _check_change(environment: Environment, account: LocalAccount) -> None:
    for key, stream in environment.streams.items():
        name = Names(environment).stream_name(key)
        if not isinstance(stream, OwnStream):
            continue
        if (found := account.retention_hours(name)) != stream.retention_hours:
            raise RehearsalError(f"stream {name} keeps its records for {found} h, not for {stream.retention_hours} h")
        wanted = {
            application_name(application, each)
            for application, each in environment.applications.items()
            if key in each.streams and each.subscribes
        }
        if wanted != account.consumers(name):
            raise RehearsalError(
                f"stream {name} has the consumers {sorted(account.consumers(name))}, not {sorted(wanted)}"
            )


def _check_left(account: LocalAccount, before: set[str], stack: Stack) -> None:
    if left := account.holds() - before:
        raise RehearsalError(f"{stack}: left in local AWS after its destruction: {', '.join(sorted(left))}")


def _variables(endpoint: str, plugins: Path) -> dict[str, str]:
    """Environment variables by which nothing reaches AWS itself, and the provider is downloaded once for both stacks."""
    nothing = {"AWS_PROFILE": "", "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    cache = {"TF_PLUGIN_CACHE_DIR": str(plugins), "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE": "1"}
    # For services that the provider's settings do not name.
    return {**nothing, **cache, "AWS_ENDPOINT_URL": endpoint}


class Stack:
    """A stack that is planned for, or applied to, local AWS.

    Args:
        directory: Holds its `cdk.tf.json`.
        endpoint: URL of local AWS.
    """

    def __init__(self, directory: Path, endpoint: str) -> None:
        from infra.stacks.local import override

        self._directory = directory
        plugins = directory.parents[2] / "plugins"
        plugins.mkdir(exist_ok=True)
        self._terraform = Terraform(directory, _variables(endpoint, plugins))
        self._write("local_override.tf.json", override(endpoint, "local.tfstate"))

    def __str__(self) -> str:
        return self._directory.name

    def begin(self) -> None:
        """Install the provider, and check the configuration.

        Raises:
            NotRunError: The provider's registry is out of reach.
        """
        try:
            self._terraform.init()
        except PipelineError as error:
            # Warnings come first; what matters is the error.
            said = " ".join(str(error).rpartition("Error: ")[2].split())
            if _OUT_OF_REACH.search(said):
                raise NotRunError(f"the registry of the AWS provider is out of reach: {said[:300]}") from None
            raise
        self._terraform.validate()
        logger.info("%s: initialized and valid, with %s", self, self._terraform.version)

    @property
    def versions(self) -> list[str]:
        """Terraform and its version, and each provider that `begin` installed, by its address; none, if a stand-in is used."""
        return [self._terraform.version, *(f"{name} {version}" for name, version in self._terraform.providers.items())]

    def plan(self) -> Plan:
        """Plan, as `terraform show -json` writes it.

        Raises:
            PipelineError: Terraform or the provider refuses it.
        """
        self._terraform.plan(self._directory / _PLAN)
        return self._terraform.show(self._directory / _PLAN)

    def apply(self) -> Changes:
        """Plan and apply; returns what changed.

        Raises:
            RehearsalError: A plan after that is not empty.
        """
        plan = self._directory / _PLAN
        self._terraform.plan(plan)
        changes = Changes.of(self._terraform.show(plan))
        self._terraform.apply(plan)
        if self._terraform.plan(plan):
            raise RehearsalError(f"{self}: a second plan is not empty:\n{self._terraform.show_text(plan)}")
        logger.info("%s: applied, %s; a second plan is empty", self, changes)
        return changes

    def end(self) -> None:
        """Destroy everything; what is protected is refused first, and set free.

        Raises:
            RehearsalError: Something that is protected would have been destroyed.
        """
        if free := self._protection():
            try:
                self._terraform.destroy()
            except PipelineError as error:
                if "prevent_destroy" not in str(error):
                    raise
            else:
                raise RehearsalError(f"{self}: what is protected was destroyed")
            self._write("unprotected_override.tf.json", {"resource": free})
            self.apply()
        self._terraform.destroy()
        logger.info("%s: destroyed", self)

    def _protection(self) -> dict[str, dict[str, Any]]:
        """What sets each protected resource free."""
        document = json.loads((self._directory / _CONFIGURATION).read_text(encoding="utf-8"))
        free: dict[str, dict[str, Any]] = {}
        for kind, resources in document["resource"].items():
            for name, resource in resources.items():
                if resource.get("lifecycle", {}).get("prevent_destroy"):
                    table = {"deletion_protection_enabled": False} if kind == "aws_dynamodb_table" else {}
                    free.setdefault(kind, {})[name] = {"lifecycle": {"prevent_destroy": False}, **table}
        return free

    def _write(self, name: str, document: dict[str, Any]) -> None:
        (self._directory / name).write_text(json.dumps(document, indent=2), encoding="utf-8")
