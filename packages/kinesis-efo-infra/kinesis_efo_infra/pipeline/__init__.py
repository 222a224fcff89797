"""Plans and applies the synthesized stacks of any app, shows plans to reviewers, and checks for drift.

Every step is a command (`kinesis-efo-infra --help`) that any CI system can run; only the `github-...` commands are for GitHub.
"""
