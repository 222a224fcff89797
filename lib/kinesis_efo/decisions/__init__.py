"""What is read, planned, kept and committed, decided without I/O: the code behind docs/exactness.md."""
