"""Host names and addresses."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.hosts import bracketed, is_every_address, is_loopback, parse_host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("driver", "driver"), ("spark-1.ns.svc.cluster.local.", "spark-1.ns.svc.cluster.local."), ("ip_1", "ip_1"), (" 10.0.0.7 ", "10.0.0.7"),
        ("FD00::0:2", "fd00::2"), ("[::1]", "::1"), ("0.0.0.0", "0.0.0.0"), ("1password.example", "1password.example"),
    ],
)  # fmt: skip
def test_names_and_addresses(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text",
    ["", ".", "a..b", "a b", "10.0.0.256", "10.1", "::1::", "[::1", "::1]", "fe80::1%2", "a:1", "\u00e9", "x" * 64],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        parse_host(text)


def test_loopback_and_every_address_are_recognized() -> None:
    assert [is_loopback(host) for host in ("localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1")] == [True] * 5
    assert [is_loopback(host) for host in ("10.0.0.7", "::", "0.0.0.0", "localhost.example", "driver")] == [False] * 5
    assert [is_every_address(host) for host in ("0.0.0.0", "::", "10.0.0.7", "driver")] == [True, True, False, False]


@given(st.ip_addresses())
def test_addresses_are_read_as_they_are_written(address: object) -> None:
    host = str(address)
    if "%" not in host:
        assert parse_host(host) == parse_host(bracketed(host)) == host
