"""Gradient checkpointing of a model that stays in eval mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import MethodType
from typing import Any

from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.types.errors import ModelError


def wake_checkpointing(model: Any, kind: bool | str = True) -> None:
    """Let gradient checkpointing act in eval mode: its layers seem to train, but what they run is in eval mode, so that
    no dropout is switched on. With ``offload`` what they are given on a card is kept in the host's memory.

    Raises:
        ModelError: the model's logits are others then.
    """
    if kind == "selective":
        scheduler("selective", "model.gradient_checkpointing=selective")()(model)
        return
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from transformers.modeling_layers import GradientCheckpointingLayer

    from rlhf_core.models.layers.trunk_and_head import base_model, probe_ids, quiet

    checkpointed: list[Any] = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    layers: list[Any] = [m for m in checkpointed if isinstance(m, GradientCheckpointingLayer)]
    for module in layers or checkpointed:
        module.training = True
        module._kept = (
            torch.autograd.graph.saved_tensors_hooks(_to_host, _to_card) if kind == "offload" else nullcontext()
        )
        if not isinstance(module._gradient_checkpointing_func, MethodType):
            module._checkpoint = module._gradient_checkpointing_func
            module._gradient_checkpointing_func = MethodType(_in_eval_mode, module)  # a deep copy binds it to the copy
    weight = next(model.parameters())
    if weight.is_meta or isinstance(weight, FakeTensor) or not hasattr(base_model(model), "get_output_embeddings"):
        return
    ids_BL = torch.tensor(probe_ids(model)[:1], device=next(model.parameters()).device)
    with torch.no_grad():
        awake = base_model(model)(input_ids=ids_BL, use_cache=False).logits
        with quiet(model):
            plain = base_model(model)(input_ids=ids_BL, use_cache=False).logits
    if not torch.equal(awake, plain):
        raise ModelError(
            f"gradient checkpointing changes what {type(base_model(model)).__name__} computes",
            why="its layers behave otherwise while they train (dropout, dropped layers, noise)",
            fix="leave out model.gradient_checkpointing; for less memory use LoRA, or smaller trainer.micro_batch_size",
        )


def _in_eval_mode(self: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Checkpoint a layer's function; while it runs, and runs again, the layer is in eval mode."""

    def run(*inputs: Any) -> Any:
        was, self.training = self.training, False
        try:
            return function(*inputs)
        finally:
            self.training = was

    with self._kept:
        return self._checkpoint(run, *args)


def _to_host(given: Any) -> tuple[Any, Any]:
    """A copy for which nothing waits, as pinned memory allows; the stream that computes makes it, so no later work
    overwrites what is copied. Masks stay: layers share them."""
    if not (given.is_cuda and given.is_floating_point()):
        return given.device, given
    return given.device, given.new_empty(given.shape, device="cpu", pin_memory=True).copy_(given, non_blocking=True)


def _to_card(kept: tuple[Any, Any]) -> Any:
    return kept[1].to(kept[0], non_blocking=True)
