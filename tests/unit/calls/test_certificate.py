"""The certificate of a fetcher."""

import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from kinesis_efo.calls.tls import CERTIFICATE_NAME, fingerprint, make_certificate

NOW = datetime(2026, 11, 22, 21, 0, tzinfo=UTC)


def test_it_is_valid_for_years_and_wrong_clocks() -> None:
    made = x509.load_pem_x509_certificate(make_certificate(NOW).pem.encode())
    assert made.not_valid_before_utc < NOW - timedelta(days=1)
    assert made.not_valid_after_utc > NOW + timedelta(days=20 * 365)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [CERTIFICATE_NAME]
    key = made.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"


def test_each_fetcher_has_its_own_and_hides_the_key() -> None:
    one, other = make_certificate(NOW), make_certificate(NOW)
    assert one.pem != other.pem
    assert one.key != other.key
    assert "PRIVATE KEY" in one.key
    assert "PRIVATE" not in repr(one) + one.pem


def test_both_sides_see_one_fingerprint() -> None:
    one, other = make_certificate(NOW), make_certificate(NOW)
    assert fingerprint(one.pem) == fingerprint(ssl.PEM_cert_to_DER_cert(one.pem))
    assert len({fingerprint(None), fingerprint(one.pem), fingerprint(other.pem)}) == 3
