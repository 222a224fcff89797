"""A run's lease on each stream (`run`) and the checkpoints of shards (`checkpoints`), stored in DynamoDB (`table`)."""
