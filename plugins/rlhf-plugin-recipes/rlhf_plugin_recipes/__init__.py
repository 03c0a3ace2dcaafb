"""Pipelines in one YAML file (`rlhf recipe`)."""
