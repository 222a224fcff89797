"""An environment in local AWS: declared there by API, or applied there by Terraform."""
