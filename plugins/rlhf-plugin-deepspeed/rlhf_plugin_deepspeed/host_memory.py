"""Whether what is offloaded fits into this machine's memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from rlhf_core.api import BuildContext, ConfigError
from rlhf_core.sdk import resolve_model

if TYPE_CHECKING:
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

STEPPED = {1: 20, 2: 24, 3: 20}
"""Bytes of a parameter on the host, float32, by stage: the copy that is stepped, its gradient, two moments and a buffer
through which it is copied; in stage 2 a second one, in which micro-batches add up."""
WEIGHT = 4
"""Its own, with ``offload_weights``."""


def check_host_memory(config: DeepSpeedConfig, ctx: BuildContext) -> None:
    """Refuse to offload what this machine has no room for, where the model's files say how large it is.

    Raises:
        ConfigError: names the bytes that are needed and those that are free.
    """
    if not config.offload or ctx.config.model.lora is not None:  # adapters are small
        return
    parameters = parameters_in(ctx.config.model.path)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", ctx.world_size))
    needed = parameters * (STEPPED[config.stage] + WEIGHT * config.offload_weights) * ranks_here // ctx.world_size
    free = psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"strategy.offload needs {needed / 2**30:.1f} GiB of main memory, and {free / 2**30:.1f} are free",
            why=f"{parameters} parameters are stepped there, divided over {ctx.world_size} ranks",
            fix="leave out strategy.offload, use more machines, or --set model.lora.r=16",
        )


def parameters_in(path: str) -> int:
    """Of a model whose safetensors are on this machine; 0 where they are not."""
    from safetensors import safe_open

    source = resolve_model(path)
    if not source.local or source.gguf:
        return 0
    count = 0
    for file in Path(source.place).glob("*.safetensors"):
        with safe_open(str(file), "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                size = 1
                for length in tensors.get_slice(name).get_shape():
                    size *= length
                count += size
    return count


__all__ = ["check_host_memory", "parameters_in"]
