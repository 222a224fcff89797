"""How payloads are cut into batches to send."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.fetcher.messages import (
    TOGETHER_BYTES,
    UNCOPIED_BYTES,
    GetTicket,
    RangeLabel,
    payload_batches,
)
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey, ShardRange


@given(
    st.lists(
        st.sampled_from([0, 1, 700, UNCOPIED_BYTES - 1, UNCOPIED_BYTES, UNCOPIED_BYTES + 1, TOGETHER_BYTES]).map(
            lambda size: bytes([size % 251]) * size
        ),
        max_size=40,
    )
)
def test_batches_hold_all_payloads_in_order(payloads: list[bytes]) -> None:
    batches = list(payload_batches(payloads))
    assert [payload for batch in batches for payload in batch.column(0).to_pylist()] == payloads
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows == 1 or batch.nbytes < TOGETHER_BYTES + UNCOPIED_BYTES + 8 * len(payloads)


def test_small_payloads_go_together() -> None:
    (batch,) = payload_batches([b"{}"] * 1000)
    assert batch.num_rows == 1000


def test_a_large_payload_is_not_copied() -> None:
    payload = bytes(UNCOPIED_BYTES)
    (batch,) = payload_batches([payload])
    assert batch.column(0).buffers()[2].address == pa.py_buffer(payload).address


def test_labels_carry_hash_ranges_exactly() -> None:
    for hash_range in ((5, 2**128 - 1), None):
        label = RangeLabel.of(3, hash_range)
        assert msgspec.json.decode(msgspec.json.encode(label), type=RangeLabel).hash_range == hash_range


def test_a_ticket_names_its_ranges() -> None:
    ranges = [
        ShardRange(ShardKey("orders", "shardId-0"), TRIM_HORIZON, Position.after(10**120)),
        ShardRange(ShardKey("clicks", "shardId-1"), Position.at_timestamp(7), SHARD_END),
    ]
    assert msgspec.json.decode(msgspec.json.encode(GetTicket.of(ranges)), type=GetTicket).parsed() == ranges
