"""The gate for environments' stacks: what their settings allow them to contain and grant, and which failed checks are accepted."""
