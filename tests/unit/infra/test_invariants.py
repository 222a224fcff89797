"""Properties of every environment file."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.errors import Fault, SettingsError
from infra.settings import addresses, literals
from infra.settings.load import load_environment
from infra.settings.model import Application, Environment, OwnStream

HEAD = {"environment": "test", "region": "eu-west-1", "account_id": "111122223333", "state_bucket": "state"}
KEYS = st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=6).map("k".__add__)

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def environment(reads: dict[str, list[str]]) -> Environment:
    """An environment in which applications read streams."""
    streams = {stream: OwnStream() for streams in reads.values() for stream in streams}
    applications = {name: Application(streams=streams) for name, streams in reads.items()}
    return Environment.model_construct(**HEAD, streams=streams, applications=applications)


READS = st.dictionaries(KEYS, st.lists(KEYS, min_size=1, max_size=5, unique=True), min_size=1, max_size=6)


@given(READS)
def test_no_two_resources_have_one_address(reads: dict[str, list[str]]) -> None:
    found = [identity.address for identity in addresses.identities(environment(reads))]
    assert len(found) == len(set(found))


@given(READS, st.randoms(use_true_random=False))
def test_order_changes_nothing(reads: dict[str, list[str]], random: Any) -> None:
    items = list(reads.items())
    random.shuffle(items)
    shuffled = {name: random.sample(streams, len(streams)) for name, streams in items}
    assert set(addresses.identities(environment(reads))) == set(addresses.identities(environment(shuffled)))


@given(READS, KEYS, st.lists(KEYS, min_size=1, max_size=3, unique=True))
def test_adding_an_application_changes_no_other(reads: dict[str, list[str]], name: str, streams: list[str]) -> None:
    before = set(addresses.identities(environment(reads)))
    after = set(addresses.identities(environment({name: streams, **reads})))
    assert before <= after


@given(READS)
def test_manifest_and_policy_name_exactly_their_streams(reads: dict[str, list[str]]) -> None:
    declared = environment(reads)
    for name, streams in reads.items():
        policy = literals.literal_policy(declared, name)
        consumers = policy.statements["SubscribeToConsumers"].resources
        assert consumers == tuple(literals.literal_consumer_arn(declared, stream, name) for stream in streams)
        assert len(policy.statements["DecryptStreams"].resources) == len(streams)
        manifest = literals.literal_manifest(declared, name)
        assert all(consumer in manifest for consumer in consumers)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 20_000),
    st.floats(allow_nan=False),
    st.dates(),
    st.sampled_from(
        ["", "own", "orders", "lake", "provisioned", "eu-west-1", "arn:aws:kms:eu-west-1:111122223333:key/1"]
    ),
    st.text(max_size=5),
)
WORDS = (
    "streams",
    "applications",
    "alarms",
    "tags",
    "key",
    "orders",
    "lake",
    "existing_arn",
    "consumers",
    "access",
    "kind",
)
SETTINGS = st.sampled_from([*HEAD, *WORDS, *OwnStream.model_fields, *Application.model_fields])
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(SETTINGS | st.integers(0, 3) | st.none(), inner, max_size=5)
    ),
    max_leaves=20,
)


@quick
@given(st.dictionaries(SETTINGS, ANYTHING, max_size=6), st.booleans())
def test_any_document_is_loaded_or_has_faults(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], with_head: bool
) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "test.yaml"
    path.write_text(yaml.safe_dump({**document, **(HEAD if with_head else {})}), encoding="utf-8")
    found: tuple[Fault, ...] = ()
    try:
        load_environment(path)
    except SettingsError as error:
        found = error.faults
    else:
        return
    assert found
    assert all(fault.rule and str(fault).startswith(str(path)) for fault in found)
