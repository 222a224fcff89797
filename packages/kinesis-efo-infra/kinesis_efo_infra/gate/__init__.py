"""The gate: what a stack, or a plan of it, may hold and grant, and what checkov says of it."""
