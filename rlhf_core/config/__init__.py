"""Strict, frozen configuration: defaults < YAML files left to right < ``--set a.b=c``."""

from rlhf_core.plugins.component import ComponentConfig, Config

__all__ = ["ComponentConfig", "Config"]
