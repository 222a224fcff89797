"""The local AWS obeys programs of this machine, and no web page that is open in its browser."""

from collections.abc import Iterator

import pytest

from kinesis_efo_local import LocalAws

from .conftest import ask

LIST = {"X-Amz-Target": "Kinesis_20131202.ListStreams", "Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    with LocalAws() as local:
        yield local


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.test"},
        {"Host": "evil.test:4566"},
        {"Host": "localhost.evil.test"},
        {"Host": "127.0.0.1.evil.test"},
    ],
)
def test_a_web_page_is_refused(aws: LocalAws, headers: dict[str, str]) -> None:
    for target in (LIST, {"X-Amz-Target": "DynamoDB_20120810.ListTables"}, {}):
        for method in ("POST", "OPTIONS", "GET"):
            status, got, text = ask(aws, {**target, **headers}, method=method)
            assert (status, b"AccessDenied" in text) == (403, True)
            assert not any(name.lower().startswith("access-control-") for name in got)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:80", "bucket.s3.localhost", "b.s3.amazonaws.com"])
def test_a_program_of_this_machine_is_answered(aws: LocalAws, host: str) -> None:
    assert ask(aws, {**LIST, "Host": host})[0] == 200
    scope = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"
    headers = {"X-Amz-Target": "DynamoDB_20120810.ListTables", "Host": "localhost", "Authorization": scope}
    status, got, _ = ask(aws, headers)
    assert status == 200
    assert not any(name.lower().startswith("access-control-") for name in got)


@pytest.mark.parametrize("path", ["/moto-api/reset", "/moto-api/", "/%6doto-api/reset", "/moto-api/data.json"])
def test_moto_s_own_routes_are_closed(aws: LocalAws, path: str) -> None:
    aws.client("ssm").put_parameter(Name="kept", Value="x", Type="String", Overwrite=True)
    assert ask(aws, {}, path=path)[0] == 403
    assert aws.client("ssm").get_parameter(Name="kept")["Parameter"]["Value"] == "x"


def test_server_for_other_hosts_answers_them() -> None:
    with LocalAws(host="0.0.0.0") as aws:
        assert ask(aws, {**LIST, "Host": "kinesis"})[0] == 200
        assert ask(aws, {**LIST, "Host": "kinesis", "Origin": "https://evil.test"})[0] == 403
