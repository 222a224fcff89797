"""Decides, without I/O, what is read, planned, kept and committed: the code behind docs/why-it-holds.md."""
