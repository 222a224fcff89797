"""What `import kinesis_efo_infra` gives, and that it costs nothing until a construct is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kinesis_efo_infra

HERE = Path(kinesis_efo_infra.__file__).parent


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
