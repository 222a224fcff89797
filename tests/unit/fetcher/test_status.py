"""What tools need to ask a run, as it stands in the run's row; and what earlier versions understand of the answer."""

from datetime import UTC, datetime

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.tls import make_certificate
from kinesis_efo.fetcher.status import StatusAccess

NAMESPACE = "0b6f2c1b-2daa-4abb-9ccc-1234567890ab net:[4026531836]"


@pytest.mark.parametrize("encrypted", [True, False])
def test_the_access_survives_the_row_and_is_small(encrypted: bool) -> None:
    pem = make_certificate(datetime.now(UTC)).pem if encrypted else None
    hosts = ("10.0.1.17", "ip-10-0-1-17.eu-west-1.compute.internal")
    access = StatusAccess(FetcherAddress(NAMESPACE, 34_567, hosts, pem), "t" * 22)
    text = access.to_text()
    assert StatusAccess.parse(text) == access
    # With everything else that a run's row says, it stays under the 1 KB that one write unit covers.
    assert len(text) < 700
