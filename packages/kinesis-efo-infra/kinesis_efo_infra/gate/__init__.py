"""Checks that stacks and Terraform plans contain only allowed resources and grant only allowed permissions, and runs checkov."""
