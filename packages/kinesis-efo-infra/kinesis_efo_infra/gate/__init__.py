"""The gate: checks what a stack or plan may contain and grant, and runs checkov."""
