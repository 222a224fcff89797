"""Reads a frame, a head and a record with the installed core, to check that a wheel that was just built loads and works."""

import kinesis_efo_core

PAYLOAD = b'{"Records":[{"SequenceNumber":"7","Data":"eA==","PartitionKey":"k","ApproximateArrivalTimestamp":1.5}]}'

batch = kinesis_efo_core.Batch(True)
assert batch.begin("stream", "shard", None, None)
assert batch.add(PAYLOAD) == (1, 1, False)
assert batch.floor == "7"

PRELUDE = bytes.fromhex("00000010 00000000 05c248eb")
assert kinesis_efo_core.Frames().feed(PRELUDE + bytes.fromhex("7d98c8ff")) == ([({}, b"")], None)
assert kinesis_efo_core.read_head(b'{"ContinuationSequenceNumber":"7"}') == ("7", 0, 0, None)
assert kinesis_efo_core.read_answer(b'{"Records":[],"NextShardIterator":"i"}') == ("i", 0, 0, None, 0)
