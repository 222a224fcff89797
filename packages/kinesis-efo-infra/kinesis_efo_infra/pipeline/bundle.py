"""The bundle of a plan that was shown to reviewers: a directory with the plan as JSON and as text, and its metadata.

The directory passes through a CI system and is not trusted: the apply step makes a new plan, and compares it with the bundle's.
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
    """Numbers of resources that a plan changes.

    Attributes:
        create: Resources that are created.
        update: Resources that are changed in place.
        replace: Resources that are destroyed and created again; they get new ARNs.
        destroy: Resources that are destroyed.
        imported: Existing resources that are imported; if they are also updated, `update` includes them.
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
        commit: The commit for which the plan was made and reviewed.
        configuration: Digest of the stack's Terraform JSON.
        plan: Digest of what the plan does, from `comparison.digest`.
        lineage: Lineage of the state that the plan is based on.
        serial: Serial number of that state.
        terraform: Name and version of the program: Terraform or OpenTofu.
        any_changes: Whether applying the plan changes anything, including outputs.
        changes: Numbers of resources that the plan changes.
        notes: Notes for reviewers about changes that lose records, stop jobs or extend permissions.
        cost: How the plan changes the bill, as lines of Markdown.
        repair: Whether the plan undoes drift: its configuration was already deployed.
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
        """Version of the state that the plan is based on."""
        return StateVersion(self.lineage, self.serial)


@with_config(ConfigDict(extra="allow"))
class _Change(TypedDict):
    """Schema of the `change` objects in a plan: `actions` is required, and keys that are not listed are accepted."""

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
    """Read a bundle's plan as text.

    Raises:
        PipelineError: The text is missing, or cannot be read.
    """
    try:
        return (bundle / PLAN_TEXT).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise PipelineError(f"{bundle / PLAN_TEXT} is no text of a plan: {error}; plan again") from None


def read_configuration(configuration: Path) -> dict[str, Any]:
    """Read a stack's Terraform JSON.

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
    """Return the digest of a stack's Terraform JSON. It does not depend on spacing or the order of keys.

    Raises:
        PipelineError: The file is missing, or is not a JSON object.
    """
    document = read_configuration(configuration)
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def tree_digest(directory: Path) -> str:
    """Return the SHA-256 of all files below a directory, including their paths.

    Raises:
        PipelineError: The directory has no files.
    """
    files = sorted(each for each in directory.rglob("*") if each.is_file())
    if not files:
        raise PipelineError(f"{directory} holds no file; run `make synth`")
    lines = [
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.relative_to(directory).as_posix()}" for each in files
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_meta(bundle: Path, meta: Meta) -> None:
    """Write the metadata of a plan into its bundle."""
    (bundle / _META).write_text(json.dumps(asdict(meta), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_plan(bundle: Path) -> dict[str, Any]:
    """Read a bundle's plan, in the form that `comparison.shown` returns.

    Raises:
        StalePlanError: There is no plan.
        PipelineError: The bundle was not written by the step `plan`.
    """
    read_meta(bundle)
    try:
        plan: dict[str, Any] = _PLAN.validate_python(json.loads((bundle / PLAN_JSON).read_text(encoding="utf-8")))
        Changes.of(plan)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise PipelineError(f"{bundle / PLAN_JSON} is no plan of Terraform: {error}; plan again") from None
    return plan


def read_meta(bundle: Path) -> Meta:
    """Read the metadata of a plan from its bundle.

    Raises:
        StalePlanError: There is no plan.
        PipelineError: The bundle was not written by the step `plan`.
    """
    path = bundle / _META
    if not path.exists():
        raise StalePlanError(
            f"there is no plan in {bundle}: it was never made, or its artifact has expired; plan again"
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        # Drop the merge base, which earlier versions wrote; it is now requested from GitHub.
        document.pop("base", None)
        parts = {"changes": Changes(**document["changes"])}
        told = {name: tuple(document.get(name, ())) for name in ("notes", "cost")}
        return _TYPE.validate_python(asdict(Meta(**{**document, **parts, **told})))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PipelineError(f"{path} was not written by the step `plan`: {error}; plan again") from None
