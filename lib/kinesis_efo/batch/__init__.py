"""Batch reads: a part of a stream, planned once and read with GetRecords, without a consumer and without leases."""
