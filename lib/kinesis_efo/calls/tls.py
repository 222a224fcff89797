"""TLS between processes of a run: a certificate that a service makes when it starts, and that its callers alone are told to trust.

Names mean nothing here, so there is no authority: a caller trusts exactly this one certificate.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

CERTIFICATE_NAME: Final = "fetcher.kinesis-efo.invalid"
"""The name in every certificate, whatever the address by which a caller comes."""

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
    """Make a self-signed certificate for one service.

    Args:
        now: The time, with its zone.
    """
    # Loaded by those alone that need it: on the loopback address alone nothing is encrypted.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

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


def showing(certificate: Certificate) -> ssl.SSLContext:
    """What a service with this certificate wraps its sockets with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with _readable(certificate.pem) as chain, _readable(certificate.key) as key:
        context.load_cert_chain(chain, key)
    return context


@lru_cache(maxsize=16)
def trusting(pem: str) -> ssl.SSLContext:
    """What a caller wraps its socket with that trusts one certificate and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=pem)
    return context


def fingerprint(certificate: str | bytes | None) -> bytes:
    """The hash of a certificate, PEM or DER, which proofs are bound to. Python has no other binding to a channel of TLS 1.3."""
    der = ssl.PEM_cert_to_DER_cert(certificate) if isinstance(certificate, str) else certificate
    return hashlib.sha256(der or b"").digest()


@contextlib.contextmanager
def _readable(text: str) -> Iterator[str]:
    """A path that some bytes can be read from, once: Python takes keys from files only, and this one is to be in none."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as file:
        # Little enough for a pipe to hold.
        file.write(text.encode())
        file.close()
        yield f"/dev/fd/{reading}"
