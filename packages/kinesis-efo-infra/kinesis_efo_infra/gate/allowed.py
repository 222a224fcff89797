"""The allowlist of what a stack or plan may contain. A stack or plan that contains anything else is not run at all.

Stacks and plans are untrusted: they are passed between CI jobs, and third-party packages write them. Terraform runs the commands of
provisioners and of the data source `external`, and the code of each provider that a stack names. Provisioners, `external` and other
providers can therefore never be added to the list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

RESOURCES = frozenset(
    {
        "aws_cloudwatch_dashboard",
        "aws_cloudwatch_metric_alarm",
        "aws_dynamodb_table",
        "aws_eks_pod_identity_association",
        "aws_emrserverless_application",
        "aws_glue_job",
        "aws_iam_instance_profile",
        "aws_iam_policy",
        "aws_iam_role",
        "aws_iam_role_policy",
        "aws_iam_role_policy_attachment",
        "aws_kinesis_resource_policy",
        "aws_kinesis_stream",
        "aws_kinesis_stream_consumer",
        "aws_kms_alias",
        "aws_kms_key",
        "aws_s3_bucket",
        "aws_s3_bucket_lifecycle_configuration",
        "aws_s3_bucket_policy",
        "aws_s3_bucket_public_access_block",
        "aws_s3_bucket_server_side_encryption_configuration",
        "aws_s3_bucket_versioning",
        "aws_s3_object",
        "aws_scheduler_schedule_group",
        "aws_security_group",
        "aws_ssm_parameter",
    }
)
"""Resource types that environments' stacks may contain: those that the constructs declare."""
BOOTSTRAP = frozenset({"aws_iam_openid_connect_provider"})
"""Additional resource types that may be in bootstrap stacks, which declare the pipeline's roles and are applied by an administrator."""
DATA = frozenset(
    {"aws_caller_identity", "aws_iam_policy_document", "aws_partition", "aws_region", "aws_subnet"},
)
"""Types of data sources that any stack may contain."""

_SOURCES = ("aws", "hashicorp/aws", "registry.terraform.io/hashicorp/aws")
_PROVIDERS = ("registry.terraform.io/hashicorp/aws", "registry.opentofu.org/hashicorp/aws")
_OF_STATE = re.compile(rf'provider\["({"|".join(map(re.escape, _PROVIDERS))})"\](\.\w+)?')
"""Pattern for the `provider` value of a resource in a Terraform state, if the resource belongs to an allowed provider."""
_BLOCKS = {"//", "terraform", "provider", "resource", "data", "output", "moved", "import", "removed"}
_TERRAFORM = {"backend", "required_providers", "required_version"}
_BACKEND = {"bucket", "encrypt", "key", "region", "use_lockfile"}
_PROVIDER = {"allowed_account_ids", "default_tags", "region"}
_RUNS = ("provisioner", "connection")
_READS_FILES = re.compile(r"\b(?:file\w*|template(?:file|string))\s*(?:\(|/\*|//|#)|\bprovider::")
"""Pattern for forbidden function calls: those that read local files or templates, which reviewers do not see, and provider functions."""
_SHOWS = re.compile(r"\bnonsensitive\s*(?:\(|/\*|//|#)")
"""Pattern for a function call that would reveal a secret in a plan. Everyone who can read the repository can see plans."""
_FILES = {"aws_s3_bucket_object": "source", "aws_s3_object": "source"}
"""By resource type, the argument that names a local file to upload to AWS. For all other types, this argument is `filename`."""
_LIFECYCLE = {"precondition", "prevent_destroy", "ignore_changes"}
_IGNORED = {"aws_kinesis_stream": {"shard_count"}}
"""Attributes that `ignore_changes` may list, by resource type. All others are forbidden: Terraform never corrects ignored attributes."""
_MANIFEST = re.compile(r"(?!programs/|environments/)[\w./-]+")
"""Pattern for the S3 key of a manifest. It excludes keys below `programs/` and `environments/`: jobs execute what is stored there."""
_SENSITIVE = {"aws_ssm_parameter": {"value"}}
"""Attributes that the AWS provider always marks as sensitive, by resource type. Only these may be sensitive in a plan."""
_NOT_IN_PLANS = ("action_invocations", "deferred_action_invocations", "deferred_changes")
"""Keys that only newer Terraform versions write to plans. Plans with these keys are rejected, because their values are not checked."""


def in_stack(stack: Mapping[str, Any], *, bootstrap: bool = False, extra: Collection[str] = ()) -> list[str]:
    """Return a message for everything in a stack that is not allowed.

    Args:
        stack: The stack's Terraform JSON.
        bootstrap: Whether it is a bootstrap stack, which only an administrator applies.
        extra: Resource types that the team has added; `gate.extra` has checked them.
    """
    return [
        *(f"{each}: no such block is allowed" for each in sorted(stack.keys() - _BLOCKS)),
        *_settings(stack),
        *_entries(stack, "resource", _resources(extra, bootstrap=bootstrap)),
        *_entries(stack, "data", DATA),
        *_commands(stack.get("removed") or [], "removed"),
        *(f"an expression reads files, or calls a provider: {each[:80]}" for each in _expressions(stack, _READS_FILES)),
        *(f"an expression shows what is sensitive: {each[:80]}" for each in _expressions(stack, _SHOWS)),
    ]


def in_plan(plan: Mapping[str, Any], *, bootstrap: bool = False, extra: Collection[str] = ()) -> list[str]:
    """Return a message for everything in a plan that is not allowed.

    Args:
        plan: The plan, as `terraform show -json` writes it.
        bootstrap: Whether it is a bootstrap stack's plan.
        extra: Resource types that the team has added; `gate.extra` has checked them.
    """
    types = {"managed": _resources(extra, bootstrap=bootstrap), "data": DATA}
    root = plan.get("configuration", {}).get("root_module", {})
    providers = plan.get("configuration", {}).get("provider_config", {})
    faults = [f"{each}: nothing like it is allowed" for each in _NOT_IN_PLANS if plan.get(each)]
    faults += [f"module {name}: no module is allowed" for name in root.get("module_calls", {})]
    for name, provider in providers.items():
        if provider.get("full_name", _PROVIDERS[0]) not in _PROVIDERS:
            faults.append(f"provider {name}: only that of AWS is allowed, and not {provider['full_name']}")
    for each in plan.get("resource_changes", []):
        if each["type"] not in types.get(each.get("mode", ""), ()):
            faults.append(f"{each['address']}: nothing of this type is allowed")
        elif each.get("provider_name", _PROVIDERS[0]) not in _PROVIDERS or each.get("module_address"):
            faults.append(f"{each['address']}: only the provider of AWS is allowed, and no module")
        faults += _files(each["type"], each.get("change", {}).get("after") or {}, each["address"])
        faults += _hidden(each)
    for each in root.get("resources", []):
        if each.get("provisioners"):
            faults.append(f"{each['address']}: a provisioner runs commands, and is not allowed")
    return faults


def in_state(state: str | bytes) -> list[str]:
    """Return a message for each resource in a state if its provider is not allowed. Terraform installs all providers that a state names.

    Args:
        state: The state's JSON.
    """
    # Read all values of a repeated name, whatever its case: Terraform ignores case, and uses the last value.
    try:
        root = json.loads(state, object_pairs_hook=lambda pairs: [(name.casefold(), value) for name, value in pairs])
        found = [] if _all(root, "version") == [4] else ["it is not of version 4, which alone can be looked at"]
        for each in (one for resources in _all(root, "resources") for one in resources):
            providers = _all(each, "provider")
            if not providers or not all(map(_OF_STATE.fullmatch, providers)):
                named = ".".join(str(one) for name in ("type", "name") for one in _all(each, name))
                found.append(f"{named}: only the provider of AWS is allowed, and not {', '.join(map(str, providers))}")
        return found
    except (ValueError, TypeError) as error:
        return [f"it cannot be read: {error}"]


def _all(pairs: Any, name: str) -> list[Any]:
    """Return all values of a name, which may be repeated, in a JSON object that was parsed into name-value pairs."""
    return [value for each, value in pairs if each == name]


def _resources(extra: Collection[str], *, bootstrap: bool) -> frozenset[str]:
    # Teams cannot add types to stacks that an administrator applies.
    return RESOURCES | BOOTSTRAP if bootstrap else RESOURCES | {each for each in extra if each.startswith("aws_")}


def _settings(stack: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each forbidden provider or backend setting: these choose what code runs and where state is sent."""
    terraform, providers = stack.get("terraform", {}), stack.get("provider", {})
    if not isinstance(terraform, Mapping) or not isinstance(providers, Mapping):
        yield "terraform, provider: must be objects"
        return
    yield from (f"terraform.{each}: not allowed" for each in sorted(terraform.keys() - _TERRAFORM))
    for each in ("backend", "required_providers"):
        if not isinstance(terraform.get(each, {}), Mapping):
            yield f"terraform.{each}: must be an object"
            return
    for name, required in terraform.get("required_providers", {}).items():
        if name != "aws" or not isinstance(required, Mapping) or required.get("source") not in _SOURCES:
            yield f"provider {name}: only that of AWS is allowed"
    for kind, settings in terraform.get("backend", {}).items():
        if kind != "s3" or not isinstance(settings, Mapping) or settings.keys() - _BACKEND:
            yield f"terraform.backend.{kind}: only s3 with {', '.join(sorted(_BACKEND))} is allowed"
    for name, configured in providers.items():
        for each in configured if isinstance(configured, list) else [configured]:
            if name != "aws" or not isinstance(each, Mapping) or each.keys() - _PROVIDER:
                yield f"provider {name}: only that of AWS with {', '.join(sorted(_PROVIDER))} is allowed"


def _entries(stack: Mapping[str, Any], section: str, types: Collection[str]) -> Iterator[str]:
    """Yield a message for each fault in a stack's `resource` or `data` section, in which only `types` are allowed."""
    # Reject lists of blocks: Terraform also reads them, but this project never writes them, and the checks below would miss them.
    kinds = stack.get(section, {})
    if not isinstance(kinds, Mapping) or not all(isinstance(each, Mapping) for each in kinds.values()):
        yield f"{section}: must be objects by type and name"
        return
    for kind, entries in kinds.items():
        for name, body in entries.items():
            at = f"{section}.{kind}.{name}"
            if kind not in types:
                yield f"{at}: nothing of this type is allowed"
            elif not isinstance(body, Mapping):
                yield f"{at}: must be an object"
            else:
                yield from _commands(body, at)
                yield from _files(kind, body, at)
                yield from _lifecycle(kind, body.get("lifecycle") or {}, at)
                if body.get("provider", "aws") != "aws":
                    yield f"{at}.provider: only that of AWS is allowed"
                if _is_dynamic(body):
                    yield f"{at}.dynamic: blocks must be written out, so that what is in them is looked at"


def _commands(body: Any, at: str) -> Iterator[str]:
    """Yield a message for each block in `body` that runs commands, such as a provisioner."""
    for each in body if isinstance(body, list) else [body]:
        found = [name for name in _RUNS if not isinstance(each, Mapping) or name in each]
        yield from (f"{at}.{name}: it runs commands, and is not allowed" for name in found)


def _files(kind: str, body: Mapping[str, Any], at: str) -> Iterator[str]:
    """Yield a message for each argument that uploads a local file, such as a file in /proc that contains credentials."""
    if kind == "aws_s3_object" and body.get("source") is None:
        content = [name for name in ("content_base64", "source_hash") if body.get(name) is not None]
        if content or not _MANIFEST.fullmatch(str(body.get("key"))):
            yield f"{at}: an object may be a manifest only, with a plain key outside of programs/ and environments/"
    for each in {_FILES.get(kind, "filename"), "filename"}:
        if body.get(each) is not None:
            yield f"{at}.{each}: it reads a file of the machine, and is not allowed"


def _lifecycle(kind: str, lifecycle: Any, at: str) -> Iterator[str]:
    """Yield a message for each forbidden setting in a resource's `lifecycle` block. Plans do not contain these blocks."""
    for each in lifecycle if isinstance(lifecycle, list) else [lifecycle]:
        if not isinstance(each, Mapping):
            yield f"{at}.lifecycle: must be an object"
            continue
        yield from (f"{at}.lifecycle.{name}: not allowed" for name in sorted(each.keys() - _LIFECYCLE))
        ignored = each.get("ignore_changes") or []
        if not isinstance(ignored, list) or not {str(name) for name in ignored} <= _IGNORED.get(kind, set()):
            yield f"{at}.lifecycle.ignore_changes: only {_IGNORED} are allowed, and not {ignored}"


def _hidden(change: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each value that an expression marks as sensitive: it would be hidden from reviewers and checkov."""
    marks, after = (change.get("change", {}).get(each) for each in ("after_sensitive", "after"))
    for name, value in (after or {}).items() if change["type"] in RESOURCES | DATA else ():
        mark = marks.get(name) if isinstance(marks, Mapping) else marks
        if value is not None and name not in _SENSITIVE.get(change["type"], ()) and _is_marked(mark):
            yield f"{change['address']}.{name}: an expression makes it sensitive, so that nobody sees it; write it out"


def _is_marked(mark: Any) -> bool:
    if isinstance(mark, Mapping | list):
        return any(map(_is_marked, mark.values() if isinstance(mark, Mapping) else mark))
    return mark is True


def _is_dynamic(body: Any) -> bool:
    """Whether `body` contains, at any depth, a `dynamic` block. Terraform generates blocks from it that this module does not check."""
    if isinstance(body, Mapping):
        return isinstance(body.get("dynamic"), Mapping | list) or any(map(_is_dynamic, body.values()))
    return isinstance(body, list) and any(map(_is_dynamic, body))


def _expressions(value: Any, calls: re.Pattern[str]) -> Iterator[str]:
    """Yield the expressions, at any depth of `value`, that contain a match for the pattern `calls`."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            # Terraform also evaluates expressions in an object's keys.
            yield from _expressions(name, calls)
            yield from _expressions(each, calls)
    elif isinstance(value, list):
        for each in value:
            yield from _expressions(each, calls)
    elif isinstance(value, str) and ("${" in value or "%{" in value) and calls.search(value):
        yield value
