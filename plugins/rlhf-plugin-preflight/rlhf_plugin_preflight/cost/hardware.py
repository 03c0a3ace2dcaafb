"""What a simulation is told of GPUs and models."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError, did_you_mean

if TYPE_CHECKING:
    from rlhf_core.models import ModelConfig

HERE = Path(__file__).parent
SERVED = 2
"""Bytes of a weight, key or value in the rollout engine: 16 bits."""
ON_MACHINE = 8


@dataclass(frozen=True)
class Gpu:
    """Rates of one GPU, per second: dense bfloat16 operations, and bytes."""

    flops: float
    bandwidth: float
    """Of its memory."""
    memory: float
    """Bytes."""
    link: float
    """To each direction within a machine."""
    network: float
    """To other machines."""

    def bus(self, gpus: int) -> float:
        """Bytes a second of each GPU in a collective: over machines their network cards together are the limit."""
        return self.link if gpus <= ON_MACHINE else min(self.link, ON_MACHINE * self.network)


GPUS: Mapping[str, Gpu] = {n: Gpu(**v) for n, v in tomllib.loads((HERE / "gpus.toml").read_text()).items()}


def gpu_of(name: str) -> Gpu:
    """A GPU by name.

    Raises:
        ConfigError: it is not in ``gpus.toml``.
    """
    if name.lower() not in GPUS:
        raise ConfigError(
            f"no GPU '{name}' is known", why=did_you_mean(name.lower(), GPUS, limit=1), fix=f"one of {', '.join(GPUS)}"
        )
    return GPUS[name.lower()]


@dataclass(frozen=True)
class Shape:
    """What a decoder costs."""

    parameters: float
    layers: int
    attention: int
    """Width of all heads together."""
    hidden: int
    kv: int
    """Bytes of keys and values of a token, 16 bits each, in all layers."""
    experts: float = 0.0
    """Parameters among them that are experts'."""
    picked: float = 1.0
    """Share of the experts that a token takes."""

    @property
    def active(self) -> float:
        """Parameters that a token is multiplied with."""
        return self.parameters - self.experts * (1 - self.picked)

    def read(self, tokens: float) -> float:
        """Bytes of weights that a decoding round reads; of experts those that any of its tokens takes."""
        return SERVED * (self.parameters - self.experts * (1 - self.picked) ** max(tokens, 1.0))


def shape_of(config: ModelConfig) -> Shape:
    """Of a shape by name, a folder with ``config.json`` or the hub."""
    from rlhf_plugin_preflight.memory.weightless import describe, on_meta

    described = describe(config)
    text: Any = described.config.get_text_config()
    model = on_meta(described, config)
    heads = int(getattr(text, "num_attention_heads", 1) or 1)
    width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    cached = 2 * width * int(getattr(text, "num_key_value_heads", None) or heads)
    if getattr(text, "kv_lora_rank", None):  # latent attention (DeepSeek V2, arXiv 2405.04434, section 2.1)
        cached = int(text.kv_lora_rank) + int(text.qk_rope_head_dim)
    counts = (getattr(text, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    count = next((int(n) for n in counts if n), 0)
    return Shape(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=int(text.num_hidden_layers),
        attention=heads * width,
        hidden=int(text.hidden_size),
        kv=SERVED * cached * int(text.num_hidden_layers),
        experts=sum(p.numel() for name, p in model.named_parameters() if count and ".experts." in name),
        picked=int(getattr(text, "num_experts_per_tok", 1) or 1) / count if count else 1.0,
    )
