"""Refuses, before a model is loaded, runs whose sequences ``strategy.sequence_parallel`` cannot divide, or whose
weights ``strategy.tensor_parallel`` cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.models import resolve_model
from rlhf_core.rl import OnlineTrainerConfig

DIVIDED = ("sft", "dpo")
"""Besides every algorithm of the core's own on-policy trainer that has no critic."""
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layers in which tokens meet in attention alone."""
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


STYLES = ("colwise", "rowwise", "replicated_with_grad_allreduce")
"""Of transformers' tensor-parallel plans, those that were compared."""


def check_divisible(ctx: BuildContext, name: str, size: int) -> None:
    """Refuse what groups of ``size`` ranks cannot divide, or what was not compared with one process.

    Args:
        ctx: of the run.
        name: ``sequence_parallel`` or ``tensor_parallel``.
        size: ranks of a group.

    Raises:
        ConfigError: the ranks, the trainer, a setting or the model does not allow it.
    """
    if ctx.world_size % size:
        raise ConfigError(
            f"strategy.{name} {size} does not divide {ctx.world_size} ranks",
            why="every group of ranks that compute together has as many",
            fix=f"--nproc {size}, or a multiple of it",
        )
    if what := _refused_run(ctx.config) or (name == "tensor_parallel" and _undivided(ctx.config)):
        raise ConfigError(
            f"strategy.{name} cannot be used with {what}",
            why=f"it was compared in {', '.join(DIVIDED)}, grpo and its variants, where rows can be packed",
            fix=f"leave strategy.{name} out, or the other",
        )
    if name == "tensor_parallel" and ctx.config.model.gradient_checkpointing == "selective":
        raise ConfigError(
            "strategy.tensor_parallel cannot be used with model.gradient_checkpointing=selective",
            why="little less is kept of layers with divided weights",
            fix="--set model.gradient_checkpointing=true, or leave strategy.tensor_parallel out",
        )
    settings, path = _model_settings(ctx), ctx.config.model.path
    if what := _refused_model(settings):
        raise ConfigError(
            f"strategy.{name} cannot divide '{path}', a model with {what}",
            why="only models whose layers are attention and an MLP were compared",
            fix=f"leave strategy.{name} out",
        )
    if name == "sequence_parallel":
        _check_heads(path, settings, size)
    elif settings:
        check_plan(path, settings, size)


def check_plan(path: str, settings: Mapping[str, Any], size: int) -> None:
    """Refuse a model whose decoder layers ``size`` ranks cannot divide by transformers' plan.

    Raises:
        ConfigError: transformers has no plan of this kind, or heads or columns are not divided evenly.
    """
    from transformers import CONFIG_MAPPING

    kind = str(settings.get("model_type"))
    plan = CONFIG_MAPPING[kind].base_model_tp_plan if kind in CONFIG_MAPPING else None
    if not plan or set(plan.values()) - {*STYLES}:
        others = ", ".join(sorted({*(plan or {}).values()} - {*STYLES}))
        raise ConfigError(
            f"strategy.tensor_parallel cannot divide '{path}', a {kind}",
            why=f"transformers' plan of it has {others or 'nothing'}; {', '.join(STYLES)} were compared",
            fix="leave strategy.tensor_parallel out; strategy=fsdp divides its weights layer by layer",
        )
    sizes = {
        key: int(settings[key]) for key in (*HEADS, "num_key_value_heads", "intermediate_size") if settings.get(key)
    }
    if odd := [f"{key} {count}" for key, count in sizes.items() if count % size]:
        raise ConfigError(
            f"strategy.tensor_parallel {size} does not divide '{path}': {', '.join(odd)}",
            why="each rank takes as many heads, and as many columns of the MLP",
            fix=f"a divisor of {', '.join(map(str, sizes.values()))}, or leave strategy.tensor_parallel out",
        )


def _undivided(run: Any) -> str:
    """What was not compared on divided weights; "" if nothing."""
    lora, strategy = run.model.lora, run.strategy
    reasons = {
        "strategy.sequence_parallel": strategy.sequence_parallel > 1,
        "strategy.shard_size": strategy.shard_size is not None,
        "strategy.offload": strategy.offload,
        "model.lora.dora": lora is not None and lora.dora,
        "model.lora.dropout": lora is not None and lora.dropout > 0,
        "model.lora.modules_to_save": lora is not None and bool(lora.modules_to_save),
        f"optimizer {run.trainer.optimizer.name}": run.trainer.optimizer.name != "adamw",
    }
    return next((what for what, applies in reasons.items() if applies), "")


def _refused_run(run: Any) -> str:
    """What the run has that does not go through divided forwards; "" if nothing."""
    trainer, critic = run.trainer, getattr(getattr(run, "advantage", None), "has_critic", False)
    sampling = getattr(trainer, "sampling", None)
    online = trainer.component == OnlineTrainerConfig.component
    reasons = {
        f"algorithm {trainer.name}": not online and trainer.name not in DIVIDED,
        "a critic": critic,
        "trainer.packing=off": getattr(trainer, "packing", "auto") == "off",
        "trainer.sampling.top_p, top_k or min_p": online and getattr(sampling, "truncates", False),
        "model.attention=eager": run.model.attention == "eager",
        "model.quantize": run.model.quantize is not None,
    }
    return next((what for what, applies in reasons.items() if applies), "")


def _refused_model(settings: Mapping[str, Any]) -> str:
    """Which layers of a model were not compared; "" if none."""
    kinds = set(settings.get("layer_types") or ()) - ATTENTION
    reasons = {
        "a modality": "modality" in settings,
        f"layers of {', '.join(sorted(kinds))}": bool(kinds),
        "recurrent layers": any("mamba" in key or "state_size" in key for key, value in settings.items() if value),
        "latent attention (MLA)": settings.get("kv_lora_rank") is not None,
        "mixtures of experts": any((settings.get(key) or 0) > 1 for key in EXPERTS),
    }
    return next((what for what, applies in reasons.items() if applies), "")


def _check_heads(path: str, settings: Mapping[str, Any], size: int) -> None:
    heads = next((int(settings[key]) for key in HEADS if settings.get(key)), 0)
    keys = int(settings.get("num_key_value_heads") or heads)
    if heads % size == 0 and (not heads or keys % size == 0 or size % keys == 0):
        return  # where no number is said, the first forward finds what does not divide
    fits = [n for n in range(2, heads + 1) if heads % n == 0 and (keys % n == 0 or n % keys == 0)]
    raise ConfigError(
        f"strategy.sequence_parallel {size} does not divide the heads of '{path}'",
        why=f"it has {heads} heads of attention and {keys} of keys and values; each rank takes as many, "
        "keys and values repeated where they are fewer than ranks",
        fix=f"use {', '.join(map(str, fits)) or 'no sequence_parallel'}",
    )


def _model_settings(ctx: BuildContext) -> Mapping[str, Any]:
    """``config.json`` of the text model; {} where it is on the hub and not here: the first forward finds the rest."""
    source, revision = resolve_model(ctx.config.model.path), ctx.config.model.revision
    folder = Path(source.path)
    if not source.local:
        from huggingface_hub import try_to_load_from_cache

        file = None
        with suppress(ValueError):  # not an id of the hub, but a shape in a memory plan's words
            file = try_to_load_from_cache(source.path, "config.json", revision=revision)
        if not isinstance(file, str):
            return {}
        folder = Path(file).parent
    settings = json.loads((folder / "config.json").read_text("utf-8"))
    more = {"modality": True} if (folder / "modality.json").is_file() else {}
    return {**settings, **(settings.get("text_config") or {}), **more}
