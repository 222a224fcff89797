"""What `import kinesis_efo_infra` gives, and that it costs nothing until a construct is used."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kinesis_efo_infra

HERE = Path(kinesis_efo_infra.__file__).parent


def test_public_names() -> None:
    """A change here is one that users notice."""
    names = (
        "ArgumentError ArnPrincipal BatchAccess ConsumerAlarms CustomerKey Dashboard EmrOnEc2 EmrServerless Glue Grant InfraError LeaseTable Manifest "
        "Metric MissingError Place PodIdentity Policy Polling ReaderAccess ServiceAccount ServicePrincipal Statement Stream StreamConsumer StreamingApplication StreamingGlueJob __version__ pin_account "
        "policy_for"
    )
    assert sorted(kinesis_efo_infra.__all__) == names.split()
    assert dir(kinesis_efo_infra) == names.split()
    with pytest.raises(AttributeError, match="has no attribute 'Streem'"):
        _ = kinesis_efo_infra.Streem


def test_lazy_names_are_those_of_type_checkers() -> None:
    module = ast.parse(inspect.getsource(kinesis_efo_infra))
    (lazy,) = (node for node in module.body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in lazy.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    seen = {alias.name for node in ast.walk(module) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(kinesis_efo_infra.__all__) - {"__version__"} <= seen
    for name, home in homes.items():
        assert getattr(kinesis_efo_infra, name) is getattr(importlib.import_module(str(home)), name)


@pytest.mark.parametrize("name", kinesis_efo_infra.__all__)
def test_public_names_have_docstrings(name: str) -> None:
    if not name.startswith("__"):
        assert inspect.getdoc(getattr(kinesis_efo_infra, name))


def test_without_cdktf_the_package_is_named() -> None:
    """`make up` has neither CDKTF nor anything else that is installed."""
    program = """
import kinesis_efo_infra, kinesis_efo_infra.document, kinesis_efo_infra.trust
policy = kinesis_efo_infra.Policy("eu-west-1")
policy.deny_registration()
print(policy.json())
try:
    kinesis_efo_infra.Stream
except kinesis_efo_infra.MissingError as error:
    print(error)
"""
    environment = {"PATH": os.defpath, "PYTHONPATH": str(HERE.parent)}
    # Without the packages that are installed; not `-I`, which would ignore the path as well.
    command = [sys.executable, "-S", "-c", program]
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    document, missing = ran.stdout.splitlines()
    assert "NeverRegisterConsumers" in document
    assert "cdktf or cdktn is not installed" in missing
    assert "pip install 'kinesis-efo-infra[cdktf]', or 'kinesis-efo-infra[cdktn]'" in missing
