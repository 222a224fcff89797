"""Rebuilds Terraform schemas of the AWS provider from the JavaScript inside the PyPI wheel `cdktn-provider-aws`.

No package holds the provider's own schema, and the registry is not reachable everywhere. The wheel's generated code has all of
it: comments name the computed, optional and required attributes, and HCL writers name the blocks. Run with the wheel's
`.jsii.tgz` (in `.venv-cdktn/lib/python*/site-packages/cdktn_provider_aws/_jsii`) to write `schemas.json` beside this file. Needs
nothing but Python, and `packages/kinesis-efo-infra` on its path.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

from kinesis_efo_infra.gate import allowed

SCHEMAS = Path(__file__).with_name("schemas.json")
TYPES = ("provider", *allowed.RESOURCES, *allowed.BOOTSTRAP, *(f"data.{kind}" for kind in allowed.DATA))

_SCALARS = {"string": "string", "number": "number", "boolean": "bool"}
_LISTS = {"stringList": "string", "numberList": "number"}
_ROOTS = ("TerraformResource", "TerraformDataSource", "TerraformProvider")
_CLASS = re.compile(r"^class (\w+) extends cdkt[fn]\.(\w+) \{\n(.*?)^\}\n", re.DOTALL | re.MULTILINE)
_HCL = re.compile(r"^function (\w+)ToHclTerraform\(struct\) \{\n(.*?)^\}\n", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(
    r"^\s+(\w+): \{\n\s+value: [^\n]*\n\s+isBlock: (\w+),\n\s+type: \"(\w+)\",\n\s+storageClassType: \"(\w+)\"",
    re.MULTILINE,
)
_ATTRIBUTE = re.compile(
    r"// (\w+) - computed: (\w+), optional: (\w+), required: (\w+)\n(.*?)(?=\n\s+// \w+ - computed|\Z)", re.DOTALL
)

Json = dict[str, Any]


class _Module:
    """The generated code of one type."""

    def __init__(self, source: str) -> None:
        self._classes = {name: (base, body) for name, base, body in _CLASS.findall(source)}
        self._writers = dict(_HCL.findall(source))

    def schema(self) -> Json:
        (root,) = [name for name, (base, _) in self._classes.items() if base in _ROOTS]
        return self._block(root)

    def _block(self, name: str) -> Json:
        base, body = self._classes[name]
        writer = body if base in _ROOTS else self._writers[_lower_first(name.removesuffix("OutputReference"))]
        entries = _entries(writer)
        attributes: list[Json] = []
        blocks: list[Json] = []
        for attribute, computed, optional, required, code in _ATTRIBUTE.findall(body):
            is_block, mode, storage = entries.get(attribute, (False, "", ""))
            at_least = int(required == "true")
            held = re.search(rf"_\w+ = new ([\w.]+)\(this, \"{attribute}\"", body)
            kind = _type_of(code, mode, storage, held)
            if kind is None and held:
                single = held[1].endswith("OutputReference")
                block = self._block(held[1] if single else held[1].removesuffix("List") + "OutputReference")
                if is_block:
                    blocks.append(_nested(attribute, mode, block, at_least, int(single and mode != "struct")))
                    continue
                kind = ["list", ["object", {each["name"]: each["type"] for each in block["attrs"]}]]
            if kind is None and is_block:
                inner = self._written_block(_lower_first(storage.removesuffix("List")))
                blocks.append(_nested(attribute, mode, inner, at_least))
                continue
            flags = {"computed": computed == "true", "optional": optional == "true", "required": required == "true"}
            attributes.append({"name": attribute, "type": kind or "string", **flags})
        return {"attrs": attributes, "blocks": blocks}

    def _written_block(self, writer: str) -> Json:
        """A block that only the HCL writer describes, such as those of the provider's configuration."""
        attributes: list[Json] = []
        blocks: list[Json] = []
        for name, (is_block, mode, storage) in _entries(self._writers.get(writer, "")).items():
            if is_block:
                blocks.append(_nested(name, mode, self._written_block(_lower_first(storage).removesuffix("List"))))
                continue
            kind = _type_of("", mode, storage, None) or "string"
            attributes.append({"name": name, "type": kind, "computed": False, "optional": True, "required": False})
        return {"attrs": attributes, "blocks": blocks}


def _entries(body: str) -> dict[str, tuple[bool, str, str]]:
    return {name: (block == "true", mode, storage) for name, block, mode, storage in _ENTRY.findall(body)}


def _type_of(code: str, mode: str, storage: str, held: re.Match[str] | None) -> Any:
    if storage == "stringMap" or (held and held[1].endswith(".StringMap")):
        return ["map", "string"]
    if storage in _LISTS:
        return [mode, _LISTS[storage]]
    for kind in ("number", "bool"):
        if f"return this.get{kind.capitalize()}" in code:
            return kind
    return _SCALARS.get(storage)


def _nested(name: str, nesting: str, block: Json, at_least: int = 0, at_most: int = 0) -> Json:
    nesting = nesting if nesting in ("list", "set") else "single"
    return {"name": name, "nesting": nesting, "block": block, "min": at_least, "max": at_most}


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


def schemas_of(archive: Path) -> dict[str, Json]:
    """Read the schemas of `TYPES` from a wheel's `.jsii.tgz`."""
    members = {}
    for name in TYPES:
        data, bare = name.startswith("data."), name.removeprefix("data.").removeprefix("aws_").replace("_", "-")
        members[f"package/lib/{'data-aws-' if data else ''}{bare}/index.js"] = name
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name in members and (file := tar.extractfile(member)):
                found[members[member.name]] = _Module(file.read().decode()).schema()
    assert set(found) == set(TYPES), f"not in {archive}: {set(TYPES) - set(found)}"
    return dict(sorted(found.items()))


def as_text(schemas: dict[str, Json]) -> str:
    """The text of `schemas.json`, with one type per line."""
    lines = (f"{json.dumps(name)}: {json.dumps(schema, separators=(',', ':'))}" for name, schema in schemas.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    SCHEMAS.write_text(as_text(schemas_of(Path(sys.argv[1]))), encoding="utf-8")
