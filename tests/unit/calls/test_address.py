"""The ways to a fetcher."""

from pathlib import Path

import pytest

from kinesis_efo.calls.address import FetcherAddress, network_namespace

ADDRESS = FetcherAddress("boot-1 net:[1]", 40_000, ("10.0.0.7", "fd00::2", "driver"), "a certificate")


def test_loopback_comes_first_in_the_same_network_namespace_only() -> None:
    assert ADDRESS.hosts_from("boot-1 net:[1]") == ("127.0.0.1", "10.0.0.7", "fd00::2", "driver")
    assert ADDRESS.hosts_from("boot-1 net:[2]") == ("10.0.0.7", "fd00::2", "driver")
    assert ADDRESS.hosts_from("boot-2 net:[1]") == ("10.0.0.7", "fd00::2", "driver")


def test_locations() -> None:
    assert [ADDRESS.location(host) for host in ADDRESS.hosts] == [
        "tls://10.0.0.7:40000",
        "tls://[fd00::2]:40000",
        "tls://driver:40000",
    ]
    assert str(ADDRESS) == "tls://10.0.0.7:40000"
    assert str(FetcherAddress("here", 40_000)) == "tcp://127.0.0.1:40000"


def machine(directory: Path, boot: str, namespace: str) -> str:
    (directory / "sys/kernel/random").mkdir(parents=True)
    (directory / "self/ns").mkdir(parents=True)
    (directory / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    (directory / "self/ns/net").symlink_to(namespace)
    return network_namespace(directory)


def test_containers_with_one_boot_id_are_distinguished(tmp_path: Path) -> None:
    here = machine(tmp_path / "a", "boot-1", "net:[4026531833]")
    assert machine(tmp_path / "b", "boot-1", "net:[4026531833]") == here
    assert machine(tmp_path / "c", "boot-1", "net:[4026532000]") != here
    assert machine(tmp_path / "d", "boot-2", "net:[4026531833]") != here


def test_a_system_without_namespaces_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "mac-1")
    assert network_namespace(tmp_path / "none") == "mac-1"
