"""Tensor parallel: neighbouring ranks divide the weights of decoder layers by transformers' own plan of the model
(Shoeybi et al. 2019, "Megatron-LM"), through torch's DTensor styles; every rank computes the whole micro-batch.

Embedding, head and norms of hidden states are not divided: their gradients are the same on every rank of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import wraps
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from rlhf_core.config import ConfigError
from rlhf_plugin_fsdp.divisible import check_plan
from rlhf_plugin_fsdp.ulysses import SequenceGroup, Sum, trunks, undivided_logprobs


class Rowwise(RowwiseParallel):
    """torch's, which waits for its sum: under gradient checkpointing nothing may read what is computed again."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, mod: Any, outputs: Any, device_mesh: Any
    ) -> Any:
        return outputs.redistribute(placements=output_layouts).to_local()


STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": Rowwise,
    "replicated_with_grad_allreduce": lambda: SequenceParallel(sequence_dim=2, use_local_output=True),  # of heads
}
"""What transformers names in a plan."""
ADAPTERS = {"colwise": "lora_B.*", "rowwise": "lora_A.*"}
"""Which half of a LoRA adapter is divided as the weight beside it; the other half has the rank's size on one side."""


class TensorGroup(SequenceGroup):
    """The ranks that divide weights; each micro-batch belongs to one of them, whose loss counts.

    Args:
        ranks: the run's collectives.
        mesh: of this rank's group, one dimension, neighbours by rank.
    """

    def __init__(self, ranks: Any, mesh: Any) -> None:
        super().__init__(ranks, mesh.size())
        self.mesh = mesh
        self._apart: list[tuple[torch.nn.Module, str, Any]] | None = None
        """Divided weights of the module that is called, where each rank computes alone."""

    def divide(self, module: torch.nn.Module) -> None:
        """Divide the decoder layers of a module's causal models; parameters without memory get parts without.

        Raises:
            ConfigError: transformers' plan of a model is not one that was compared, or does not divide it evenly.
        """
        for trunk in trunks(module):
            check_plan(trunk.config.name_or_path, trunk.config.to_dict(), self.size)
            for part, kind in planned(trunk, trunk.config.base_model_tp_plan):
                learns = [(leaf, p.requires_grad) for leaf, p in part.named_parameters()]
                parallelize_module(part, self.mesh, self._style(kind), src_data_rank=None)
                for leaf, learn in learns:  # a style may forget it
                    part.get_parameter(leaf).requires_grad_(learn)

    def _style(self, kind: str) -> ParallelStyle:
        """Style that lets a module be, while its weights are whole."""
        style: Any = STYLES[kind]()
        enter, leave = style._prepare_input_fn, style._prepare_output_fn

        @wraps(enter)
        def before(*args: Any) -> Any:  # (..., module, inputs, mesh)
            if self._apart is not None:
                self._apart += _gather_weights([args[-3]])
            return enter(*args) if isinstance(args[-3].weight, DTensor) else args[-2]

        @wraps(leave)
        def after(*args: Any) -> Any:  # (..., module, output, mesh)
            result = leave(*args) if isinstance(args[-3].weight, DTensor) else args[-2]
            _put_back(self._apart or [])
            return result

        style._prepare_input_fn, style._prepare_output_fn = before, after
        return style

    @contextmanager
    def gathered(self, module: torch.nn.Module) -> Generator[None, None, None]:
        """All divided weights whole on every rank, which may then make forwards of its own; all members enter it."""
        with self.ranks._waiting("gathering divided weights"):
            divided = _gather_weights(module.modules())
        try:
            yield
        finally:
            _put_back(divided)

    @contextmanager
    def apart(self) -> Generator[None, None, None]:
        """Every member makes as many forwards, each of its own samples; a weight is whole while its module runs."""
        self._apart = []
        try:
            yield
        finally:
            _put_back(self._apart)
            self._apart = None

    def logprobs(self, model: torch.nn.Module, *args: Any) -> tuple[torch.Tensor, torch.Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As :meth:`SequenceGroup.logprobs`; every member computes all of it. The gradient is summed over members, so
        that all go back through the model with that of the rank whose loss counts.

        Raises:
            ModelError: the model changes its logits after its head.
        """
        with self.ranks._waiting("adding parts of hidden states"):
            values_KN = _OwnersGradient.apply(undivided_logprobs(model, *args), self.group)
        return values_KN[0], values_KN[1] if len(values_KN) > 1 else None


@contextmanager
def parts_of_a_rank(model: torch.nn.Module, size: int) -> Generator[None, None, None]:
    """Inside, divided weights are the parts of one of ``size`` ranks, without the others, for a memory plan: what a
    rank adds to the others' is copied as often, and nothing is sent.

    Raises:
        ConfigError: as :meth:`TensorGroup.divide`.
    """
    whole: list[tuple[torch.nn.Module, str, Any]] = []
    hooks: list[Any] = []
    for trunk in trunks(model):
        check_plan(trunk.config.name_or_path, trunk.config.to_dict(), size)
        for part, kind in planned(trunk, trunk.config.base_model_tp_plan):
            for leaf, weight in list(part.named_parameters(recurse=False)):
                if kind == "colwise" or (kind == "rowwise" and leaf == "weight"):
                    whole.append((part, leaf, weight))
                    piece = weight.detach().chunk(size, int(kind == "rowwise"))[0].clone()
                    part._parameters[leaf] = torch.nn.Parameter(piece, weight.requires_grad)
            if kind == "rowwise":
                hooks.append(part.register_forward_hook(lambda _, args, out: Sum.apply(out, None)))
    try:
        yield
    finally:
        _put_back(whole)
        for hook in hooks:
            hook.remove()


def planned(trunk: torch.nn.Module, plan: Mapping[str, str]) -> Iterator[tuple[torch.nn.Module, str]]:
    """Modules that a plan divides, with their styles; of one with an adapter its own layer and a half of the adapter.

    Raises:
        ConfigError: attention or MLP has a parameter that the plan does not name: each rank would have the gradient of
            its own heads or columns.
    """
    modules = dict(trunk.named_modules())
    kinds = {name: kind for name in modules for pattern, kind in plan.items() if fnmatch(name, pattern)}
    blocks = {name.rpartition(".")[0] for name in kinds}
    for name, part in modules.items():
        inside = name in blocks or (name.rpartition(".")[0] in blocks and name not in kinds)
        if inside and next(part.parameters(recurse=False), None) is not None:
            raise ConfigError(
                f"strategy.tensor_parallel cannot divide a model with {name}",
                why="transformers' plan of the model does not say how",
                fix="leave strategy.tensor_parallel out, or use a newer transformers",
            )
    for name, kind in kinds.items():
        if not hasattr(modules[name], "base_layer"):
            yield modules[name], kind
            continue
        for inner, module in list(modules[name].named_modules()):
            if inner == "base_layer" or fnmatch(inner, ADAPTERS[kind]):
                yield module, kind


def copies(parameter: Any, size: int) -> int:
    """On how many of ``size`` members of a group the same values lie."""
    names = parameter.device_mesh.mesh_dim_names
    return 1 if "tensor" in names and parameter.placements[names.index("tensor")].is_shard() else size


@torch.no_grad()
def _gather_weights(modules: Any) -> list[tuple[torch.nn.Module, str, Any]]:
    """Replace divided weights by whole ones; returns what they were."""
    divided = [(m, leaf, p) for m in modules for leaf, p in m._parameters.items() if isinstance(p, DTensor)]
    for module, leaf, parameter in divided:
        module._parameters[leaf] = torch.nn.Parameter(parameter.full_tensor(), parameter.requires_grad)
    return divided


def _put_back(divided: list[tuple[torch.nn.Module, str, Any]]) -> None:
    while divided:
        module, leaf, parameter = divided.pop()
        module._parameters[leaf] = parameter


class _OwnersGradient(Sum):
    """Values that every rank has; the gradient is the sum over ranks, of which all but one multiply their loss by 0."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return values.view_as(values)
