"""Environments as the pipeline sees them, the jobs that it keeps running, and what an administrator does once before that.

Every step is a command (`python -m infra.pipeline --help`) that any CI system can run; its steps are `kinesis_efo_infra.pipeline`.
"""
