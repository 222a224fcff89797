"""Packs, submits, watches and stops jobs on Amazon EMR. Nothing of this package runs on the cluster."""
