"""Manages leases on streams (`run`) and shard checkpoints (`checkpoints`), stored in DynamoDB (`table`) or in a file (`host_table`)."""
