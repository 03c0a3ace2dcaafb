"""A causal language model taken apart: the trunk (tokens to hidden states) and the head (hidden states to logits)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


def base_model(model: Any) -> Any:
    """Return the transformers causal LM under a peft wrapper (adapters stay active: they live in its layers)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@dataclass(frozen=True)
class TrunkAndHead:
    """A causal LM taken apart."""

    trunk: Any
    """Tokens to hidden states."""
    head: Any
    """Hidden states to logits. Some models do more to the logits (``models.layers.split.has_linear_head``)."""


def take_apart(model: Any) -> TrunkAndHead | None:
    """Return trunk and head of a causal LM (adapters included), None where they cannot be found."""
    base = base_model(model)
    try:
        trunk, head = base.get_decoder(), base.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return None if trunk is base or head is None else TrunkAndHead(trunk, head)


def trunk_and_head(model: Any) -> TrunkAndHead:
    """As :func:`take_apart`, for a model of which ``has_linear_head(model)`` is known to hold."""
    parts = take_apart(model)
    assert parts is not None, f"{type(base_model(model)).__name__} does not split; call has_linear_head(model) first"
    return parts


def cache_argument(module: Any) -> str | None:
    """The name of the cache among a module's arguments; None where it takes none.

    transformers renamed ``past_key_values`` and ``cache_params`` to ``cache`` in 5.24.
    """
    names = inspect.signature(type(module).forward).parameters
    return next((name for name in ("cache", "past_key_values", "cache_params") if name in names), None)


def compute_dtype(model: torch.nn.Module) -> torch.dtype:
    """Number type of the trunk's matrix products: its weights' own, unless it runs in mixed precision."""
    parts = take_apart(model)
    owner = base_model(model) if parts is None else parts.trunk
    return getattr(owner, "compute_dtype", next(model.parameters()).dtype)


def checkpointing(model: torch.nn.Module) -> bool:
    """Whether gradient checkpointing is active; it switches caches off inside transformers."""
    return any(getattr(m, "gradient_checkpointing", False) and m.training for m in base_model(model).modules())


def call_trunk_once(module: torch.nn.Module) -> None:
    """From now on every forward of the language models in a module calls their layers once, whatever the samples.

    On shards each call of a layer is a collective, and whether a prompt is shared differs between ranks.
    """
    for part in module.modules():
        if hasattr(part, "get_output_embeddings"):
            part.__dict__["_rlhf_one_call"] = True


def trunk_called_once(model: torch.nn.Module) -> bool:
    """Whether :func:`call_trunk_once` was said of it."""
    return "_rlhf_one_call" in base_model(model).__dict__


@contextmanager
def quiet(model: torch.nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own mode restored after."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
