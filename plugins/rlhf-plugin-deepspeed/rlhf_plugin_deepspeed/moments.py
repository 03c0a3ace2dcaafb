"""Moments between DeepSpeed's fragments and checkpoints, which hold torch's optimizer: of every parameter moments of
its shape, rows divided among ranks. One parameter at a time is whole on every rank while it is laid anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlhf_core.config import PluginError

if TYPE_CHECKING:
    from rlhf_plugin_deepspeed.fragments import Fragment, Fragments
    from rlhf_plugin_deepspeed.strategy import Zero

NOT_SAVED = ("params", "idle")
"""Keys of a group."""
OF_THIS_DEVICE = (*NOT_SAVED, "fused", "foreach", "capturable")
"""Keys that say which kernels step: never those of the machine that wrote the checkpoint."""


def moments_by_rows(inner: torch.optim.Optimizer, fragments: Fragments, strategy: Zero) -> dict[str, Any]:
    mesh = init_device_mesh(strategy.device.type, (strategy.world_size,))
    rows: dict[int, dict[str, Any]] = {}
    for number, fragment in enumerate(fragments.of):
        state = inner.state.get(fragments.stepped[fragment.flat])
        if state:
            rows[number] = {
                key: _by_rows(_gather_moments(value, fragment, strategy), mesh) if value.ndim else value.clone()
                for key, value in state.items()
            }
    groups: list[dict[str, Any]] = []
    for number, group in enumerate(inner.param_groups):
        members = [n for n, fragment in enumerate(fragments.of) if fragment.group == number]
        groups.append({**{k: v for k, v in group.items() if k not in NOT_SAVED}, "params": members})
    return {"state": rows, "param_groups": groups}


@torch.no_grad()
def load_moments(state: dict[str, Any], inner: torch.optim.Optimizer, fragments: Fragments, strategy: Zero) -> None:
    """Restore what :func:`moments_by_rows` gave, or another strategy's optimizer; all ranks call it."""
    mesh = init_device_mesh(strategy.device.type, (strategy.world_size,))
    empty = [_by_rows(torch.empty(f.shape, device="meta"), mesh, strategy.device) for f in fragments.of]
    read = strategy.read_moments(state, empty)
    counts = [len(group["params"]) for group in read["param_groups"]]
    if counts != [sum(f.group == n for f in fragments.of) for n in range(len(inner.param_groups))]:
        raise PluginError(
            f"the checkpoint's optimizer has groups of {counts} parameters, which this run's has not",
            fix="resume with the model, adapters and critic that the run was started with",
        )
    for group, saved in zip(inner.param_groups, read["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key not in OF_THIS_DEVICE})
    inner.state.clear()
    for number, fragment in enumerate(fragments.of):
        row, flat = read["state"].get(number), fragments.stepped[fragment.flat]
        if row is None:
            continue
        if flat not in inner.state:
            inner.state[flat] = {k: torch.zeros_like(flat) if v.ndim else v.clone() for k, v in row.items()}
        for key in [k for k, v in row.items() if v.ndim]:
            full = row[key].full_tensor() if isinstance(row[key], DTensor) else row[key]
            if tuple(full.shape) != fragment.shape:
                raise PluginError(
                    f"the checkpoint's moments of '{fragment.name}' have the shape {list(full.shape)}, "
                    f"not {list(fragment.shape)}",
                    why="another strategy wrote them in parts of its own",
                    fix="resume with the strategy that the run was started with",
                )
            count = fragment.stop - fragment.start
            part = full.reshape(-1)[fragment.start : fragment.stop]
            inner.state[flat][key][fragment.offset : fragment.offset + count].copy_(part)


def _gather_moments(flat: torch.Tensor, fragment: Fragment, strategy: Zero) -> torch.Tensor:
    full = torch.zeros(fragment.numel, dtype=flat.dtype, device=strategy.device)
    count = fragment.stop - fragment.start
    full[fragment.start : fragment.stop] = flat[fragment.offset : fragment.offset + count]
    if strategy.world_size > 1:
        dist.all_reduce(full)
    return full.view(fragment.shape)


def _by_rows(full: torch.Tensor, mesh: DeviceMesh, device: torch.device | None = None) -> torch.Tensor:
    """This rank's rows of it; of one on the meta device their place, without values. A single number stays as it is."""
    if full.ndim == 0:
        return full if device is None else torch.empty((), device=device)
    shape, offset = compute_local_shape_and_global_offset(full.shape, mesh, [Shard(0)])
    rows = full[offset[0] : offset[0] + shape[0]].clone() if device is None else torch.empty(shape, device=device)
    return DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=full.shape, stride=full.stride())
