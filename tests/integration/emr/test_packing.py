"""A locked project built into an archive with the real uv."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kinesis_efo.errors import PackagingError
from kinesis_efo_tools.cli import main
from kinesis_efo_tools.emr.packing import PythonPlatform, find_uv, installed, package, read_archive
from tests.support.archives import unpack
from tests.support.messages import raises
from tests.support.wheels import make_wheel

PROJECT = """\
[project]
name = "kinesis-efo"
version = "0.0.1"
requires-python = ">=3.11"
dependencies = ["msgspec==0.22.0", "typing-extensions", "py4j==0.10.9.9"]
[project.scripts]
thing = "thing:main"
[dependency-groups]
dev = ["six"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
only-include = ["thing.py", "kinesis_efo", "kinesis_efo_local", "kinesis_efo_tools"]
"""


def _project(directory: Path, text: str = PROJECT) -> Path:
    directory.mkdir()
    (directory / "pyproject.toml").write_text(text)
    (directory / "thing.py").write_text("def main():\n    pass\n")
    for name in ("kinesis_efo", "kinesis_efo_local", "kinesis_efo_tools"):
        (directory / name).mkdir()
        (directory / name / "__init__.py").touch()
    return lock(directory)


def lock(project: Path) -> Path:
    subprocess.run([find_uv(), "lock", "--quiet", "--project", str(project)], check=True)
    return project


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _project(tmp_path_factory.mktemp("locked") / "project")


def test_archive_has_only_locked_packages(locked: Path, tmp_path: Path) -> None:
    archive = package(locked, tmp_path, PythonPlatform("3.12", "arm64"))
    assert dict(archive.packages) == {
        "kinesis-efo": "0.0.1",
        "msgspec": "0.22.0",
        "typing-extensions": archive.packages["typing-extensions"],
    }
    unpack(archive.path, tmp_path / "unpacked")
    unpacked = tmp_path / "unpacked"
    assert [path.name for path in (unpacked / "lib" / "msgspec").glob("*.so")] == [
        "_core.cpython-312-aarch64-linux-gnu.so"
    ]
    assert {path.name for path in unpacked.iterdir()} == {"bin", "environment.json", "lib"}
    assert {path.name for path in (unpacked / "bin").iterdir()} == {"python"}
    assert {path.name for path in (unpacked / "lib").glob("kinesis_efo*/")} == {
        "kinesis_efo",
        "kinesis_efo-0.0.1.dist-info",
    }
    # The system's own Python is at the same place everywhere, and the launcher looks there.
    here = {sys.prefix, sys.base_prefix, str(locked), str(tmp_path)} - {"/usr", "/usr/local"}
    for file in unpacked.rglob("*"):
        if file.is_file():
            contents = file.read_bytes()
            assert not any(path.encode() in contents for path in here), file
    assert installed(unpacked / "lib") == dict(archive.packages)


def test_extra_cli_keeps_the_command_line(tmp_path: Path) -> None:
    project = _project(tmp_path / "project", PROJECT.replace("py4j==0.10.9.9", "typer"))
    archive = package(project, tmp_path, PythonPlatform("3.13", "x86_64"))
    unpack(archive.path, tmp_path / "unpacked")
    kept = {path.name for path in (tmp_path / "unpacked" / "lib").glob("kinesis_efo*") if "-" not in path.name}
    assert kept == {"kinesis_efo", "kinesis_efo_tools"}


def test_refusal_of_uv_is_shown(tmp_path: Path) -> None:
    project = _project(tmp_path / "project")
    (project / "uv.lock").write_text("version = 1\nrequires-python = '>=3.11'\n")
    with raises(PackagingError, "`uv export --quiet` failed:\n...lock..."):
        package(project, tmp_path / "out", PythonPlatform())
    assert not list((tmp_path / "out").glob("*"))


def test_a_project_without_this_library_is_refused(tmp_path: Path) -> None:
    project = lock(_member(tmp_path / "project", "other"))
    with raises(
        PackagingError, "the project ... does not depend on kinesis-efo, which its jobs need: add the dependency"
    ):
        package(project, tmp_path / "out", PythonPlatform())


def _member(directory: Path, name: str, more: str = "") -> Path:
    """A project with one module."""
    directory.mkdir(parents=True)
    (directory / f"{name.replace('-', '_')}.py").touch()
    (directory / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{name}"\nversion = "1"\nrequires-python = ">=3.11"\n{more}'
    )
    return directory


def test_workspaces_and_path_dependencies_are_packed(tmp_path: Path) -> None:
    _member(tmp_path / "a clone", "kinesis-efo")
    other = _member(tmp_path / "other", "other")
    _member(tmp_path / "absolute", "absolute")
    subprocess.run([find_uv(), "build", "--quiet", "--wheel", "--out-dir", str(tmp_path), str(other)], check=True)
    _member(tmp_path / "work" / "shared", "shared")
    jobs = _member(
        tmp_path / "work" / "jobs",
        "jobs",
        f"""\
dependencies = ["shared", "kinesis-efo", "other", "absolute", "none; sys_platform == 'win32'"]
[tool.uv.sources]
shared = {{ workspace = true }}
kinesis-efo = {{ path = "../../a clone", editable = true }}
other = {{ path = "../../other-1-py3-none-any.whl" }}
absolute = {{ path = "{tmp_path}/absolute" }}
none = {{ path = "../../none" }}
""",
    )
    (tmp_path / "work" / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["*"]\n')
    none = _member(tmp_path / "none", "none")
    lock(jobs)
    (none / "none.py").unlink()  # so that it cannot be built, which it need not be for this platform
    archive = package(jobs, tmp_path / "out", PythonPlatform())
    assert sorted(archive.packages) == ["absolute", "jobs", "kinesis-efo", "other", "shared"]
    unpack(archive.path, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "lib" / "kinesis_efo.py").is_file()


def test_git_dependencies_are_refused_with_a_remedy(tmp_path: Path) -> None:
    repository = _member(tmp_path / "shared", "shared")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(repository), *command], check=True)
    source = f'dependencies = ["shared"]\n[tool.uv.sources]\nshared = {{ git = "{repository.as_uri()}" }}\n'
    project = lock(_member(tmp_path / "jobs", "jobs", source))
    with raises(
        PackagingError,
        "the project depends on shared from git (git+file://...@...), of which no hash is known: take it from an index, or "
        "clone it and write `shared = { path = ... }` in [tool.uv.sources]",
    ):
        package(project, tmp_path / "out", PythonPlatform())


def _packed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    """What `kinesis-efo emr package` prints."""
    with pytest.raises(SystemExit) as ended:
        main(["emr", "package", *arguments])
    said = capsys.readouterr()
    assert (ended.value.code or 0) == code, said.err
    return said.out, said.err


@pytest.mark.long
def test_core_goes_into_the_archive(locked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = make_wheel(tmp_path, "cp311-abi3-manylinux_2_17_aarch64", version="0.0.1")
    given = ["--project", str(locked), "--out", str(tmp_path / "out"), "--architecture", "arm64"]
    told, _ = _packed(capsys, *given, "--core", str(wheel), "--json")
    data = json.loads(told)
    assert data["core"] == data["packages"]["kinesis-efo-core"] == "0.0.1"
    unpack(Path(data["archive"]), tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "lib" / "kinesis_efo_core" / "__init__.py").exists()
    assert read_archive(Path(data["archive"])).core == "0.0.1"
    without, _ = _packed(capsys, *given, "--json")
    assert json.loads(without)["core"] is None
    assert json.loads(without)["digest"] != data["digest"]
    shown, _ = _packed(capsys, *given, "--core", str(wheel))
    assert "kinesis-efo-core 0.0.1" in shown
    shown, _ = _packed(capsys, *given)
    assert "Python; --core packs the native core" in shown


def test_unfitting_core_makes_no_archive(locked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_wheel(tmp_path, "cp311-abi3-manylinux_2_17_x86_64", version="0.0.2")
    given = ["--project", str(locked), "--out", str(tmp_path / "out")]
    _, said = _packed(capsys, *given, "--core", str(other), code=1)
    assert "is kinesis-efo-core 0.0.2, and the package has kinesis-efo 0.0.1" in said
    _, said = _packed(capsys, *given, "--core", str(other), "--architecture", "arm64", code=1)
    assert "on aarch64 loads what is built for cp311 or abi3" in said
    assert not list(tmp_path.glob("out/*"))
