"""Manifests: loaded from three kinds of places, and everything that can be wrong with them."""

import io
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.errors import ManifestError, OptionsError
from kinesis_efo.manifest import Manifest, load_manifest, parse_manifest, resolve_manifest
from kinesis_efo.options import BatchOptions, SourceOptions
from kinesis_efo_tools.operate import manifest_search
from tests.support.messages import raises

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
CONSUMER = STREAM + "/consumer/lake:1700000000"
OTHER = STREAM.replace("dev-orders", "clicks")


def document(**changes: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 1, "application": "lake", "environment": "dev", "region": "eu-west-1",
        "leaseTable": {"name": "kinesis-efo-dev-lake", "arn": "arn:aws:dynamodb:eu-west-1:123456789012:table/x"},
        "streams": {"orders": {"streamName": "dev-orders", "streamArn": STREAM, "consumerArn": CONSUMER}},
        **changes,
    }  # fmt: skip


def stream(**changes: Any) -> dict[str, Any]:
    return document(streams={"orders": {**document()["streams"]["orders"], **changes}})


def polled() -> dict[str, Any]:
    """A manifest with a stream that has a consumer, and with one that has none."""
    streams = document()["streams"]
    clicks = {"streamName": "clicks", "streamArn": STREAM.replace("dev-orders", "clicks")}
    return document(streams={**streams, "clicks": clicks})


def refused(text: Any, source: str = "m.json") -> str:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text if isinstance(text, str | bytes) else json.dumps(text), source)
    message = str(caught.value)
    assert message.startswith(f"manifest {source}"), "it says where it came from"
    return message


def test_a_manifest_is_read() -> None:
    manifest = parse_manifest(json.dumps(document(extra={"ignored": True})), "m.json")
    assert (manifest.application, manifest.environment, manifest.region) == ("lake", "dev", "eu-west-1")
    assert manifest.lease_table == "kinesis-efo-dev-lake"
    assert manifest.streams["orders"].consumer_arn == CONSUMER
    assert manifest.stream_names == {"orders": "dev-orders"}


def without(place: str) -> dict[str, Any]:
    """A manifest in which one key is missing."""
    data = document()
    *path, key = place.split(".")
    at = data
    for step in path:
        at = at[step]
    del at[key]
    return data


ABROAD = STREAM.replace("eu-west-1", "us-east-1")
TEXT = "must be a text that is not empty; got"


# Shows 80, 84, 86.
@pytest.mark.parametrize(
    ("data", "fault"),
    [
        *((json.dumps(document())[:cut], " is not valid JSON (truncated?)") for cut in range(0, 400, 37)),
        (b"\xff\xfe\x00", "is not valid JSON"),
        *((document(schemaVersion=version), f"has schemaVersion {version}; this version of kinesis-efo reads 1. Deploy the infrastructure")
          for version in (0, 2, None, 1.5, True)),
        (document(schemaVersion="1"), "has schemaVersion a text; this version of kinesis-efo reads 1."),
        ({}, "has schemaVersion None"),
        *((without(key), f": key '{key}' is missing")
          for key in ("application", "environment", "region", "leaseTable", "streams", "streams.orders.streamName", "streams.orders.streamArn")),
        (document(leaseTable={}), ": key 'leaseTable.name' is missing"),
        (document(region=3), f"'region' {TEXT} 3"),
        (document(application=""), f"'application' {TEXT} ''"),
        (document(leaseTable=3), "'leaseTable' must be an object; got 3"),
        (document(leaseTable=""), f"'leaseTable' {TEXT} ''"),
        (document(streams=[]), "'streams' must be an object; got []"),
        (document(streams={}), "'streams' is empty: the application consumes nothing"),
        (document(streams={"orders": STREAM}), "'streams.orders' must be an object; got a text"),
        *((stream(consumerArn=value), f": 'streams.orders.consumerArn' {TEXT} {value!r}") for value in (None, "", 3)),
        (
            document(application="", streams=without("streams.orders.streamName")["streams"]) | {"leaseTable": {}},
            ": key 'streams.orders.streamName' is missing; 'application' must be a text that is not empty; got ''; key 'leaseTable.name' is missing",
        ),
        (stream(streamArn=ABROAD, consumerArn=ABROAD + "/consumer/lake:1"), f"streamArn {ABROAD!r} is in region 'us-east-1', but the manifest's region is 'eu-west-1'"),
        (stream(streamName="prod-orders"), f"streamArn {STREAM!r} does not belong to streamName 'prod-orders'"),
        # The consumer's ARN is not compared with it: a remedy for the consumer would be wrong.
        *((stream(streamArn=arn), f": 'streams.orders': streamArn {arn!r} is not the ARN of a Kinesis stream")
          for arn in ("orders", STREAM + "/x", STREAM.replace("kinesis", "sqs"), STREAM.replace("123456789012", "1"))),
        (stream(consumerArn=STREAM), f"consumerArn {STREAM!r} is not the ARN of a stream consumer (.../consumer/<name>:<creation time>)"),
        *((
            stream(consumerArn=CONSUMER.replace(*change)),
            (f"consumerArn {CONSUMER.replace(*change)!r} is not a consumer of streamArn {STREAM!r}, but of {STREAM.replace(*change)!r}. "
            "Give a consumerArn that begins with this streamArn, or this consumer's stream as streamArn"),
        ) for change in (("123456789012", "210987654321"), ("dev-orders", "dev-clicks"), ("eu-west-1", "eu-west-2"))),
    ],
)  # fmt: skip
def test_a_wrong_manifest_is_refused_with_the_place(data: Any, fault: str) -> None:
    message = refused(data)
    assert fault in message
    # One fault, one sentence.
    assert not fault.startswith(": ") or message == f"manifest m.json{fault}" or fault.endswith("a Kinesis stream")


@pytest.mark.parametrize(
    "text",
    [
        "hunter2-hunter2-hunter2",
        '{"password": "hunter2"}',
        '["hunter2"]',
        '"hunter2"',
        json.dumps(document(schemaVersion="hunter2")),
        json.dumps(document(region={"password": "hunter2"})),
        json.dumps(document(leaseTable=["hunter2"])),
        json.dumps(document(streams={"orders": "hunter2"})),
    ],
)
def test_a_secret_named_as_manifest_is_not_quoted(text: str) -> None:
    assert "hunter2" not in refused(text)


@pytest.mark.parametrize("table", [document()["leaseTable"], "kinesis-efo-dev-lake"])
def test_a_manifest_survives_writing_and_reading(table: Any) -> None:
    manifest = parse_manifest(json.dumps(polled() | {"leaseTable": table}), "m.json")
    assert (manifest.lease_table, manifest.streams["clicks"].polled) == ("kinesis-efo-dev-lake", True)
    assert manifest_search.document(manifest, table) == polled() | {"leaseTable": table}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "manifest m.json must be a JSON object; got list"),
        ("{", "manifest m.json is not valid JSON (truncated?): Input data was truncated"),
        (json.dumps(without("leaseTable")), "manifest m.json: key 'leaseTable' is missing"),
    ],
)
def test_refused_manifest_names_its_place(text: str, message: str) -> None:
    with raises(ManifestError, message):
        parse_manifest(text, "m.json")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_document_is_loaded_or_refused(data: Any) -> None:
    for candidate in (data, {"schemaVersion": 1, "streams": data}, document(streams={"orders": data})):
        with pytest.raises(ManifestError):
            parse_manifest(json.dumps(candidate), "m.json")
    with suppress(ManifestError):
        parse_manifest(json.dumps(document(leaseTable=data)), "m.json")


class Session:
    """Clients that answer with what they were given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def client(self, service_name: str, /) -> Any:
        def call(operation: str, **arguments: Any) -> Any:
            self.calls.append((f"{service_name}.{operation}", arguments))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return SimpleNamespace(**{name: partial(call, name) for name in ("get_parameter", "get_object")})


def test_a_manifest_comes_from_three_places(tmp_path: Path) -> None:
    path, text = tmp_path / "m.json", json.dumps(document())
    path.write_text(text)
    assert load_manifest(str(path), Session(None).client).source == str(path)
    ssm, s3 = Session({"Parameter": {"Value": text}}), Session({"Body": io.BytesIO(text.encode())})
    assert load_manifest("ssm:///kinesis-efo/dev/lake", ssm.client).application == "lake"
    assert ssm.calls == [("ssm.get_parameter", {"Name": "/kinesis-efo/dev/lake", "WithDecryption": True})]
    assert load_manifest("s3://bucket/some/key.json", s3.client).application == "lake"
    assert s3.calls == [("s3.get_object", {"Bucket": "bucket", "Key": "some/key.json"})]


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/no/such/file.json", "manifest /no/such/file.json: there is no such file (/no/such/file.json)"),
        (".", "manifest . cannot be read: [Errno 21] Is a directory: ..."),
        (
            "gs://bucket/key",
            "manifest gs://bucket/key: unknown scheme 'gs'; give a path, ssm:///name or s3://bucket/key",
        ),
        ("s3://bucket", "manifest s3://bucket must be s3://bucket/key"),
        ("s3:///key", "manifest s3:///key must be s3://bucket/key"),
    ],
)
def test_wrong_locations_are_refused(location: str, message: str) -> None:
    with raises(ManifestError, message):
        load_manifest(location, Session(None).client)


def error(code: str, operation: str = "GetParameter") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, operation)


GONE = "Was the environment deployed (`cdktf deploy`), and to this account and region?"
REFUSED = "An error occurred ({0}) when calling the {1} operation: no. The job's role needs {2}:{1} on it"


@pytest.mark.parametrize(
    ("location", "cause", "message"),
    [
        ("ssm:///x", error("ParameterNotFound"), f"ParameterNotFound. {GONE}"),
        ("s3://b/k", error("NoSuchKey"), f"NoSuchKey. {GONE}"),
        ("ssm:///x", error("AccessDeniedException"), REFUSED.format("AccessDeniedException", "GetParameter", "ssm")),
        ("s3://b/k", error("AccessDenied", "GetObject"), REFUSED.format("AccessDenied", "GetObject", "s3")),
        ("s3://b/k", NoCredentialsError(), "NoCredentialsError: Unable to locate credentials"),
    ],
)
def test_errors_of_aws_are_explained(location: str, cause: Exception, message: str) -> None:
    with raises(ManifestError, f"manifest {location} cannot be loaded: {message}"):
        load_manifest(location, Session(cause).client)


@pytest.fixture
def resolved(tmp_path: Path) -> Callable[..., Manifest]:
    """Resolves a manifest's file with some options."""

    def resolve(data: dict[str, Any], **options: str) -> Manifest:
        (tmp_path / "m.json").write_text(json.dumps(data))
        return resolve_manifest(
            SourceOptions.parse({"manifest": str(tmp_path / "m.json"), **options}), Session(None).client
        )

    return resolve


def direct(**options: str) -> Manifest:
    """What options say in place of a manifest."""
    return resolve_manifest(SourceOptions.parse(options), Session(None).client)


def test_selected_streams(resolved: Callable[..., Manifest]) -> None:
    assert list(resolved(polled(), streams="orders").streams) == ["orders"]
    with raises(
        ManifestError, "kinesis-efo option 'streams' names 'order', 'clicks', but the manifest ... has 'orders'"
    ):
        resolved(document(), streams="order,clicks")


# Shows 80.
def test_arns_instead_of_a_manifest() -> None:
    manifest = direct(streamArn=STREAM, consumerArn=CONSUMER, leaseTable="t")
    assert (manifest.application, manifest.region, manifest.lease_table) == ("lake", "eu-west-1", "t")
    assert manifest.streams["dev-orders"].consumer_arn == CONSUMER
    assert (
        manifest.declared_by == "the deployment of the resources in the options streamArn, consumerArn and leaseTable"
    )


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({"leaseTable": "t", "consumerArn": CONSUMER}, "the options streamArn, consumerArn and leaseTable"),
        ({"leaseTable": "t"}, "the options streamArn and leaseTable"),
        ({}, "the option streamArn"),
    ],
)
def test_the_source_names_the_given_options(given: dict[str, str], source: str) -> None:
    assert direct(streamArn=STREAM, readMode="polling", **given).source == source


# Shows 80.
@pytest.mark.parametrize("parse", [SourceOptions.parse, lambda given: BatchOptions.parse(given).source])
def test_streams_alone_are_enough_to_poll(parse: Callable[[dict[str, str]], SourceOptions]) -> None:
    reads = {} if parse != SourceOptions.parse else {"readMode": "polling"}
    manifest = resolve_manifest(parse({"streamArn": f"{STREAM}, {OTHER}", **reads}), Session(None).client)
    assert (manifest.lease_table, [ref.stream_arn for ref in manifest.streams.values()]) == ("", [STREAM, OTHER])
    assert manifest.application == ("dev-orders" if reads else "")
    manifest.check_choice()


def test_consumers_are_matched_to_streams_in_any_order() -> None:
    manifest = direct(streamArn=f"{STREAM},{OTHER}", consumerArn=f"{OTHER}/consumer/copy:1, {CONSUMER}")
    assert {name: ref.consumer_arn for name, ref in manifest.streams.items()} == {
        "dev-orders": CONSUMER,
        "clicks": f"{OTHER}/consumer/copy:1",
    }
    assert (manifest.application, manifest.region) == ("copy", "eu-west-1")


SEVERAL = (
    "kinesis-efo needs option 'streams': the manifest {} has 'clicks', 'orders'; name those to read, or give * for all"
)


def test_batch_read_names_one_of_several_streams(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(polled()))

    def read(**options: str) -> list[str]:
        return list(
            resolve_manifest(
                BatchOptions.parse({"manifest": str(path), **options}).source, Session(None).client
            ).streams
        )

    assert (read(streams="*"), read(streams="clicks")) == (["clicks", "orders"], ["clicks"])
    with raises(OptionsError, SEVERAL.format(path)):
        read()


def test_polling_needs_no_consumer(resolved: Callable[..., Manifest]) -> None:
    manifest = direct(streamArn=STREAM, leaseTable="t", readMode="polling")
    ref = manifest.streams["dev-orders"]
    assert (manifest.application, ref.polled, ref.reader) == ("t", True, f"stream {STREAM}")
    assert all(ref.polled for ref in resolved(polled(), readMode="polling").streams.values())
    assert resolved(document()).streams["orders"].reader == f"consumer {CONSUMER}"
    assert not resolved(polled(), streams="orders").streams["orders"].polled, "what is not read does not matter"
    with raises(
        ManifestError,
        "the manifest ... names no consumer (consumerArn) for 'clicks', so that only GetRecords can read it: set "
        "readMode=polling. For readMode=efo, declare a consumer (the application's `polling: true` in place of `polling: "
        "only`), and deploy",
    ):
        resolved(polled())


def test_the_region_option_must_fit_the_manifest(resolved: Callable[..., Manifest]) -> None:
    assert resolved(document(), region="eu-west-1").region == "eu-west-1"
    with pytest.raises(
        ManifestError, match=r"'region' .* is 'us-gov-west-1', but .*json are in 'eu-west-1'; omit the option"
    ):
        resolved(document(), region="us-gov-west-1")
    with raises(
        ManifestError,
        "kinesis-efo option 'region' (on the command line, --region) is 'us-gov-west-1', but the resources of the options "
        "streamArn, consumerArn and leaseTable are in 'eu-west-1'; omit the option",
    ):
        direct(streamArn=STREAM, consumerArn=CONSUMER, leaseTable="t", region="us-gov-west-1")
