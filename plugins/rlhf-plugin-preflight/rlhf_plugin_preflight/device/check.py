"""The device check, whole."""

from __future__ import annotations

import gc
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlhf_core.config import ConfigError
from rlhf_plugin_preflight.device.report import Comparison, Report, guarded

if TYPE_CHECKING:
    import torch


def check_device(
    name: str,
    model: str,
    ranks: int | None,
    rollout: Sequence[str],
    show: Callable[[Comparison], None],
    keep: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Compare every forward, the native engine, a checkpoint and every strategy with the plain way on this device.
    ``ranks`` None takes all cards, or two on the CPU; ``rollout`` are an engine's settings; ``show`` gets each
    comparison, ``keep`` the report, also when interrupted."""
    import torch

    from rlhf_core.models import use_matmul_backend

    device = _device(name)
    cards = torch.cuda.device_count() if device.type == "cuda" else None
    ranks = ranks or cards or 2
    if cards is not None and ranks > cards:
        raise ConfigError(f"{ranks} processes need as many cards, torch sees {cards}", fix=f"--ranks {cards}")
    use_matmul_backend("auto")  # as `rlhf train` does
    began, rows = time.perf_counter(), list[Comparison]()
    try:
        for row in _comparisons(model, device, ranks, rollout):
            rows.append(row)
            show(row)
    except KeyboardInterrupt:
        rows.append(Comparison("all others", "not run", "interrupted"))
        raise
    finally:
        report = _report(device, model, began, rows)
        if rows:
            keep(report)
    return report


def _report(device: torch.device, model: str, began: float, rows: list[Comparison]) -> Report:
    import torch

    from rlhf_core.config.plan import library_versions

    title = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    return Report(title, model, round(time.perf_counter() - began, 1), library_versions(), tuple(rows))


def _comparisons(model: str, device: torch.device, ranks: int, rollout: Sequence[str]) -> Iterator[Comparison]:
    import torch

    from rlhf_plugin_preflight.device.runs import compare_runs

    yield from _in_this_process(model, device)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the trainings are processes of their own
    with tempfile.TemporaryDirectory() as folder:
        yield from guarded("trainings", lambda: compare_runs(model, device, ranks, Path(folder), rollout))


def _in_this_process(model: str, device: torch.device) -> Iterator[Comparison]:
    """Forwards and engine; the model is freed at the end."""
    from rlhf_core.models import ModelConfig, load_policy
    from rlhf_plugin_preflight.device.casts import compare_casts
    from rlhf_plugin_preflight.device.forwards import compare_engine, compare_forwards

    loaded = load_policy(ModelConfig(path=model))
    precisions: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
    for precision in precisions:
        yield from guarded(f"forward {precision}", partial(compare_forwards, loaded, device, precision))
        yield from guarded(f"native engine {precision}", partial(compare_engine, loaded, device, precision))
    del loaded
    yield from guarded("update bf16, checkpointing: casts", partial(compare_casts, model, device))


def _device(name: str) -> torch.device:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "there is no CUDA device",
            why=f"torch {torch.__version__} sees none",
            fix="install a torch with CUDA, check nvidia-smi, or --device cpu",
        )
    return torch.device(name)
