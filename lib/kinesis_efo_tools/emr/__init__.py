"""Packages, submits, watches and stops jobs on Amazon EMR and AWS Glue. No code of this package runs on the cluster."""
