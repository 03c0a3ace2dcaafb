"""One configuration that is translated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_plugin_migrate.targets import Targets

Settings = dict[str, Any]
UNFILLED = "???"
"""A value that the user has to write; no configuration that holds it runs."""


class Lost(str):
    """Why a value has no counterpart; its place stays :data:`UNFILLED`."""

    __slots__ = ()


@dataclass(frozen=True)
class Case:
    settings: Mapping[str, Any]
    """The peer's, flat."""
    algorithm: str
    targets: Targets
    processes: int

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of these keys that is given."""
        return next((self.settings[key] for key in keys if self.settings.get(key) is not None), default)

    def number(self, *keys: str, default: float) -> float:
        """As :meth:`get`, of a number."""
        value = self.get(*keys, default=default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            key = next(key for key in keys if self.settings.get(key) is not None)
            raise ConfigError(f"{key}: {value!r} is not a number", fix="correct it in the file")
        return value

    def integer(self, *keys: str, default: int) -> int:
        """As :meth:`number`, of a whole one."""
        return int(self.number(*keys, default=default))

    @property
    def group(self) -> int:
        """Completions of a prompt."""
        names = ("actor_rollout_ref.rollout.n", "rollout.n_samples_per_prompt", "n_samples_per_prompt")
        return self.integer(*names, default=1)
