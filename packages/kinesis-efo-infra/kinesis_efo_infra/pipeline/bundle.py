"""A plan that was shown: a directory with the plan as JSON and as text, and its metadata.

The directory passes through a CI system and is not trusted: applying makes a new plan, and compares it with this one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired

from annotated_types import Len
from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from kinesis_efo_infra.errors import PipelineError, StalePlanError
from kinesis_efo_infra.pipeline.terraform import StateVersion

_META = "meta.json"
PLAN_JSON = "plan.json"
PLAN_TEXT = "plan.txt"
CONFIGURATION = "cdk.tf.json"


@dataclass(frozen=True, slots=True)
class Changes:
    """How many resources a plan changes.

    Attributes:
        create: Resources that are created.
        update: Resources that are changed in place.
        replace: Resources that are destroyed and created again; they get new ARNs.
        destroy: Resources that are destroyed.
        imported: Resources that exist and are taken over, some of them among those that are updated.
    """

    create: int = 0
    update: int = 0
    replace: int = 0
    destroy: int = 0
    imported: int = 0

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Changes:
        """Count the changes in a plan, as `terraform show -json` writes it."""
        changes = [each["change"] for each in plan.get("resource_changes", [])]
        counts = Counter(_kind(each["actions"]) for each in changes)
        imported = sum("importing" in each for each in changes)
        return cls(counts["create"], counts["update"], counts["replace"], counts["destroy"], imported)

    def __str__(self) -> str:
        imported = f"{self.imported} to import, " if self.imported else ""
        return f"{imported}{self.create} to create, {self.update} to update, {self.replace} to replace, {self.destroy} to destroy"


def _kind(actions: list[str]) -> str:
    if set(actions) == {"create", "delete"}:
        return "replace"
    return {"delete": "destroy"}.get(actions[0], actions[0])


@dataclass(frozen=True, slots=True)
class Meta:
    """The metadata of a plan.

    Attributes:
        environment: Name of the environment.
        commit: The commit for which it was made and reviewed.
        configuration: Digest of the stack's Terraform JSON.
        plan: Digest of what the plan does, from `comparison.digest`.
        lineage: Lineage of the state that it was made on.
        serial: Serial of that state.
        terraform: Terraform or OpenTofu, and its version.
        any_changes: Whether applying it changes anything, outputs included.
        changes: How many resources it touches.
        notes: What reviewers must know, because it loses records or stops jobs.
        cost: What changes in the bill for Enhanced Fan-Out, as lines of Markdown.
        repair: Whether it undoes drift: its configuration was deployed already.
    """

    environment: str
    commit: str
    configuration: str
    plan: str
    lineage: str
    serial: int
    terraform: str
    any_changes: bool
    changes: Changes
    notes: Sequence[str] = ()
    cost: Sequence[str] = ()
    repair: bool = False

    @property
    def state(self) -> StateVersion:
        """The state that the plan was made on."""
        return StateVersion(self.lineage, self.serial)


@with_config(ConfigDict(extra="allow"))
class _Change(TypedDict):
    """The required parts of a plan's change."""

    actions: Annotated[list[str], Len(1)]
    before: NotRequired[Any]
    after: NotRequired[Any]


@with_config(ConfigDict(extra="allow"))
class _Resource(TypedDict):
    address: str
    type: str
    change: _Change


@with_config(ConfigDict(extra="allow"))
class _Plan(TypedDict):
    resource_changes: NotRequired[list[_Resource]]
    output_changes: NotRequired[dict[str, _Change]]


_TYPE = TypeAdapter(Meta)
_PLAN: TypeAdapter[Any] = TypeAdapter(_Plan)


def read_text(bundle: Path) -> str:
    """Read the text of a plan that was shown.

    Raises:
        PipelineError: There is none.
    """
    try:
        return (bundle / PLAN_TEXT).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise PipelineError(f"{bundle / PLAN_TEXT} is no text of a plan: {error}; plan again") from None


def read_configuration(configuration: Path) -> dict[str, Any]:
    """A stack's Terraform JSON.

    Raises:
        PipelineError: The file is missing, or is not a JSON object.
    """
    try:
        document = json.loads(configuration.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PipelineError(f"{configuration} is not Terraform JSON ({error}); run `make synth`") from None
    if not isinstance(document, dict):
        raise PipelineError(f"{configuration} is not Terraform JSON (it is no object); run `make synth`")
    return document


def configuration_digest(configuration: Path) -> str:
    """Digest of a stack's Terraform JSON; spacing and the order of keys do not matter.

    Raises:
        PipelineError: The file is missing, or is not a JSON object.
    """
    document = read_configuration(configuration)
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def tree_digest(directory: Path) -> str:
    """SHA-256 of the files of a directory, with their paths.

    Raises:
        PipelineError: There are none.
    """
    files = sorted(each for each in directory.rglob("*") if each.is_file())
    if not files:
        raise PipelineError(f"{directory} holds no file; run `make synth`")
    lines = [
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.relative_to(directory).as_posix()}" for each in files
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_meta(bundle: Path, meta: Meta) -> None:
    """Write the metadata of a plan."""
    (bundle / _META).write_text(json.dumps(asdict(meta), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_plan(bundle: Path) -> dict[str, Any]:
    """Read a plan that was shown, as Terraform wrote it.

    Raises:
        StalePlanError: There is no plan.
        PipelineError: `plan` did not write it.
    """
    read_meta(bundle)
    try:
        plan: dict[str, Any] = _PLAN.validate_python(json.loads((bundle / PLAN_JSON).read_text(encoding="utf-8")))
        Changes.of(plan)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise PipelineError(f"{bundle / PLAN_JSON} is no plan of Terraform: {error}; plan again") from None
    return plan


def read_meta(bundle: Path) -> Meta:
    """Read the metadata of a plan.

    Raises:
        StalePlanError: There is no plan.
        PipelineError: `plan` did not write the directory.
    """
    path = bundle / _META
    if not path.exists():
        raise StalePlanError(
            f"there is no plan in {bundle}: it was never made, or its artifact has expired; plan again"
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        # Earlier versions write the merge base here, which is now requested from GitHub.
        document.pop("base", None)
        parts = {"changes": Changes(**document["changes"])}
        told = {name: tuple(document.get(name, ())) for name in ("notes", "cost")}
        return _TYPE.validate_python(asdict(Meta(**{**document, **parts, **told})))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PipelineError(f"{path} was not written by the step `plan`: {error}; plan again") from None
