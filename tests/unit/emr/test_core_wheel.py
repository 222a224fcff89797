"""Which wheels of the native core are packed, and what is said of those that are not."""

from pathlib import Path

import pytest

from kinesis_efo.errors import PackagingError
from kinesis_efo_tools.emr.core_wheel import read_core_wheel
from tests.support.messages import raises
from tests.support.wheels import make_wheel

GOOD = "cp311-abi3-manylinux_2_17_x86_64"
ARM = "cp311-abi3-manylinux_2_28_aarch64"


@pytest.mark.parametrize(
    ("tags", "python", "machine"),
    [
        ([GOOD], "3.11", "x86_64"),
        ([ARM], "3.12", "aarch64"),
        (["cp311-abi3-manylinux_2_34_x86_64"], "3.11", "x86_64"),
        (["cp311-abi3-musllinux_1_2_x86_64", "cp311-abi3-manylinux2014_x86_64"], "3.11", "x86_64"),
        (["cp312-cp312-manylinux_2_17_x86_64"], "3.12", "x86_64"),
    ],
)
def test_fitting_wheel_is_accepted(tags: list[str], python: str, machine: str, tmp_path: Path) -> None:
    wheel = read_core_wheel(make_wheel(tmp_path, *tags))
    wheel.check(python, machine, (2, 34))
    wheel.check_version("0.2.0")
    assert (wheel.version, wheel.tags) == ("0.2.0", tags)


@pytest.mark.parametrize(
    ("tags", "python", "machine"),
    [
        (["cp311-abi3-macosx_11_0_arm64"], "3.11", "aarch64"),
        ([GOOD], "3.11", "aarch64"),
        (["cp311-abi3-linux_x86_64"], "3.11", "x86_64"),
        (["cp311-abi3-musllinux_1_2_x86_64"], "3.11", "x86_64"),
        (["cp311-abi3-manylinux_2_35_x86_64"], "3.11", "x86_64"),
        (["cp312-cp312-manylinux_2_17_x86_64"], "3.13", "x86_64"),
        (["cp311-cp311t-manylinux_2_17_x86_64"], "3.11", "x86_64"),
        # Each part fits a tag, and no tag fits as a whole.
        ([ARM, "cp311-abi3-musllinux_1_2_x86_64"], "3.11", "x86_64"),
    ],
)
def test_wheel_for_other_machines_is_refused(tags: list[str], python: str, machine: str, tmp_path: Path) -> None:
    path = make_wheel(tmp_path, *tags)
    with pytest.raises(PackagingError) as refused:
        read_core_wheel(path).check(python, machine, (2, 34))
    assert str(refused.value) == (
        f"--core: {path} is built for {', '.join(tags)}, and a cluster with Python {python} on {machine} loads what is built for "
        f"cp{python.replace('.', '')} or abi3, and for manylinux_2_34_{machine} or older: give such a wheel, or another --architecture "
        "or --python"
    )


def test_wheel_of_another_version_is_refused(tmp_path: Path) -> None:
    wheel = read_core_wheel(make_wheel(tmp_path, GOOD, version="0.1.0"))
    with raises(
        PackagingError,
        "--core: ... is kinesis-efo-core 0.1.0, and the package has kinesis-efo 0.2.0: give the wheel of the same version",
    ):
        wheel.check_version("0.2.0")


def test_other_file_is_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "text.whl").write_text("text")
    unnamed = "--core: ... is not a wheel of kinesis-efo-core: it names no version, or no platform"
    foreign = "--core: ... is not a wheel of kinesis-efo-core: it is one of six"
    unreadable = "--core: ... is not a wheel of kinesis-efo-core: ...Error: ..."
    with raises(PackagingError, "--core: ... is not a wheel of kinesis-efo-core: BadZipFile: ..."):
        read_core_wheel(tmp_path / "text.whl")
    files = {
        tmp_path / "gone.whl": unreadable,
        tmp_path: unreadable,
        make_wheel(tmp_path, GOOD, name="six"): foreign,
        # Its name says something else.
        make_wheel(tmp_path, GOOD, name="six", file=f"kinesis_efo_core-0.2.0-{GOOD}.whl"): foreign,
        make_wheel(tmp_path, GOOD, version="1", without=["METADATA"]): unreadable,
        make_wheel(tmp_path, GOOD, version="2", without=["WHEEL"]): unreadable,
        make_wheel(tmp_path, file="untagged.whl"): unnamed,
        make_wheel(tmp_path, "any", file="odd.whl"): unnamed,
        make_wheel(tmp_path, GOOD, version="", file="versionless.whl"): unnamed,
    }
    for path, said in files.items():
        with raises(PackagingError, said.replace("...", str(path), 1)):
            read_core_wheel(path)
    for name in ("Kinesis.EFO_Core", "kinesis-efo-core"):
        assert read_core_wheel(make_wheel(tmp_path, GOOD, name=name)).version == "0.2.0"
