"""Decodes a record with the core that is installed: whether a wheel that was just built loads, and works."""

import kinesis_efo_core

PAYLOAD = b'{"Records":[{"SequenceNumber":"7","Data":"eA==","PartitionKey":"k","ApproximateArrivalTimestamp":1.5}]}'

batch = kinesis_efo_core.Batch(True)
assert batch.begin("stream", "shard", None, None)
assert batch.add(PAYLOAD) == (1, 1, False)
assert batch.floor == "7"
