"""What a pipeline does with environments: plan, apply exactly that plan, start the jobs that changed, look for drift.

Every step is a command (`python -m infra.pipeline --help`), so that any CI system can run it; only `github` knows one of them.
"""
