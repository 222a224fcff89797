"""Manifests: loaded from three kinds of places, and everything that can be wrong with them."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.errors import ManifestError
from kinesis_efo.manifest import load_manifest, parse_manifest, resolve_manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.options.source import BATCH

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"
CONSUMER = STREAM + "/consumer/lake:1700000000"


def document(**changes: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 1, "application": "lake", "environment": "dev", "region": "eu-west-1",
        "leaseTable": {"name": "kinesis-efo-dev-lake", "arn": "arn:aws:dynamodb:eu-west-1:123456789012:table/x"},
        "streams": {"orders": {"streamName": "dev-orders", "streamArn": STREAM, "consumerArn": CONSUMER}},
        **changes,
    }  # fmt: skip


def stream(**changes: Any) -> dict[str, Any]:
    return document(streams={"orders": {**document()["streams"]["orders"], **changes}})


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


@pytest.mark.parametrize("cut", range(0, 400, 37))
def test_a_truncated_manifest(cut: int) -> None:
    message = refused(json.dumps(document())[:cut])
    assert message.startswith("manifest m.json is not valid JSON (truncated?)")


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


def test_a_manifest_that_is_not_text() -> None:
    assert "is not valid JSON" in refused(b"\xff\xfe\x00")
    assert "must be a JSON object; got list" in refused([])


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5, True])
def test_a_wrong_version(version: Any) -> None:
    message = refused(document(schemaVersion=version))
    assert (
        f"has schemaVersion {'a text' if version == '1' else version}; this version of kinesis-efo reads 1. Deploy the infrastructure"
        in message
    )


def test_a_missing_version() -> None:
    assert "has schemaVersion None" in refused({})


@pytest.mark.parametrize("key", ["application", "environment", "region", "leaseTable", "streams"])
def test_a_missing_key(key: str) -> None:
    data = document()
    del data[key]
    assert refused(data) == f"manifest m.json: key '{key}' is missing"


@pytest.mark.parametrize("key", ["streamName", "streamArn"])
def test_a_missing_key_of_a_stream(key: str) -> None:
    data = document()
    del data["streams"]["orders"][key]
    assert refused(data) == f"manifest m.json: key 'streams.orders.{key}' is missing"


def test_a_lease_table_without_a_name() -> None:
    assert refused(document(leaseTable={})) == "manifest m.json: key 'leaseTable.name' is missing"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (document(region=3), "'region' must be a text that is not empty; got 3"),
        (document(application=""), "'application' must be a text that is not empty; got ''"),
        (document(leaseTable=3), "'leaseTable' must be an object; got 3"),
        (document(leaseTable=""), "'leaseTable' must be a text that is not empty; got ''"),
        (document(streams=[]), "'streams' must be an object; got []"),
        (document(streams={}), "'streams' is empty: the application consumes nothing"),
        (document(streams={"orders": STREAM}), "'streams.orders' must be an object; got a text"),
    ],
)
def test_keys_of_the_wrong_kind(data: Any, fault: str) -> None:
    assert fault in refused(data)


def test_the_lease_tables_name_alone_will_do() -> None:
    assert parse_manifest(json.dumps(document(leaseTable="t")), "m.json").lease_table == "t"


def test_a_manifest_is_read_again_from_its_document() -> None:
    manifest = parse_manifest(json.dumps(document()), "m.json")
    for lease_table in (manifest.lease_table, {"name": manifest.lease_table}):
        assert parse_manifest(json.dumps(manifest.document(lease_table)), "m.json") == manifest


def test_all_faults_are_in_one_message() -> None:
    data = document(application="")
    del data["leaseTable"], data["streams"]["orders"]["streamName"]
    assert refused(data) == (
        "manifest m.json: key 'streams.orders.streamName' is missing; 'application' must be a text that is not empty; got ''; "
        "key 'leaseTable' is missing"
    )


def test_a_stream_in_another_region() -> None:
    arn = STREAM.replace("eu-west-1", "us-east-1")
    message = refused(stream(streamArn=arn, consumerArn=arn + "/consumer/lake:1"))
    assert f"streamArn {arn!r} is in region 'us-east-1', but the manifest's region is 'eu-west-1'" in message


def test_a_stream_of_another_name() -> None:
    assert f"streamArn {STREAM!r} does not belong to streamName 'prod-orders'" in refused(
        stream(streamName="prod-orders")
    )


@pytest.mark.parametrize(
    "change", [("123456789012", "210987654321"), ("dev-orders", "dev-clicks"), ("eu-west-1", "eu-west-2")]
)
def test_a_consumer_of_another_account_stream_or_region(change: tuple[str, str]) -> None:
    other = CONSUMER.replace(*change)
    assert refused(stream(consumerArn=other)) == (
        f"manifest m.json: 'streams.orders': consumerArn {other!r} is not a consumer of streamArn {STREAM!r}, but of "
        f"{STREAM.replace(*change)!r}. Give a consumerArn that begins with this streamArn, or this consumer's stream as streamArn"
    )


@pytest.mark.parametrize(
    "arn", ["orders", STREAM + "/x", STREAM.replace("kinesis", "sqs"), STREAM.replace("123456789012", "1")]
)
def test_a_text_that_is_not_a_streams_arn(arn: str) -> None:
    # The consumer's ARN is not compared with it: a remedy for the consumer would be wrong.
    fault = f"streamArn {arn!r} is not the ARN of a Kinesis stream"
    assert refused(stream(streamArn=arn)) == f"manifest m.json: 'streams.orders': {fault}"


def test_a_text_that_is_not_a_consumers_arn() -> None:
    message = refused(stream(consumerArn=STREAM))
    assert (
        f"consumerArn {STREAM!r} is not the ARN of a stream consumer (.../consumer/<name>:<creation time>)" in message
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_document_is_loaded_or_refused(data: Any) -> None:
    for candidate in (
        data,
        {"schemaVersion": 1, "streams": data},
        document(streams={"orders": data}),
    ):
        with pytest.raises(ManifestError):
            parse_manifest(json.dumps(candidate), "m.json")
    with suppress(ManifestError):
        parse_manifest(json.dumps(document(leaseTable=data)), "m.json")


# -- where it comes from


class Session:
    """Clients that answer with what they were given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def client(self, service_name: str, /) -> Any:
        session = self

        class Client:
            def __getattr__(self, operation: str) -> Any:
                def call(**arguments: Any) -> Any:
                    session.calls.append((f"{service_name}.{operation}", arguments))
                    if isinstance(session.answer, Exception):
                        raise session.answer
                    return session.answer

                return call

        return Client()


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(document()))
    assert load_manifest(str(path), Session(None)).source == str(path)


def test_from_a_parameter() -> None:
    session = Session({"Parameter": {"Value": json.dumps(document())}})
    assert load_manifest("ssm:///kinesis-efo/dev/lake", session).application == "lake"
    assert session.calls == [("ssm.get_parameter", {"Name": "/kinesis-efo/dev/lake", "WithDecryption": True})]


def test_from_a_bucket() -> None:
    session = Session({"Body": io.BytesIO(json.dumps(document()).encode())})
    assert load_manifest("s3://bucket/some/key.json", session).application == "lake"
    assert session.calls == [("s3.get_object", {"Bucket": "bucket", "Key": "some/key.json"})]


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/no/such/file.json", r"there is no such file \(/no/such/file.json\)"),
        (".", "cannot be read: .*directory"),
        ("gs://bucket/key", "scheme 'gs' is not known; give a path, ssm:///name or s3://bucket/key"),
        ("s3://bucket", "must be s3://bucket/key"),
        ("s3:///key", "must be s3://bucket/key"),
    ],
)
def test_locations_without_a_manifest(location: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        load_manifest(location, Session(None))


def error(code: str, operation: str = "GetParameter") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, operation)


@pytest.mark.parametrize(
    ("location", "cause", "message"),
    [
        ("ssm:///x", error("ParameterNotFound"), r"ParameterNotFound. Was the environment deployed \(`cdktf deploy`\)"),
        ("s3://b/k", error("NoSuchKey"), r"NoSuchKey. Was the environment deployed"),
        ("ssm:///x", error("AccessDeniedException"), "The job's role needs ssm:GetParameter on it"),
        ("s3://b/k", error("AccessDenied", "GetObject"), "The job's role needs s3:GetObject on it"),
        ("s3://b/k", NoCredentialsError(), "NoCredentialsError: Unable to locate credentials"),
    ],
)
def test_errors_of_aws_are_explained(location: str, cause: Exception, message: str) -> None:
    with pytest.raises(ManifestError, match=message) as caught:
        load_manifest(location, Session(cause))
    assert location in str(caught.value)


def test_selected_streams(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(document()))
    options = SourceOptions.parse({"manifest": str(path), "streams": "orders"})
    assert list(resolve_manifest(options, Session(None)).streams) == ["orders"]
    options = SourceOptions.parse({"manifest": str(path), "streams": "order,clicks"})
    with pytest.raises(ManifestError) as caught:
        resolve_manifest(options, Session(None))
    assert str(caught.value) == (
        f"kinesis-efo option 'streams' names 'order', 'clicks', but the manifest {path} has 'orders'"
    )


def test_arns_instead_of_a_manifest() -> None:
    options = SourceOptions.parse({"streamArn": STREAM, "consumerArn": CONSUMER, "leaseTable": "t"})
    manifest = resolve_manifest(options, Session(None))
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
def test_the_source_names_the_options_that_were_given(given: dict[str, str], source: str) -> None:
    batch = {} if given else {BATCH: "true"}
    options = SourceOptions.parse({"streamArn": STREAM, "readMode": "polling", **given, **batch})
    assert resolve_manifest(options, Session(None)).source == source


def test_polling_needs_no_consumer(tmp_path: Path) -> None:
    options = SourceOptions.parse({"streamArn": STREAM, "leaseTable": "t", "readMode": "polling"})
    manifest = resolve_manifest(options, Session(None))
    ref = manifest.streams["dev-orders"]
    assert (manifest.application, ref.polled, ref.reader) == ("t", True, f"stream {STREAM}")
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(document()))
    options = SourceOptions.parse({"manifest": str(path), "readMode": "polling"})
    assert resolve_manifest(options, Session(None)).streams["orders"].polled
    options = SourceOptions.parse({"manifest": str(path)})
    assert resolve_manifest(options, Session(None)).streams["orders"].reader == f"consumer {CONSUMER}"


def polled() -> dict[str, Any]:
    """A manifest with a stream that has a consumer, and with one that has none."""
    streams = document()["streams"]
    clicks = {"streamName": "clicks", "streamArn": STREAM.replace("dev-orders", "clicks")}
    return document(streams={**streams, "clicks": clicks})


def test_a_stream_without_a_consumer_is_read_and_written_again() -> None:
    manifest = parse_manifest(json.dumps(polled()), "m.json")
    assert (manifest.streams["clicks"].polled, manifest.streams["orders"].polled) == (True, False)
    written = manifest.document(document()["leaseTable"])
    assert written == polled()
    assert parse_manifest(json.dumps(written), "m.json") == manifest


@pytest.mark.parametrize("value", [None, "", 3])
def test_a_consumer_that_is_named_must_be_one(value: Any) -> None:
    fault = f"'streams.orders.consumerArn' must be a text that is not empty; got {value!r}"
    assert refused(stream(consumerArn=value)) == f"manifest m.json: {fault}"


def test_a_stream_without_a_consumer_can_only_be_polled(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(polled()))

    def resolved(**options: str) -> Any:
        return resolve_manifest(SourceOptions.parse({"manifest": str(path), **options}), Session(None))

    with pytest.raises(ManifestError) as caught:
        resolved()
    assert str(caught.value) == (
        f"the manifest {path} names no consumer (consumerArn) for 'clicks', so that only GetRecords can read it: say "
        "readMode=polling. For readMode=efo, declare a consumer (the application's `polling: true` in place of "
        "`polling: only`), and deploy"
    )
    assert resolved(streams="orders").streams["orders"].consumer_arn == CONSUMER, "what is not read does not matter"
    assert all(ref.polled for ref in resolved(readMode="polling").streams.values())


def test_region_option_must_not_contradict_manifest(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(document()))
    same = SourceOptions.parse({"manifest": str(path), "region": "eu-west-1"})
    assert resolve_manifest(same, Session(None)).region == "eu-west-1"
    other = SourceOptions.parse({"manifest": str(path), "region": "us-gov-west-1"})
    direct = SourceOptions.parse(
        {"streamArn": STREAM, "consumerArn": CONSUMER, "leaseTable": "t", "region": "us-gov-west-1"}
    )
    with pytest.raises(
        ManifestError, match=r"the resources of the options streamArn, .* are in 'eu-west-1'; omit the option$"
    ):
        resolve_manifest(direct, Session(None))
    with pytest.raises(
        ManifestError, match=r"'region' .* is 'us-gov-west-1', but .*json are in 'eu-west-1'; omit the option"
    ):
        resolve_manifest(other, Session(None))
