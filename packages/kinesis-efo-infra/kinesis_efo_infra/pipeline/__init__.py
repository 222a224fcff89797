"""Plans, shows, applies and watches synthesized stacks of any app.

Every step is a command (`kinesis-efo-infra --help`) that any CI system can run; only the `github-...` commands are for GitHub.
"""
