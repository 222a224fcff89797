"""The steps of a pipeline: plan, apply what does the same, start the jobs that changed, look for drift.

Every step is a command (`python -m infra.pipeline --help`) that any CI system can run; only `github` is for GitHub.
"""
