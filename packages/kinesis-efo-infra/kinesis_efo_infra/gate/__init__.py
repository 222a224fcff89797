"""The gate: checks that stacks and plans contain and grant only what is allowed, and runs checkov."""
