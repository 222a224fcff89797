"""What is published: a wheel and a source distribution, installed where nothing else is but what the wheel asks for."""

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from kinesis_efo_tools.emr.packing import find_uv
from tests.support.archives import unpack
from tests.support.commands import outcome
from tests.support.missing import not_here

ROOT = Path(__file__).resolve().parents[2]
ALL_MODULES = """
import importlib, pkgutil, sys
IN_SPARK = ("kinesis_efo.driver", "kinesis_efo.spark", "kinesis_efo.tasks", "kinesis_efo_local.pytest_plugin")
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}.", onerror=lambda name: None):
        if not module.name.startswith(IN_SPARK):
            importlib.import_module(module.name)
"""
FOUND_BY_SPARK = """
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    spark.readStream.format("kinesis-efo").load()
except AnalysisException as error:
    print(error)
spark.stop()
"""


def build(project: Path, directory: Path, *targets: str) -> Path:
    """Build a project offline, with the build backend that is installed."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(directory)]
    subprocess.run([*command, *(f"--target={target}" for target in targets)], cwd=project, check=True, timeout=60)
    return directory


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"), "wheel", "sdist")


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def built_constructs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT / "packages" / "kinesis-efo-infra", tmp_path_factory.mktemp("dist-infra"), "wheel", "sdist")


@pytest.fixture(scope="module")
def constructs(built_constructs: Path) -> Path:
    (wheel,) = built_constructs.glob("*.whl")
    return wheel


@pytest.mark.parametrize("beside", [("s3fs", "awswrangler"), ("s3fs", "awswrangler", "boto3==1.43.115")], ids=" ".join)
def test_the_wheel_installs_with_common_packages(wheel: Path, beside: Sequence[str]) -> None:
    wanted = [f"kinesis-efo[emr,local] @ {wheel.as_uri()}", *beside]
    command = [find_uv(), "pip", "compile", "-", "--no-header", "--no-annotate", "--python-version", "3.11", "--quiet"]
    said = outcome(command, input="\n".join(wanted))
    if "Failed to fetch" in said.stderr:
        not_here("no package index can be reached, and dependencies are not resolved; try again with a network")
    assert said.returncode == 0, said.stderr
    found = said.stdout.splitlines()
    assert all(any(line.startswith(name) for line in found) for name in (*beside, "botocore==", "moto=="))


class Environment:
    """A virtual environment with the wheel, the distributions that it asks for, alone or with an extra, and no others."""

    def __init__(self, directory: Path, wheel: Path, extra: str = "") -> None:
        venv.create(directory, symlinks=True)
        self.bin = directory / "bin"
        self.install(wheel)
        (self._site,) = directory.glob("lib/python*/site-packages")
        (metadata,) = self._site.glob("kinesis_efo-*.dist-info")
        self._installed: set[tuple[str, frozenset[str]]] = set()
        for text in Distribution.at(metadata).requires or ():
            self.add(text, extra)

    def install(self, wheel: Path) -> None:
        """Install a wheel without an index, and without what it asks for."""
        self.pip("install", "--offline", "--no-index", "--no-deps", str(wheel))

    def pip(self, command: str, *arguments: str) -> None:
        given = [find_uv(), "pip", command, "--quiet", "--python", str(self.bin / "python"), *arguments]
        ran = outcome(given, seconds=60)
        assert ran.returncode == 0, ran.stderr

    def add(self, text: str, extra: str = "") -> None:
        """Link a requirement, and what it asks for in turn, from the environment of the tests."""
        requirement = Requirement(text)
        wanted = (requirement.name, frozenset(requirement.extras))
        if wanted in self._installed or not (
            requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        ):
            return
        self._installed.add(wanted)
        found = distribution(requirement.name)
        self._link(found)
        for each in found.requires or ():
            for asked in ("", *requirement.extras):
                self.add(each, asked)

    def _link(self, found: Distribution) -> None:
        for file in found.files or ():
            if file.parts[0] == "..":  # a program in bin/
                continue
            # A package belongs to one distribution and is linked whole; a namespace is shared.
            top = Path(str(found.locate_file(file.parts[0])))
            whole = (top / "__init__.py").exists()
            target = self._site / (file.parts[0] if whole else file)
            if not target.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(top if whole else str(found.locate_file(file)))

    def run(self, *command: str, code: int = 0) -> str:
        """What a program of the environment prints, away from the repository and from what this process was given.

        Args:
            command: The program and its arguments.
            code: Its exit code. If it is not 0, what the program prints as an error is returned.
        """
        given = {"PATH": os.defpath, "HOME": str(self._site), "PYSPARK_PYTHON": str(self.bin / "python")}
        given |= {name: os.environ[name] for name in ("JAVA_HOME", "JAVA_TOOL_OPTIONS") if name in os.environ}
        ran = outcome([str(self.bin / command[0]), *command[1:]], cwd=self._site.parent, env=given)
        assert ran.returncode == code, ran.stderr
        return ran.stderr if code else ran.stdout


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("clean"), wheel)


@pytest.fixture(scope="module")
def with_cli(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("cli"), wheel, "cli")


def test_the_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    here = {str(path.relative_to(ROOT / "lib")) for path in (ROOT / "lib").rglob("*.py")}
    names = set(ZipFile(wheel).namelist())
    about = {name for name in names if ".dist-info/" in name}
    data = {f"top/page/top.{kind}" for kind in ("css", "html", "js")} | {"quickstart/first.py.txt"}
    data = {f"kinesis_efo_tools/cli/{name}" for name in data} | {"kinesis_efo/py.typed", "kinesis_efo_local/py.typed"}
    data |= {"kinesis_efo/options/elsewhere.txt"}
    assert names - about == here | data
    assert any(name.endswith("/licenses/LICENSE") for name in about)


def test_the_source_distribution_builds_the_same_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    unpack(source, tmp_path)
    (project,) = tmp_path.iterdir()
    again = build(project, tmp_path / "dist", "wheel") / wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_the_constructs_are_a_package_of_their_own(constructs: Path, built_constructs: Path, tmp_path: Path) -> None:
    project = ROOT / "packages" / "kinesis-efo-infra"
    names = set(ZipFile(constructs).namelist())
    about = {name for name in names if ".dist-info/" in name}
    package = project / "kinesis_efo_infra"
    here = {str(path.relative_to(project)) for path in package.rglob("*.py")}
    data = {
        "gate/checkov/pyproject.toml",
        "gate/checkov/uv.lock",
        "lazy_provider.cjs",
        "pipeline/prices.json",
        "pipeline/providers.tfrc",
        "py.typed",
    }
    data |= {str(path.relative_to(package)) for path in package.rglob("*.template")}
    assert names - about == here | {f"kinesis_efo_infra/{name}" for name in data}
    assert any(name.endswith("/licenses/LICENSE") for name in about)
    # What the wheel brings writes a repository, hidden files and all.
    with ZipFile(constructs) as wheel_of_constructs:
        wheel_of_constructs.extractall(tmp_path / "installed")
    subprocess.run(
        [sys.executable, "-m", "kinesis_efo_infra.pipeline", "new-repository", str(tmp_path / "repository")],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "installed")},
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "repository" / ".github" / "workflows" / "deploy.yml").exists()
    (source,) = built_constructs.glob("*.tar.gz")
    unpack(source, tmp_path / "source")
    (unpacked,) = (tmp_path / "source").iterdir()
    assert (build(unpacked, tmp_path / "again", "wheel") / constructs.name).read_bytes() == constructs.read_bytes()


def test_the_command_runs_with_its_extra_alone(with_cli: Environment, wheel: Path) -> None:
    assert "doctor" in with_cli.run("kinesis-efo", "--help")
    assert with_cli.run("kinesis-efo", "--version").split() == ["kinesis-efo", wheel.name.split("-")[1]]


def test_the_command_without_its_extra_names_it(clean: Environment) -> None:
    said = clean.run("kinesis-efo", "--help", code=1)
    assert said == "kinesis-efo: the command line needs its dependencies: pip install 'kinesis-efo[cli]'\n"


def test_both_packages_go_together(clean: Environment, wheel: Path, constructs: Path) -> None:
    clean.install(constructs)
    clean.pip("check")
    said = clean.run(
        "python",
        "-c",
        "import kinesis_efo, kinesis_efo_infra as infra; print(kinesis_efo.__version__, infra.__version__)",
    )
    assert said.split() == [wheel.name.split("-")[1], constructs.name.split("-")[1]]


def test_every_module_loads_with_what_the_wheel_asks_for(clean: Environment, with_cli: Environment) -> None:
    clean.run("python", "-c", ALL_MODULES, "kinesis_efo", "kinesis_efo_local")
    with_cli.run("python", "-c", ALL_MODULES, "kinesis_efo_tools")


@pytest.mark.spark43
@pytest.mark.long
def test_spark_finds_the_source(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path, wheel)
    environment.add("pyspark")
    assert "kinesis-efo needs option 'manifest'" in environment.run("python", "-c", FOUND_BY_SPARK)
