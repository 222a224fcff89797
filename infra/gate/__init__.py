"""The gate for the stacks of environments: what their files name, and what is accepted of them."""
