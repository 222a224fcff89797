"""How payloads are cut into batches to send."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.fetcher.messages import (
    PAYLOAD_SCHEMA,
    TOGETHER_BYTES,
    UNCOPIED_BYTES,
    hash_range_of,
    payload_batches,
    payload_schema,
)


@given(
    st.lists(
        st.sampled_from([0, 1, 700, UNCOPIED_BYTES - 1, UNCOPIED_BYTES, UNCOPIED_BYTES + 1, TOGETHER_BYTES]).map(
            lambda size: bytes([size % 251]) * size
        ),
        max_size=40,
    )
)
def test_batches_hold_all_payloads_in_order(payloads: list[bytes]) -> None:
    batches = list(payload_batches(payloads, PAYLOAD_SCHEMA))
    assert [payload for batch in batches for payload in batch.column(0).to_pylist()] == payloads
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows == 1 or batch.nbytes < TOGETHER_BYTES + UNCOPIED_BYTES + 8 * len(payloads)


def test_small_payloads_go_together() -> None:
    (batch,) = payload_batches([b"{}"] * 1000, PAYLOAD_SCHEMA)
    assert batch.num_rows == 1000


def test_a_large_payload_is_not_copied() -> None:
    payload = bytes(UNCOPIED_BYTES)
    (batch,) = payload_batches([payload], PAYLOAD_SCHEMA)
    assert batch.column(0).buffers()[2].address == pa.py_buffer(payload).address


def test_the_schema_carries_the_hash_range() -> None:
    schema = payload_schema((5, 2**128 - 1))
    (batch,) = payload_batches([b"{}"], schema)
    assert hash_range_of(batch.schema) == (5, 2**128 - 1)
