"""Every command where something else than AWS answers: a captive portal, or a proxy with an error of its own."""

import http.client
from collections.abc import Callable, Iterator

import pytest

from tests.integration.cli.conftest import Cli, Here
from tests.support.http_server import Handler, served

PAGE = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body>Please sign in.</body></html>"


class _Portal(Handler):
    """Answers every request with one page."""

    status = 200

    def do_POST(self) -> None:
        self.body()
        self.answer(self.status, PAGE, content_type="text/html; charset=utf-8")

    do_GET = do_PUT = do_POST


@pytest.fixture(params=[200, 503])
def portal(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server that answers HTML with an HTTP status."""
    with served(_Portal, status=request.param) as url:
        yield url


def test_doctor_names_the_proxy_first(cli: Cli, here: Here, portal: str) -> None:
    found = here.run("doctor", "--endpoint-url", portal, "--json")
    first = found.data["findings"][0]
    assert (found.code, first["subject"], first["status"]) == (1, "HTTP path", "failed")
    assert "proxy" in first["detail"] + first["fix"]
    assert "<" not in first["detail"]
    checked = here.run("manifest check", "--endpoint-url", portal, "--json")
    assert checked.data["passed"] == 0
    assert all("proxy" in each["detail"] + each["fix"] and each["fix"] for each in checked.data["findings"])
    cli.run("manifest", "show", "--manifest", "ssm:///kinesis-efo/test/lake", "--endpoint-url", portal).ends(
        1, "manifest ssm:///kinesis-efo/test/lake cannot be loaded", "proxy"
    )


@pytest.mark.parametrize(
    "command",
    [
        "lag",
        "leases list",
        "shards",
        "tail --stream orders --from TRIM_HORIZON",
        "tail --stream another",
        "put --stream another",
        "put --stream orders",
    ],
)
def test_error_names_the_proxy(cli: Cli, portal: str, command: str) -> None:
    words = [*command.split(), "--manifest", cli.world().manifest, "--endpoint-url", portal]
    found = cli.run(*words, stdin="one\n")
    assert (found.code, found.out) == (1, "")
    assert "proxy" in found.err
    assert "<" not in found.err


class _KinesisAlone(_Portal):
    """Passes calls of Kinesis on, and answers those of other services as Kinesis does."""

    endpoint = ""

    def do_POST(self) -> None:
        body = self.body()
        if self.headers.get("x-amz-target", "").startswith("Kinesis_"):
            there = http.client.HTTPConnection(self.endpoint)
            there.request("POST", "/", body, {name: value for name, value in self.headers.items() if name != "Host"})
            answer = there.getresponse()
            status, kind, text = answer.status, answer.headers["content-type"], answer.read()
            there.close()
        elif "x-amz-target" in self.headers:
            status, kind, text = 400, "application/x-amz-json-1.1", b'{"__type":"UnknownOperationException"}'
        else:
            status, kind, text = 404, "application/xml", b"<UnknownOperationException/>"
        self.answer(status, text, content_type=kind)


@pytest.fixture
def alone(world: Callable[..., Here]) -> Iterator[tuple[Here, str]]:
    """A world, and an endpoint that serves only its Kinesis."""
    here = world()
    with served(_KinesisAlone, endpoint=here.aws.endpoint_url.removeprefix("http://")) as url:
        yield here, url


def test_endpoint_of_kinesis_alone_is_named(cli: Cli, alone: tuple[Here, str]) -> None:
    here, url = alone
    found = here.run("doctor", "--endpoint-url", url, "--json")
    lines = {each["subject"]: each for each in found.data["findings"]}
    assert lines["HTTP path"]["status"] == "passed"
    assert "the endpoint may belong to another service (AWS_ENDPOINT_URL_KINESIS" in lines["credentials"]["detail"]
    assert "set AWS_ENDPOINT_URL_KINESIS in its place" in lines["lease table"]["fix"]
    assert "correct the endpoint" in lines["lease writes"]["fix"]
    assert all(not each["detail"].endswith(":") for each in lines.values())


def test_role_at_endpoint_of_kinesis_fails(cli: Cli, alone: tuple[Here, str]) -> None:
    here, url = alone
    words = ["--manifest", here.manifest, "--endpoint-url", url, "--role-arn", "arn:aws:iam::123456789012:role/lake"]
    first = cli.run("doctor", *words, "--json").data["findings"][0]
    said = "AssumeRole returned HTTP status 404 without an AWS error code: "
    assert (first["subject"], first["status"], first["detail"].startswith(said)) == ("credentials", "failed", True)
    assert first["detail"] in cli.run("leases", "list", *words).err


def test_endpoint_with_a_name_of_kinesis_is_named(
    cli: Cli, alone: tuple[Here, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, url = alone
    monkeypatch.setenv("HTTP_PROXY", url)  # whoever resolves the name, the test's server answers
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    words = ["--manifest", here.manifest, "--endpoint-url", "http://kinesis.us-east-1.amazonaws.com", "--json"]
    for more in ([], ["--role-arn", "arn:aws:iam::123456789012:role/lake"]):
        lines = {each["subject"]: each for each in cli.run("doctor", *words, *more).data["findings"]}
        assert (
            "is an endpoint of Kinesis only, but was given for every service, including sts"
            in lines["credentials"]["detail"]
        )
        assert lines["credentials"]["fix"].startswith("set AWS_ENDPOINT_URL_KINESIS instead of")
        assert more or lines["lease table"]["fix"] == lines["credentials"]["fix"]


def test_manifest_on_s3_may_be_called_html(cli: Cli, here: Here) -> None:
    s3 = here.aws.client("s3")
    s3.create_bucket(Bucket="pages")
    s3.put_object(Bucket="pages", Key="lake", Body=here.manifest.read_bytes(), ContentType="text/html")
    assert cli.run("manifest", "show", "--manifest", "s3://pages/lake").code == 0
