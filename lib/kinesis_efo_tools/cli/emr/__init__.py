"""``kinesis-efo emr``: packs a job, submits it to EMR, shows its runs, and stops them."""
