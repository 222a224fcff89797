"""`make demo`: a real stream through the real job, killed half way, and the proof that nothing is lost or twice.

Not part of the wheel. Relies on local AWS in place of AWS, and on `jobs/archive.py` run by `spark-submit` as a user would.
"""
