"""The archive's form: the same bytes from the same contents, a launcher that finds Python, and what is said when something is wrong."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from kinesis_efo.errors import PackagingError
from kinesis_efo_tools.emr.packing import PythonPlatform, _write_launcher, find_uv, pack, package, read_archive
from tests.support.commands import outcome
from tests.support.messages import raises

HERE = PythonPlatform(f"3.{sys.version_info.minor}", "arm64" if os.uname().machine == "aarch64" else "x86_64")


def test_same_contents_are_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for folder, mode, text in (("one", 0o744, "b = 1\n"), ("other", 0o700, "b = 1\n"), ("changed", 0o744, "b = 2\n")):
        file = tmp_path / folder / "bin" / "python"
        (file.parent / "__pycache__").mkdir(parents=True)
        (file.parent / "__pycache__" / "b.cpython-311.pyc").write_bytes(folder.encode())
        file.write_text(text)
        file.chmod(mode)
        digests.append(pack(tmp_path / folder, tmp_path / f"{folder}.tar.gz"))
    assert digests[0] == digests[1] != digests[2]
    with tarfile.open(tmp_path / "other.tar.gz") as tar:
        (member,) = (each for each in tar if each.isfile())
    assert (member.name, oct(member.mode), member.uid, member.uname, member.mtime) == (
        "bin/python", "0o755", 0, "", 315532800,
    )  # fmt: skip


class Unpacked:
    """An archive's directory with the launcher in it, and one module."""

    def __init__(self, root: Path, platform: PythonPlatform = HERE) -> None:
        self.root = root
        (root / "lib").mkdir(parents=True)
        (root / "lib" / "packed.py").write_text("where = 'packed'\n")
        _write_launcher(root / "bin" / "python", platform)
        (root / "bin" / "python").chmod(0o755)

    def run(self, *arguments: str, cwd: Path, program: str = "./environment/bin/python", **environment: str) -> str:
        ran = outcome(
            [program, *arguments], cwd=cwd, env={"PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}", **environment}
        )
        return ran.stdout + ran.stderr + ("" if ran.returncode == 0 else f"exit {ran.returncode}")


def test_launcher_finds_packages_from_any_directory(tmp_path: Path) -> None:
    container = tmp_path / "a container"
    container.mkdir()
    # YARN links to where it has unpacked the archive.
    Unpacked(tmp_path / "file cache")
    (container / "environment").symlink_to(tmp_path / "file cache")
    show = "import packed, sys; print(packed.where, sys.version_info[:2] == (3, int(sys.argv[1])), 'spark.zip' in sys.path[2])"
    python = Unpacked(tmp_path / "elsewhere")
    minor = HERE.python.partition(".")[2]
    assert python.run("-c", show, minor, cwd=container, PYTHONPATH="/opt/spark.zip") == "packed True True\n"
    absolute = str(container / "environment" / "bin" / "python")
    assert python.run("-c", "import packed; print(packed.where)", cwd=tmp_path, program=absolute) == "packed\n"


def test_host_without_the_python_is_named(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "dirname", "uname"):
        (tools / name).symlink_to(shutil.which(name) or "")
    missing = PythonPlatform(
        next(each for each in ("3.13", "3.12") if not Path(f"/usr/bin/python{each}").exists()), HERE.architecture
    )
    unpacked = Unpacked(tmp_path / "environment", missing)
    said = unpacked.run("-V", cwd=tmp_path, PATH=str(tools))
    assert f"built for Python {missing.python}, which this host does not have (PATH is {tools})" in said
    assert "exit 1" in said
    environment = {"PATH": str(tools), "KINESIS_EFO_PYTHON": sys.executable}
    show, program = "import packed; print(packed.where)", "./right/bin/python"
    right = Unpacked(tmp_path / "right").run("-c", show, cwd=tmp_path, program=program, **environment)
    assert right == "packed\n"


def test_children_get_the_original_environment(tmp_path: Path) -> None:
    """With another Python, the archive's packages do not work."""
    unpacked = Unpacked(tmp_path / "environment")
    host = tmp_path / "host"
    host.mkdir()
    (host / "sitecustomize.py").write_text("import sys; sys.of_the_host = True\n")
    show = "import os, subprocess, sys; print(sys.of_the_host); print(os.environ.get('PYTHONPATH'), flush=True); "
    child = "subprocess.run([sys.argv[1] or sys.executable, '-c', 'import packed; print(packed.where)'])"
    said = unpacked.run("-c", show + child, sys.executable, cwd=tmp_path, PYTHONPATH=str(host))
    assert said.startswith(f"True\n{host}\n")
    assert "No module named 'packed'" in said
    assert unpacked.run("-c", show + child, "", cwd=tmp_path, PYTHONPATH=str(host)) == f"True\n{host}\npacked\n"
    assert unpacked.run("-c", "import os; print('PYTHONPATH' in os.environ)", cwd=tmp_path) == "False\n"


def test_unfit_python_or_processor_is_refused(tmp_path: Path) -> None:
    other = PythonPlatform(next(each for each in ("3.13", "3.12") if each != HERE.python), HERE.architecture)
    unpacked = Unpacked(tmp_path / "environment", other)
    for chosen in (sys.executable, "/no/such/python"):
        said = unpacked.run("-V", cwd=tmp_path, KINESIS_EFO_PYTHON=chosen)
        assert f"KINESIS_EFO_PYTHON must be the path of a Python {other.python}; got '{chosen}'\nexit 1" in said
    foreign = PythonPlatform(HERE.python, "x86_64" if HERE.architecture == "arm64" else "arm64")
    said = Unpacked(tmp_path / "foreign", foreign).run("-V", cwd=tmp_path, program="./foreign/bin/python")
    assert f"built for {foreign.architecture}, but this host is {os.uname().machine}" in said
    assert "exit 1" in said


def test_platform_that_emr_lacks_is_refused() -> None:
    with raises(PackagingError, "--python must be one that EMR has with Spark 4 (3.11, 3.12, 3.13); got '3.9'"):
        PythonPlatform("3.9", "x86_64")
    with raises(PackagingError, "--architecture must be one of x86_64, arm64; got 'sparc'"):
        PythonPlatform("3.11", "sparc")  # type: ignore[arg-type]


@pytest.mark.parametrize("contents", [b"", b"no archive", None])
def test_file_that_is_no_archive_is_refused(tmp_path: Path, contents: bytes | None) -> None:
    file = tmp_path / "environment.tar.gz"
    if contents is not None:
        file.write_bytes(contents)
    with pytest.raises(PackagingError, match=r"environment.tar.gz is not an archive of `kinesis-efo emr package`"):
        read_archive(file)
    (tmp_path / "tree").mkdir()
    pack(tmp_path / "tree", tmp_path / "other.tar.gz")
    with raises(
        PackagingError,
        ".../other.tar.gz is not an archive of `kinesis-efo emr package`: KeyError: \"filename 'environment.json' not found\"",
    ):
        read_archive(tmp_path / "other.tar.gz")


@pytest.mark.parametrize("missing", ["pyproject.toml", "uv.lock"])
def test_directory_without_a_lock_is_refused(tmp_path: Path, missing: str) -> None:
    for name in {"pyproject.toml", "uv.lock"} - {missing}:
        (tmp_path / name).touch()
    said = f"{tmp_path} has no {missing}: --project must be the directory of a uv project with a lock file"
    with raises(PackagingError, said):
        package(tmp_path, tmp_path / "out", PythonPlatform())


def test_uv_is_found_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(find_uv()).parent == Path(sysconfig.get_path("scripts")), "that of this environment comes first"
    monkeypatch.setitem(sys.modules, "uv", None)  # as if it were not installed
    assert find_uv() == str(tmp_path / "uv")
    (tmp_path / "uv").unlink()
    with raises(
        PackagingError,
        "packing needs the program uv, which is neither installed with ... nor on the PATH: pip install 'kinesis-efo[emr]'",
    ):
        find_uv()


_BACKEND = """
import os, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "kinesis_efo-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr("seen.txt", "\\n".join(sorted(os.environ)))
        wheel.writestr("kinesis_efo-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: kinesis-efo\\nVersion: 1\\n")
        wheel.writestr("kinesis_efo-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("kinesis_efo-1.dist-info/RECORD", "")
    return name
"""


@pytest.mark.slow
def test_build_backend_sees_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "backend.py").write_text(_BACKEND)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "kinesis-efo"\nversion = "1"\nrequires-python = ">=3.11"\n'
    )
    subprocess.run([find_uv(), "lock", "--offline", "--quiet", "--project", str(project)], check=True)
    for name in ("AWS_SECRET_ACCESS_KEY", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "GH_TOKEN", "SETTING_OF_THE_BUILD"):
        monkeypatch.setenv(name, "x")
    archive = package(project, tmp_path / "out", HERE)
    with tarfile.open(archive.path) as tar:
        member = tar.extractfile("lib/seen.txt")
        seen = member.read().decode().splitlines()
    assert "SETTING_OF_THE_BUILD" in seen
    assert [each for each in seen if each.startswith(("AWS_", "ACTIONS_", "GH_"))] == []
