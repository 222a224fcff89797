"""Synthesizes every environment with CDKTF and with its fork CDK Terrain, and says where the stacks differ.

python -m scripts.engines infra/environments
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHONS: Final = {"cdktf": ROOT / ".venv/bin/python", "cdktn": ROOT / ".venv-cdktn/bin/python"}
"""The Python of each engine's environment."""

# In a process of its own: an environment has one engine.
_SYNTHESIZE: Final = """
import sys
from pathlib import Path
from infra.stacks.app import synthesize, synthesize_bootstrap
from infra.settings.load import load_environments
directory, out = map(Path, sys.argv[1:])
environments = load_environments(directory)
synthesize(environments, directory, outdir=out / "streaming")
synthesize_bootstrap(environments, out / "bootstrap")
"""


@dataclass(frozen=True, slots=True)
class Engine:
    """What a stack says of the engine that made it.

    Attributes:
        version: Version of the engine.
        source: Source of the AWS provider, as the engine writes it.
        provider: Version of the AWS provider.
    """

    version: str
    source: str
    provider: str


@dataclass(frozen=True, slots=True)
class Stack:
    """A synthesized stack.

    Attributes:
        engine: What made it.
        rest: Everything else, which must not depend on the engine.
    """

    engine: Engine
    rest: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Stack:
        """Read a `cdk.tf.json`."""
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["//"]["metadata"].pop("version")
        provider = document["terraform"].pop("required_providers")["aws"]
        return cls(Engine(version, provider["source"], provider["version"]), document)


def synthesized(name: str, directory: Path, out: Path) -> Mapping[str, Stack]:
    """Synthesize the environments of a directory with one engine, their bootstrap stacks as well.

    Args:
        name: `cdktf` or `cdktn`.
        directory: Directory of the environment files.
        out: Where to write.

    Raises:
        subprocess.CalledProcessError: It failed; the reason is on stderr.
    """
    out.mkdir(parents=True)
    command = [str(PYTHONS[name]), "-c", _SYNTHESIZE, str(directory.absolute()), str(out)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "KINESIS_EFO_CDK": name}, check=True)
    return {str(path.parent.relative_to(out)): Stack.read(path) for path in out.glob("*/stacks/*/cdk.tf.json")}


def differences(ours: Mapping[str, Stack], forks: Mapping[str, Stack]) -> Iterator[str]:
    """The lines in which stacks of the two engines differ, as a diff of their JSON."""
    for stack in sorted(ours.keys() | forks.keys()):
        yield from difflib.unified_diff(
            _lines(ours.get(stack)), _lines(forks.get(stack)), f"cdktf/{stack}", f"cdktn/{stack}", lineterm=""
        )


def _lines(stack: Stack | None) -> list[str]:
    return json.dumps(stack.rest, indent=2, sort_keys=True).splitlines() if stack else []


def verdict(ours: Mapping[str, Stack], forks: Mapping[str, Stack]) -> tuple[int, str]:
    """The exit code, 1 where anything differs, and what to print."""
    told = list(differences(ours, forks))
    code = 1 if told else 0
    told = told or [f"{len(ours)} stacks, and no difference but these:"]
    for name, stacks in (("cdktf", ours), ("cdktn", forks)):
        engines = {each.engine for each in stacks.values()}
        told += [f"{name} {each.version}: AWS provider {each.provider} from {each.source}" for each in engines]
    return code, "\n".join(told)


def main(arguments: Sequence[str]) -> int:
    """Compare the engines on a directory of environment files; returns the exit code."""
    (directory,) = map(Path, arguments)
    with TemporaryDirectory(prefix="kinesis-efo-engines-") as scratch:
        ours, forks = (synthesized(name, directory, Path(scratch) / name) for name in PYTHONS)
    code, told = verdict(ours, forks)
    sys.stdout.write(f"{told}\n")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError:
        sys.exit("the engines were not compared: one of them failed; its message is above")
