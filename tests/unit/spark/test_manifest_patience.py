"""A manifest that cannot be had: `retryTimeout` says how long it is waited for, and nothing of the SDK's adds to that."""

import time
from threading import Event

import pytest

from kinesis_efo.errors import ManifestError
from kinesis_efo.spark.source import KinesisEfoSource
from tests.support.http_server import Handler, served

pytestmark = pytest.mark.spark


class Broken(Handler):
    """Answers every request with an error, or with nothing until the test is over."""

    asked: list[str]
    over: Event
    silent: bool

    def do_POST(self) -> None:
        self.asked.append(self.headers.get("X-Amz-Target") or self.path)
        if not (self.silent and self.over.wait(60)):
            self.answer(500, b"{}")

    do_GET = do_POST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("location", "silent", "role"), [("s3://bucket/app.json", False, False), ("ssm:///app", True, True)]
)
def test_the_manifest_is_awaited_no_longer_than_asked(
    location: str, silent: bool, role: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    asked: list[str] = []
    over = Event()
    with served(Broken, asked=asked, over=over, silent=silent) as url:
        options = {
            "manifest": location,
            "endpointUrl": url,
            "region": "us-east-1",
            "retryTimeout": "2s",
            **({"roleArn": "arn:aws:iam::123456789012:role/reader"} if role else {}),
        }
        began = time.monotonic()
        with pytest.raises(ManifestError, match=f"manifest {location} cannot be"):
            KinesisEfoSource(options).streamReader(KinesisEfoSource(options).schema())
        seconds = time.monotonic() - began
        over.set()
    assert asked
    # One call that began just before the end may take as long again.
    assert seconds < 8
