"""Plants one-line faults in the modules of reading and looks whether their tests see them: `make mutants`."""
