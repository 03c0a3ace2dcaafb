"""What ``trainer.precision=auto`` stands for on this machine, resolved once and written into the plan."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal


def precision_of(run: Any) -> Literal["fp32", "bf16"]:
    """What a run's model computes in: what its trainer says, ``auto`` as on this machine; ``fp32`` of a trainer without
    the setting.

    Args:
        run: a :class:`rlhf_core.config.run.RunConfig`.
    """
    chosen: Any = getattr(run.trainer, "precision", "fp32")
    return resolved(run) if chosen == "auto" else chosen


def resolved(run: Any) -> Literal["fp32", "bf16"]:
    """``auto``, of this run on this machine."""
    on_cpu = getattr(run.strategy, "device", "auto") == "cpu"
    return "bf16" if run.model.dtype == "float32" and not on_cpu and cuda_has_bfloat16() else "fp32"


def cuda_has_bfloat16() -> bool:
    """Whether there is a CUDA device with instructions for bfloat16; torch is not imported where it was built without
    CUDA."""
    try:
        if version("torch").endswith("+cpu"):
            return False
    except PackageNotFoundError:  # installed otherwise than by a package
        pass
    import torch

    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
