"""What runs in the process that Spark keeps for a source: it finds the run of its Spark program or starts one, and calls it."""
