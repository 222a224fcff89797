"""Decision logic without I/O: what is read, planned, retained and committed. docs/why-it-holds.md explains why it is correct."""
