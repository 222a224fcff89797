"""Reading shards with Enhanced Fan-Out: wire format, transport, subscription, topology, decoding."""
