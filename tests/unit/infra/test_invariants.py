"""Properties of every environment file."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.errors import Fault, SettingsError
from infra.settings.load import load_environment
from infra.settings.model import AdoptedStream, Application, Environment, OwnStream
from tests.unit.infra.conftest import HEAD

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-10, 20_000), st.floats(allow_nan=False), st.dates(), st.text(max_size=5)),
    st.sampled_from(
        ["", "own", "orders", "lake", "provisioned", "eu-west-1", "arn:aws:kms:eu-west-1:111122223333:key/1"]
    ),
)
FIELDS = [name for model in (Environment, OwnStream, AdoptedStream, Application) for name in model.model_fields]
SETTINGS = st.sampled_from([*HEAD, "orders", "lake", "kind", *FIELDS])
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
