"""The module that imports CDKTF says what is missing."""

from __future__ import annotations

import pytest

from infra import cdk


def test_an_unknown_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINESIS_EFO_CDK", "pulumi")
    with pytest.raises(ImportError, match="KINESIS_EFO_CDK must be cdktf or cdktn; got 'pulumi'"):
        cdk._engine()


def test_a_missing_engine_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdk.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("KINESIS_EFO_CDK", "cdktf")
    with pytest.raises(ImportError, match=r"cdktf is not installed: pip install 'kinesis-efo\[infra\]'"):
        cdk._engine()


def test_a_missing_node_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSII_NODE", "/nowhere/node")
    with pytest.raises(ImportError, match="CDKTF needs Node 20 or newer"):
        cdk._find_node()
