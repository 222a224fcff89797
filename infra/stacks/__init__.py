"""One stack per environment. Environments share nothing, so there is no shared stack."""
