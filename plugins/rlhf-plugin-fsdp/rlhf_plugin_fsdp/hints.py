"""Whose a strategy's key is, where the run has another strategy (entry point ``rlhf.key_hints``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.config import Registry
from rlhf_plugin_fsdp.config import FsdpConfig


def hint(key: str, value: Any, registry: Registry, chosen: Mapping[str, str]) -> str:
    """Example: ``strategy fsdp has param_dtype: --set strategy=fsdp;``; "" for keys that it does not add."""
    if key not in FsdpConfig.model_fields or chosen.get("strategy") == "fsdp":
        return ""
    shared = registry.load("strategy", chosen.get("strategy", "auto")).model_fields
    return "" if key in shared else f"strategy fsdp has {key}: --set strategy=fsdp;"
