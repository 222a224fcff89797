"""`make demo`: archives a real data set with the real job, kills it half way, and proves that nothing is lost or duplicated.

Runs on local AWS, and runs `jobs/archive.py` with `spark-submit`, as users do. Not part of the wheel.
"""
