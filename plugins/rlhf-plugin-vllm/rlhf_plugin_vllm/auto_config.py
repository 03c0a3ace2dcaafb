"""``rollout: auto``: vLLM where it can run on a card, the native engine otherwise."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

from pydantic import ModelWrapValidatorHandler, ValidationInfo, model_validator

from rlhf_core.config import ComponentConfig, Registry
from rlhf_plugin_preflight.cards import cards_here

log = logging.getLogger("rlhf")


class AutoConfig(ComponentConfig):
    """``vllm_colocated`` where torch sees a card and vLLM is installed, ``native`` otherwise. The run says which it
    takes, and its plan names that one, so that it goes on with the same. Further settings are the chosen engine's."""

    name: str = "auto"
    component: ClassVar[str] = "rlhf_plugin_vllm.colocated:ColocatedEngine"

    @model_validator(mode="wrap")
    @classmethod
    def _choose(cls, value: Any, handler: ModelWrapValidatorHandler[Any], info: ValidationInfo) -> Any:
        settings: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        registry = (info.context or {}).get("registry") or Registry()
        return registry.config("rollout", chosen(), {k: v for k, v in settings.items() if k != "name"})


@functools.cache
def chosen() -> str:
    """The engine of this process, which it says once."""
    without = "torch sees no card" if not cards_here() else "vLLM is not installed" if not find_spec("vllm") else ""
    name = "native" if without else "vllm_colocated"
    log.warning("rollout auto takes %s: %s", name, without or "torch sees a card, and vLLM is installed")
    return name
