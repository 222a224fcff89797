"""Reads shards with Enhanced Fan-Out or GetRecords: wire format, transport, subscription, topology, decoding."""
