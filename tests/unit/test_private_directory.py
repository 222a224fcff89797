"""The directory of small files is this user's alone, or is refused; and what was opened is used, wherever its path leads meanwhile."""

import os
import socket
from pathlib import Path

import psutil
import pytest

from kinesis_efo.processes import PrivateDirectory


def test_a_directory_is_made_for_this_user_alone(tmp_path: Path) -> None:
    for _ in range(2):
        with PrivateDirectory(tmp_path / "notes") as there:
            there.write("a.json", b"long")
            there.write("a.json", b"new")
            there.write("b.txt")
            assert there.names("*.json") == ["a.json"]
            assert there.names("*") == ["a.json", "b.txt"]
            assert (tmp_path / "notes" / "a.json").read_bytes() == b"new"
            there.remove("a.json", "b.txt", "d.json")
            assert there.names("*") == []
    assert (tmp_path / "notes").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("entered by the group", r"its owner is user \d+ and its mode 710"),
        ("written by all", r"its owner is user \d+ and its mode 722"),
        ("another user's", r"its owner is user \d+ and its mode 700"),
        ("a link", "it is a link or a file"),
        ("a file", "it is a link or a file"),
    ],
)
def test_a_directory_of_others_is_refused(tmp_path: Path, what: str, reason: str) -> None:
    path, own = tmp_path / "notes", tmp_path / "own"
    own.mkdir(0o700)
    match what:
        case "a link":
            path.symlink_to(own)
        case "a file":
            path.touch()
        case _:
            path.mkdir()
            path.chmod({"entered by the group": 0o710, "written by all": 0o722}.get(what, 0o700))
    opened = psutil.Process().num_fds()
    with pytest.raises(PermissionError, match=rf"notes is not a directory of this user alone: {reason}; .* set TMPDIR"):
        PrivateDirectory(path, user=os.geteuid() + (what == "another user's"))
    assert psutil.Process().num_fds() == opened


def test_a_moved_directory_stays_in_use(tmp_path: Path) -> None:
    path, thiefs = tmp_path / "notes", tmp_path / "thief's"
    thiefs.mkdir()
    with PrivateDirectory(path) as there:
        path.rename(tmp_path / "moved")
        path.symlink_to(thiefs)
        there.write("secret", b"secret")
    assert [each.name for each in (tmp_path / "moved").iterdir()] == ["secret"]
    assert not list(thiefs.iterdir())


@pytest.mark.parametrize("what", ["a directory", "a pipe", "a link", "a link to itself", "a socket"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
def test_only_regular_files_are_opened(tmp_path: Path, what: str, flags: int) -> None:
    with PrivateDirectory(tmp_path / "notes") as there, socket.socket(socket.AF_UNIX) as sock:
        odd = tmp_path / "notes" / "odd"
        match what:
            case "a directory":
                odd.mkdir()
            case "a pipe":
                os.mkfifo(odd)
            case "a link":
                odd.symlink_to(tmp_path / "elsewhere")
            case "a link to itself":
                odd.symlink_to(odd)
            case _:
                sock.bind(str(odd))
        with pytest.raises(FileNotFoundError, match="odd is not a regular file; remove it"):
            there.open("odd", flags)
    assert not (tmp_path / "elsewhere").exists()
