"""The certificate of a run's fetcher: made when it starts, and trusted by its tasks alone, which are told it with their ranges.

Names mean nothing here, so there is no authority: a task trusts exactly this one certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from kinesis_efo.fetcher.address import CERTIFICATE_NAME

_BEFORE: Final = timedelta(days=2)
"""Clocks of hosts differ, and a task must not find the certificate not valid yet."""
_AFTER: Final = timedelta(days=30 * 365)
"""Longer than any run: it cannot be renewed within one."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, which is in memory only.

    Attributes:
        pem: The certificate.
        key: The key, PEM; never shown.
    """

    pem: str
    key: str = field(repr=False)


def make_certificate(now: datetime) -> Certificate:
    """Make a self-signed certificate for one fetcher.

    Args:
        now: The time, with its zone.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CERTIFICATE_NAME)])
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(CERTIFICATE_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(certificate.public_bytes(Encoding.PEM).decode(), key_pem.decode())
