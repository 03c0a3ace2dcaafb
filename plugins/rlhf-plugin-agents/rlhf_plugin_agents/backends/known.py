"""Which backends there are, and the settings of each."""

from __future__ import annotations

from typing import Any

from rlhf_core.config import ConfigError
from rlhf_plugin_agents.backends.config import BackendConfig, NativeConfig, ReplayConfig, ScriptedConfig

BACKENDS: dict[str, type[BackendConfig]] = {"scripted": ScriptedConfig, "replay": ReplayConfig, "native": NativeConfig}
PAID = {"anthropic": "AnthropicBackendConfig", "openai": "OpenAIBackendConfig"}


def backend_of(name: str, settings: dict[str, Any]) -> BackendConfig:
    if name in PAID:
        from rlhf_plugin_agents.backends import paid_config

        kind: type[BackendConfig] = getattr(paid_config, PAID[name])
    elif name in BACKENDS:
        kind = BACKENDS[name]
    else:
        raise ConfigError(f"there is no backend '{name}'", fix=f"one of {', '.join((*BACKENDS, *PAID))}")
    return kind.from_settings({**settings, "name": name}, f"backend '{name}'")
