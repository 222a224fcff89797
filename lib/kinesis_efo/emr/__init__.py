"""Packs jobs for Amazon EMR, submits, watches and stops them. Nothing here runs on the cluster."""
