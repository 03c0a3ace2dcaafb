"""Stage 3: weights are divided too (or read by parts), and a decoder layer is whole only while it is called."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.distributed import decoder_layers
from rlhf_core.models import has_meta_weights, read_elements
from rlhf_plugin_deepspeed.engine import make_engine
from rlhf_plugin_deepspeed.fragments import Fragments, cut_fragments
from rlhf_plugin_deepspeed.parts import PartReader
from rlhf_plugin_deepspeed.strategy import Zero
from rlhf_plugin_deepspeed.tested import check_installation

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.distributed import OptimizerPlan
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig
    from rlhf_plugin_deepspeed.optimizer import ZeroOptimizer

log = logging.getLogger(__name__)


class Zero3(Zero):
    """Every rank holds a part of each weight, of its gradient and of its moments; what is outside of decoder layers
    (embedding, head, last norm) stays whole between steps, as the head runs on different numbers of chunks."""

    def __init__(self, config: DeepSpeedConfig, ranks: Any) -> None:
        super().__init__(config, ranks)
        self.weights_device = torch.device("cpu") if config.offload_weights else self.device

    def prepare_training(self, module: torch.nn.Module, plan: OptimizerPlan) -> tuple[torch.nn.Module, ZeroOptimizer]:
        """As in other stages; a module without weights gets this rank's part of them first."""
        self._read_parts(module)
        return super().prepare_training(module, plan)

    def _read_parts(self, module: torch.nn.Module) -> None:
        if has_meta_weights(module):
            read_elements(module, PartReader(self.deepspeed, self.config))
            module.to(self.device)  # buffers, and what was drawn: DeepSpeed leaves where it is what it finds divided

    def _engine(self, module: torch.nn.Module, inner: torch.optim.Optimizer | None) -> Any:
        layers = decoder_layers(module)
        if not layers:
            log.warning(
                "strategy deepspeed: %s has no decoder layers: stays whole on every rank", type(module).__name__
            )
        engine = make_engine(self.deepspeed, self.config, module, inner)
        zero = engine.optimizer
        offload = zero if inner is None else zero.parameter_offload
        inside = {p for layer in layers for p in layer.parameters()}
        root: list[Any] = [p for p in module.parameters() if p not in inside]
        for parameter in root:
            parameter.ds_persist = True
        zero.persistent_parameters = root  # gathered again after each step
        if root:
            root[0].all_gather(root)
        for layer in layers:  # only now: as units of gradients, those without a trained input would lose theirs
            self.deepspeed.utils.set_z3_leaf_module(layer, True)
        offload._remove_module_hooks()  # of every module, and the trace of calls
        module.__dict__["_rlhf_zero3"] = LayerHooks(offload, layers)
        module.__dict__["_rlhf_zero3"].add()
        return engine

    def _fragments(self, module: torch.nn.Module, plan: OptimizerPlan, engine: Any) -> Fragments:
        return cut_fragments(module, plan, engine.optimizer, self.rank)

    def prepare_frozen(self, module: torch.nn.Module) -> torch.nn.Module:
        self._read_parts(module)
        self._engines[id(module)] = self._engine(module, None)
        return module

    def release(self, module: torch.nn.Module) -> None:
        """As in other stages; DeepSpeed keeps the module on a stack of those whose forward it entered."""
        super().release(module)
        stack = import_module("deepspeed.runtime.zero.parameter_offload").FWD_MODULE_STACK
        stack[:] = [entered for entered in stack if entered is not module]

    @contextlib.contextmanager
    def sharded_forward(self, module: torch.nn.Module) -> Generator[torch.nn.Module, None, None]:
        """Layers are gathered one by one; a call leaves none whole."""
        yield module

    @contextlib.contextmanager
    def gathered(self, module: torch.nn.Module) -> Generator[None, None, None]:
        """Gather every layer, and keep it gathered until the context ends."""
        hooks: LayerHooks | None = module.__dict__.get("_rlhf_zero3")
        if hooks is None:
            yield
            return
        hooks.remove()
        try:
            with self.deepspeed.zero.GatheredParameters(list(hooks.parameters), modifier_rank=None):
                yield
        finally:
            hooks.add()

    def full_state(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Whole weights on rank 0, in the host's memory; other ranks hold one at a time, and return none."""
        state = module.state_dict(keep_vars=True)
        full = {value: self.full_tensor(value) for value in dict.fromkeys(state.values())}
        return {name: tensor for name, value in state.items() if (tensor := full[value]) is not None}

    def full_tensor(self, tensor: torch.Tensor, everywhere: torch.dtype | None = None) -> torch.Tensor | None:
        """One weight, whole on every rank for as long as it takes rank 0, or every rank, to copy it."""
        value: Any = tensor
        divided = hasattr(value, "ds_id") and not value.ds_persist
        with (
            self.ranks._waiting("gathering a weight"),
            self.deepspeed.zero.GatheredParameters([value] if divided else [], modifier_rank=None),
        ):
            if everywhere is not None:
                return value.detach().to(everywhere, copy=True)
            return value.detach().to("cpu", copy=True) if self.rank == 0 else None

    def full_shape(self, tensor: torch.Tensor) -> torch.Size:
        """DeepSpeed keeps it beside the part."""
        return getattr(tensor, "ds_shape", tensor.shape)


class LayerHooks:
    """DeepSpeed's hooks on decoder layers, which gather a layer before it is called and drop it afterwards."""

    def __init__(self, offload: Any, layers: list[torch.nn.Module]) -> None:
        self.offload, self.layers = offload, layers
        self.parameters = {p: None for layer in layers for p in layer.parameters()}

    def add(self) -> None:
        """Layers are gathered by their calls from now on."""
        for number, layer in enumerate(self.layers):
            self.offload._register_deepspeed_module(layer, [number])  # by which it knows those whose backward runs

    def remove(self) -> None:
        for hook in (*self.offload.forward_hooks, *self.offload.backward_hooks):
            hook.remove()
        self.offload.forward_hooks.clear()
        self.offload.backward_hooks.clear()


def build(config: DeepSpeedConfig, ctx: BuildContext) -> Zero:
    """The strategy of a stage."""
    check_installation(config)
    strategy = Zero3 if config.stage == 3 else Zero
    return strategy(config, strategy.ranks_of(ctx, config.timeout_s, config.device))
