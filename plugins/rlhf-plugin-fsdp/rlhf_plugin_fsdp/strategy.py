"""Ranks of the core's own strategy, modules of torch's FSDP2."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from rlhf_core.config import BuildContext
from rlhf_core.distributed import DelegatingCollectives, decoder_layers
from rlhf_plugin_fsdp.tensor_parallel import TensorGroup, copies
from rlhf_plugin_fsdp.ulysses import GroupForward, SequenceGroup, causal_models

if TYPE_CHECKING:
    from rlhf_plugin_fsdp.config import FsdpConfig


class Fsdp(DelegatingCollectives):
    """Every rank holds a part of each weight, of its gradient and of its moments."""

    def __init__(self, config: FsdpConfig, ranks: Any) -> None:
        super().__init__(ranks)
        self.config = config
        self.weights_device = torch.device("cpu") if config.offload else self.device
        divided = config.tensor_parallel
        size = config.shard_size or self.world_size // divided
        self.replicas = self.world_size // size // divided
        shape, names = ((size,), ("shard",)) if self.replicas == 1 else ((self.replicas, size), ("replicate", "shard"))
        if divided > 1:
            shape, names = (*shape, divided), (*names, "tensor")
        mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        self.mesh = mesh["shard"] if divided > 1 else mesh
        self.tensor = TensorGroup(ranks, mesh["tensor"]) if divided > 1 else None
        self.group = SequenceGroup(ranks, config.sequence_parallel) if config.sequence_parallel > 1 else self.tensor
        """Ranks that compute each micro-batch together."""
        if self.group is not None:
            self.turns = self.group.turns

    @classmethod
    def from_config(cls, config: FsdpConfig, ctx: BuildContext) -> Fsdp:
        return cls(config, cls.ranks_of(ctx, config.timeout_s, config.device))

    def prepare(self, module: torch.nn.Module) -> torch.nn.Module:
        """Shard every decoder layer by itself, the rest with the module; weights of 4 bits, which are packed in whole
        blocks, stay on every rank."""
        config = self.config
        offload = CPUOffloadPolicy() if config.offload else OffloadPolicy()
        reduce = getattr(torch, config.reduce_dtype)
        param = None if config.param_dtype == "float32" else getattr(torch, config.param_dtype)
        # autocast casts what a layer is given; its residual stream stays as it is
        inside = MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce, cast_forward_inputs=False)
        outside = MixedPrecisionPolicy(reduce_dtype=reduce, cast_forward_inputs=False)
        if self.tensor is not None:
            self.tensor.divide(module)
        packed = {p for p in module.parameters() if hasattr(p, "quant_state")}
        for layer in decoder_layers(module):
            fully_shard(
                layer,
                mesh=self.mesh,
                mp_policy=inside,
                offload_policy=offload,
                reshard_after_forward=config.reshard_after_forward,
                ignored_params=packed,
            )
        rest: Any = fully_shard(
            module, mesh=self.mesh, mp_policy=outside, offload_policy=offload, ignored_params=packed
        )
        return rest

    def prepare_frozen(self, module: torch.nn.Module) -> torch.nn.Module:
        """As :meth:`prepare`, so that the shards of a reference lie as the policy's."""
        return self.prepare(module)

    def unwrap(self, module: torch.nn.Module) -> torch.nn.Module:
        return module

    @contextlib.contextmanager
    def sharded_forward(self, module: torch.nn.Module) -> Generator[torch.nn.Module, None, None]:
        """Layers are gathered one by one, and the root once for all forwards."""
        initialise(module)
        try:
            group = self.group if causal_models(module) else None
            yield module if group is None else cast("Any", GroupForward(module, group))
        finally:  # layers too: those that wait for a backward would keep these weights though the shards change
            for unit in _units(module):
                unit.reshard()
            _forget_forwards(module)

    @contextlib.contextmanager
    def gathered(self, module: torch.nn.Module) -> Generator[None, None, None]:
        """Gather every layer, and keep it gathered until the context ends."""
        initialise(module)
        units = _units(module)
        layers = [unit for unit in units if unit is not module]
        for layer in layers:
            layer.set_reshard_after_forward(False, recurse=False)
        for unit in units:
            unit.unshard()
        try:
            with contextlib.nullcontext() if self.tensor is None else self.tensor.gathered(module):
                yield
        finally:
            for unit in units:
                unit.reshard()
            _forget_forwards(module)
            for layer in layers:
                layer.set_reshard_after_forward(self.config.reshard_after_forward, recurse=False)

    @contextlib.contextmanager
    def accumulate(self, module: torch.nn.Module, last: bool) -> Generator[None, None, None]:
        """Gradients are added over ranks after every micro-batch, or after the last alone."""
        module.set_requires_gradient_sync(last or self.config.sync_every_micro_batch)  # pyright: ignore
        with contextlib.nullcontext() if self.group is None else self.group.dividing(module):
            yield

    def backward(self, loss: torch.Tensor) -> None:
        """FSDP averages over ranks, as DDP does; the core's strategy scales the loss up. Ranks that divide weights
        count as one."""
        self.ranks.backward(loss / self.config.tensor_parallel)

    def clip_grad_norm(self, module: torch.nn.Module, max_norm: float) -> float:
        """Clip the norm over all ranks' shards (which may be offloaded, so not by DTensor); returns the norm before."""
        learning = [p for p in module.parameters() if p.grad is not None]
        shards = [_local(p.grad) for p in learning]
        norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in shards]
        if self.tensor is not None:
            norms = [n / math.sqrt(copies(p, self.tensor.size)) for n, p in zip(norms, learning, strict=True)]
        with self.ranks._waiting("adding gradients"):  # on a GPU the first number that is read waits for them
            squares = float(torch.stack(norms).square().sum()) if norms else 0.0
        norm = math.sqrt(self.ranks.sum_over_ranks([squares])[0] / self.replicas)
        if shards and math.isfinite(norm) and norm > max_norm:
            torch._foreach_mul_(shards, max_norm / (norm + 1e-6))  # pyright: ignore[reportPrivateImportUsage]
        return norm

    def full_state(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Whole weights on rank 0, in the host's memory; other ranks hold one at a time, and return none."""
        full = {name: self.full_tensor(value) for name, value in module.state_dict().items()}
        return {name: tensor for name, tensor in full.items() if tensor is not None}

    def full_tensor(self, tensor: torch.Tensor, everywhere: torch.dtype | None = None) -> torch.Tensor | None:
        """One weight, whole on every rank for as long as it takes rank 0 to copy it, or as long as it is used there."""
        with self.ranks._waiting("gathering a weight"):
            full = _full_tensor(tensor.detach().to(everywhere or tensor.dtype), self.device)
        return full if everywhere is not None else full.cpu() if self.rank == 0 else None

    def full_shape(self, tensor: torch.Tensor) -> torch.Size:
        return tensor.shape

    def optimizer_state(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Moments as the parameters lie, which a checkpoint writes by parts."""
        return optimizer.state_dict()

    def load_optimizer_state(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """Restore whole moments of another strategy, or each rank's own parts of a checkpoint for as many ranks."""
        parameters: list[Any] = [p for group in optimizer.param_groups for p in group["params"]]

        def laid(value: Any, like: Any) -> Any:
            if isinstance(value, DTensor) or not isinstance(value, torch.Tensor) or value.ndim == 0:
                return value
            if value.shape == like.shape:
                return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
            return DTensor.from_local(
                value, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
            )

        rows = {i: {k: laid(v, parameters[i]) for k, v in row.items()} for i, row in state["state"].items()}
        optimizer.load_state_dict({**state, "state": rows})


def initialise(module: torch.nn.Module) -> None:
    """Let this module be the root of its units; a layer called first (when sampling, say) would take itself for it."""
    fully_shard.state(module)._lazy_init()  # type: ignore[attr-defined]  # pyright: ignore


def _units(module: torch.nn.Module) -> list[FSDPModule]:
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def _forget_forwards(module: torch.nn.Module) -> None:
    """Let no backward follow forwards without gradient: FSDP2 gathers a unit ahead in the order of all forwards, whose
    number differs between ranks that sample, and would hang."""
    for unit in _units(module):
        state: Any = fully_shard.state(unit)  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
        state._comm_ctx.post_forward_order.clear()
        for group in _groups(state):
            group._post_forward_indices.clear()


def _groups(state: Any) -> list[Any]:
    """What a unit gathers at a time; one group before torch 2.12 knew several."""
    several = getattr(state, "_fsdp_param_groups", None)
    return [group for group in ([state._fsdp_param_group] if several is None else several) if group is not None]


def _full_tensor(value: Any, device: torch.device) -> torch.Tensor:
    if not isinstance(value, DTensor):
        return value
    moved: Any = value if value.device.type == device.type else value.to(device)  # which copies a DTensor always
    for dim in range(moved.device_mesh.ndim):  # one exchange each: torch warns of several at a time
        moved = moved.redistribute(placements=[Replicate()] * (dim + 1) + list(moved.placements[dim + 1 :]))
    return moved.full_tensor()


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value
