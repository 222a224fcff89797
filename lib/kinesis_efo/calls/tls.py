"""TLS between processes of a run: each service creates a certificate when it starts, and its callers trust only this certificate."""

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
"""The host name in every certificate. Callers verify this name instead of the service's address."""

_BEFORE: Final = timedelta(days=2)
"""A certificate is already valid this long before its creation, because other hosts' clocks may be behind."""
_AFTER: Final = timedelta(days=30 * 365)
"""How long a certificate is valid after its creation: longer than any run, since it cannot be renewed."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, as PEM. The key is only in memory, and never printed or logged."""

    pem: str
    key: str = field(repr=False)


def make_certificate(now: datetime) -> Certificate:
    """Create a self-signed certificate for one service. `now` is the current time, with a time zone."""
    # Import lazily, since services that only listen on loopback do not use TLS.
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


def service_context(certificate: Certificate) -> ssl.SSLContext:
    """Return the TLS context of a service with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with _readable(certificate.pem) as chain, _readable(certificate.key) as key:
        context.load_cert_chain(chain, key)
    return context


@lru_cache(maxsize=16)
def caller_context(pem: str) -> ssl.SSLContext:
    """Return the TLS context of a caller that trusts only this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=pem)
    return context


def fingerprint(certificate: str | bytes | None) -> bytes:
    """Return the hash of a certificate (PEM or DER). Authentication includes it, so that a proof is valid only on connections with this
    certificate; Python does not support channel binding for TLS 1.3."""
    der = ssl.PEM_cert_to_DER_cert(certificate) if isinstance(certificate, str) else certificate
    return hashlib.sha256(der or b"").digest()


@contextlib.contextmanager
def _readable(text: str) -> Iterator[str]:
    """Yield the path of a pipe from which `text` can be read once: Python loads keys only from files, but a key must not be on disk."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as file:
        # This does not block, because the text fits into the pipe's buffer.
        file.write(text.encode())
        file.close()
        yield f"/dev/fd/{reading}"
