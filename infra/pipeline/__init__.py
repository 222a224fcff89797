"""The pipeline of environments: their deployments, the jobs that it keeps running, and the bootstrap that an administrator runs first.

Every step is a command (`python -m infra.pipeline --help`) that any CI system can run; most are those of `kinesis_efo_infra.pipeline`.
"""
