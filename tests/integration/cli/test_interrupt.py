"""Ctrl-C ends a command within a second, even while the system resolves a name and cannot be interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.test_manifest import document

# A mutex that is locked twice waits in C, outside the reach of Python's signal handlers, like a name server that does not answer.
STUCK = """
import ctypes, os, socket

def getaddrinfo(*_, **__):
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    os.write(2, b"resolving\\n")
    libc.pthread_mutex_lock(mutex)

socket.getaddrinfo = getaddrinfo
from kinesis_efo_tools.cli import main
main()
"""


@pytest.mark.parametrize(
    ("command", "code", "remote"),
    [
        ("doctor", 130, False),
        ("lag --watch", 0, False),
        ("leases reset --to LATEST --yes", 130, False),
        # A name is resolved in the main thread before the manifest is loaded, in another one later.
        ("manifest check", 130, True),
        ("tail --stream orders", 0, True),
    ],
)
def test_interrupted_command_ends_while_a_name_is_resolved(
    command: str, code: int, remote: bool, tmp_path: Path
) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(document()))
    arguments = [*command.split(), "--manifest", "ssm:///lake" if remote else str(path)]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("AWS_") and "PROXY" not in name.upper()
    }
    environment |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "eu-west-1"}
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            while b"resolving" not in (line := process.stderr.readline()):
                assert line, "the command ended by itself"
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            process.communicate(timeout=8)
        finally:
            process.kill()
    assert process.returncode == code
    assert time.monotonic() - began < 5
