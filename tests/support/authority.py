"""An authority for tests of TLS, and certificates of it."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_MAY_SIGN = x509.KeyUsage(
    digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Authority:
    """Signs certificates, which it writes with their keys into files.

    Args:
        folder: For the files.

    Attributes:
        path: Its own certificate.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Authority of a test")
        own = self._signed(self._name, self._key, [x509.BasicConstraints(ca=True, path_length=None)])
        self.path = str(folder / "authority.pem")
        Path(self.path).write_bytes(own.public_bytes(Encoding.PEM))

    def certificate(self, *hosts: str) -> str:
        """The path of a new certificate for some hosts, with its key in the same file."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        certificate = self._signed(_name(hosts[0]), key, [names])
        path = self._folder / f"{hosts[0].replace(':', '-')}.pem"
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(key_pem + certificate.public_bytes(Encoding.PEM))
        return str(path)

    def server(self, *hosts: str, alpn: tuple[str, ...] = ("h2",), clients: bool = False) -> ssl.SSLContext:
        """The TLS of a server.

        Args:
            hosts: Names and addresses in its certificate.
            alpn: Protocols that it offers; none: it does not know ALPN.
            clients: Whether clients need a certificate of this authority.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate(*hosts))
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.path)
        return context

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extensions: list[x509.ExtensionType]
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder(issuer_name=self._name, subject_name=name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
        )
        own, ours = (x509.SubjectKeyIdentifier.from_public_key(each.public_key()) for each in (key, self._key))
        extensions = [*extensions, own, x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ours)]
        if key is self._key:
            extensions.append(_MAY_SIGN)
        for extension in extensions:
            builder = builder.add_extension(
                extension, critical=isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            )
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
