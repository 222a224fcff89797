"""A certificate for servers on 127.0.0.1, made once per process tree; clients trust it through `AWS_CA_BUNDLE`."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_BUNDLE: Final = "AWS_CA_BUNDLE"
_KEY: Final = "KINESIS_EFO_BENCHMARK_KEY"


@contextlib.contextmanager
def trusted_certificate() -> Iterator[None]:
    """Make a certificate that the processes started meanwhile serve with, or trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the benchmark")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory() as place:
        bundle, secret = Path(place, "certificate.pem"), Path(place, "key.pem")
        bundle.write_bytes(certificate.public_bytes(Encoding.PEM))
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        before = {name: os.environ.get(name) for name in (_BUNDLE, _KEY)}
        os.environ.update({_BUNDLE: str(bundle), _KEY: str(secret)})
        try:
            yield
        finally:
            for name_, value in before.items():
                if value is None:
                    del os.environ[name_]
                else:
                    os.environ[name_] = value


def server_context(protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """What a server speaks TLS with.

    Args:
        protocols: What it offers by ALPN.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ[_BUNDLE], os.environ[_KEY])
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context
