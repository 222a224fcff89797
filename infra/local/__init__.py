"""Runs an environment in the local AWS emulator: declared with API calls, or applied by Terraform."""
