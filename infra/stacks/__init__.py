"""The stacks: per environment one for streaming, and one that its pipeline needs. Environments share nothing."""
