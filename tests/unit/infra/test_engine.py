"""The module that chooses the engine says what is missing, and spares Node what is not used."""

import os
from types import SimpleNamespace

import pytest

from kinesis_efo_infra import engine
from kinesis_efo_infra.errors import MissingError


def test_engine_of_earlier_imports_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(engine, "sys", SimpleNamespace(modules=["cdktn"]))
    assert engine.find_engine() == "cdktn"
    monkeypatch.setattr(engine, "sys", SimpleNamespace(modules=["cdktf"]))
    assert engine.find_engine() == "cdktf"
    monkeypatch.setenv("KINESIS_EFO_CDK", "cdktn")
    with pytest.raises(MissingError, match="but cdktf was imported: import kinesis_efo_infra before it"):
        engine.find_engine()


def test_missing_engine_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("KINESIS_EFO_CDK", "cdktf")
    asked = (
        r"cdktf is not installed for .*/python.*: pip install 'kinesis-efo-infra\[cdktf\]', or unset KINESIS_EFO_CDK"
    )
    with pytest.raises(MissingError, match=asked):
        engine.find_engine()


def test_missing_provider_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingError, match=r"not its AWS provider: pip install 'kinesis-efo-infra\[cdktf\]'"):
        engine.lazy_provider()


def test_provider_has_only_its_modules_as_attributes() -> None:
    provider = engine.lazy_provider()
    assert provider.kms_key.KmsKey.__name__ == "KmsKey"
    with pytest.raises(AttributeError, match="has no attribute 'kms_kay'"):
        _ = provider.kms_kay


def test_missing_node_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSII_NODE", "/nowhere/node")
    with pytest.raises(MissingError, match="CDKTF needs Node 20 or newer"):
        engine.find_node()


def test_earlier_node_options_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_OPTIONS", "--max-old-space-size=900")
    engine.load_resources_when_used()
    once = os.environ["NODE_OPTIONS"]
    engine.load_resources_when_used()
    assert os.environ["NODE_OPTIONS"] == once
    assert once.startswith("--max-old-space-size=900 --require ")
