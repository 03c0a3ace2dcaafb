"""Stage 3: each rank reads its part of a weight from disk, where DeepSpeed's own way has it whole on every rank."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from rlhf_plugin_deepspeed.engine import local_rank, settings

if TYPE_CHECKING:
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig


class PartReader:
    """Makes parameters of which this rank has its part alone, cut as stage 3 cuts them: in equal pieces."""

    def __init__(self, deepspeed: Any, config: DeepSpeedConfig) -> None:
        self._statuses = import_module("deepspeed.runtime.swap_tensor.partitioned_param_swapper").PartitionedParamStatus
        with local_rank():
            self._init = deepspeed.zero.Init(config_dict_or_path=settings(config), dtype=torch.float32)
        self._init._enable_mem_efficient_linear()  # whose backward gathers weights again instead of keeping them

    def __call__(self, parameter: torch.nn.Parameter, read: Callable[[int, int], torch.Tensor]) -> torch.nn.Parameter:
        """The parameter that takes the place of one without memory; ``read(start, stop)`` gives elements of it."""
        one = torch.empty((), dtype=parameter.dtype, device=self._init.local_device)
        divided: Any = torch.nn.Parameter(one.expand(parameter.shape), parameter.requires_grad)
        self._init._convert_to_deepspeed_param(divided)
        size = divided.aligned_size() // divided.ds_zero_partition_world_size
        start = min(size * divided.ds_zero_partition_rank, divided.ds_numel)
        stop = min(start + size, divided.ds_numel)
        part: Any = torch.zeros(size, dtype=parameter.dtype, device=self._init.remote_device)
        part[: stop - start].copy_(read(start, stop))
        part.ds_numel, part.status, part.final_location = size, self._statuses.AVAILABLE, None
        divided.ds_tensor, divided.ds_numel_aligned = part, divided.aligned_size()
        divided.partition()  # drops what stood for the whole
        return divided
