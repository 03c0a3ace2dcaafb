"""DeepSpeed's engine, made with nothing of its own but ZeRO: no clipping, no schedule, no loss scale, no compiling."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig


NEVER = 2**31 - 1


def import_deepspeed(device_type: str) -> Any:
    """The package, for that kind of device, silent but for warnings."""
    os.environ.setdefault("DS_ACCELERATOR", device_type)
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "warning")
    # torch renamed collectives that DeepSpeed calls in every layer
    warnings.filterwarnings("ignore", "`torch.distributed.* is deprecated", FutureWarning)
    deepspeed = import_module("deepspeed")

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if device_type == "cpu":  # its shared-memory collectives would be compiled now; gloo's are there
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def settings(config: DeepSpeedConfig) -> dict[str, Any]:
    """DeepSpeed's settings; layers are gathered only when called, as prefetching by traces that differ between ranks
    would hang."""
    zero: dict[str, Any] = {
        "stage": config.stage,
        "overlap_comm": False,
        "reduce_bucket_size": config.bucket,
        "round_robin_gradients": False,
    }
    if config.stage == 1:  # gradients are added over ranks after the last micro-batch, in the order of the groups
        zero |= {"contiguous_gradients": False}
    if config.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    if config.stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_param_persistence_threshold": 0,
        }
        if config.offload_weights:
            zero["offload_param"] = {"device": "cpu", "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "steps_per_print": NEVER,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }


def make_engine(
    deepspeed: Any, config: DeepSpeedConfig, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None
) -> Any:
    """An engine around a module, changed in place; without an optimizer only for forwards (stage 3)."""
    with local_rank():
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=settings(config))
    return engine


@contextlib.contextmanager
def local_rank() -> Generator[None, None, None]:
    """``LOCAL_RANK``, which a launcher sets and DeepSpeed asks for, is there in one process, too."""
    single = "LOCAL_RANK" not in os.environ
    os.environ.setdefault("LOCAL_RANK", "0")
    try:
        yield
    finally:
        if single:
            del os.environ["LOCAL_RANK"]


def forget_ranks(deepspeed: Any) -> None:
    """Let the next engine of this process find its ranks anew: DeepSpeed keeps their groups when these are gone."""
    deepspeed.utils.groups._WORLD_GROUP = None
    deepspeed.comm.comm.cdb = None
