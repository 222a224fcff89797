"""`make demo`: archives a stream with the real job, kills it half way, and proves that nothing is lost or duplicated.

Runs on the local AWS of `kinesis-efo local`, with the flights of `kinesis-efo quickstart`, and runs `jobs/archive.py` with
`spark-submit`, as users do. `make trial` does something like it in an account. Not part of the wheel.
"""
