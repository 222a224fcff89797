"""What runs in the process that Spark keeps for a source: it finds its program's run, or starts it, and asks it."""
