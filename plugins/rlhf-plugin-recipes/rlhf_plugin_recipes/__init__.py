"""Pipelines (`rlhf recipe`) and sweeps (`rlhf sweep`) in one YAML file each."""
