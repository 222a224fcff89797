"""The wire: frames to events, events to records, records to Arrow."""
