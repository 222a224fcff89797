"""An environment in local AWS: declared there by API, or deployed there by Terraform to rehearse that."""
