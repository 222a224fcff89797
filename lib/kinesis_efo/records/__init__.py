"""Decodes what Kinesis sends: bytes to frames, frames to events, events to records, and records to Arrow batches."""
