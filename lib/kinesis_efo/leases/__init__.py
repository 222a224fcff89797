"""A run's lease on each stream (`run`) and the checkpoints of shards (`checkpoints`), in DynamoDB (`table`) or files (`host_table`)."""
