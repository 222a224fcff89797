"""The gate for environments' stacks: checks that they contain and grant only what settings allow, and accepts certain failed checks."""
