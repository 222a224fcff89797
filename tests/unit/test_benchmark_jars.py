"""The jars of the readers that benchmarks compare: only those of the lock, from where the user's Maven has them."""

import hashlib
from pathlib import Path

import pytest

from benchmarks.peers.jars import CENTRAL, LOCK, Jar, Locked, fetch, read_lock, repository, write_lock

DIGEST = hashlib.sha256(b"a jar").hexdigest()
JAR = Jar("org.example.group:some-artifact:1.2.3", DIGEST)


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A repository that has the jar."""
    path = tmp_path / "served" / JAR.path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a jar")
    return tmp_path / "served"


def test_the_lock_is_in_its_written_form() -> None:
    text = LOCK.read_text()
    locked = read_lock(text)
    assert write_lock(locked) == text
    for entry in locked.values():
        assert set(entry.wanted) <= {jar.coordinates for jar in entry.jars}
    assert locked["kcl"].version("amazon-kinesis-client").startswith("3.")


@pytest.mark.parametrize(
    ("coordinates", "digest", "said"),
    [
        ("org.example:artifact", DIGEST, "is not group:artifact:version"),
        ("org.example:..:1", DIGEST, "is not group:artifact:version"),
        ("org.example:../../etc:1", DIGEST, "is not group:artifact:version"),
        ("org.example:a/b:1", DIGEST, "is not group:artifact:version"),
        (JAR.coordinates, DIGEST[:-1], "is not the SHA-256 of org.example.group"),
        (JAR.coordinates, "g" * 64, "is not the SHA-256 of org.example.group"),
    ],
)
def test_a_wrong_lock_is_refused(coordinates: str, digest: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_lock(write_lock({"kcl": Locked((), (Jar(coordinates, digest),))}))


def mirrors(*given: tuple[str, str], namespace: str = ' xmlns="http://maven.apache.org/SETTINGS/1.2.0"') -> str:
    inner = "".join(f"<mirror><mirrorOf>{of}</mirrorOf><url> {url}/ </url></mirror>" for of, url in given)
    return f"<settings{namespace}><mirrors>{inner}</mirrors></settings>"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, CENTRAL),
        ("<settings/>", CENTRAL),
        (mirrors(("*", "https://one")), "https://one"),
        (mirrors(("*", "https://one"), namespace=""), "https://one"),
        (mirrors(("other", "https://one"), ("releases, central", "https://two")), "https://two"),
        (mirrors(("external:*", "https://one"), ("*", "https://two")), "https://one"),
        (mirrors(("*,!central", "https://one")), CENTRAL),
        (mirrors(("external:http:*", "http://blocked")), CENTRAL),
    ],
)
def test_the_repository_is_the_one_maven_uses(settings: str | None, expected: str) -> None:
    assert repository(settings) == expected


def test_a_jar_is_fetched_once(tmp_path: Path, served: Path) -> None:
    kept = tmp_path / "kept"
    (path,) = fetch([JAR], kept, served.as_uri())
    assert path == kept / "org" / "example" / "group" / "some-artifact" / "1.2.3" / "some-artifact-1.2.3.jar"
    assert path.read_bytes() == b"a jar"
    assert fetch([JAR], kept, (tmp_path / "nowhere").as_uri()) == [path]
    path.write_bytes(b"half a j")
    assert fetch([JAR], kept, served.as_uri()) == [path]
    assert path.read_bytes() == b"a jar"


def test_a_jar_with_another_hash_is_not_kept(tmp_path: Path, served: Path) -> None:
    (served / JAR.path).write_bytes(b"another")
    with pytest.raises(ValueError, match="has the SHA-256"):
        fetch([JAR], tmp_path / "kept", served.as_uri())
    assert not (tmp_path / "kept").exists()


def test_an_unreachable_jar_is_an_os_error(tmp_path: Path, served: Path) -> None:
    with pytest.raises(OSError, match="nothing"):
        fetch([Jar("a:nothing:1", DIGEST)], tmp_path / "kept", served.as_uri())
