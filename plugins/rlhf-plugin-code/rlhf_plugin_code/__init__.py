"""Verifiers that run model-written code in a sandbox; see README.md."""
