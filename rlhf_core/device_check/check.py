"""The device check, whole."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core.device_check.report import Comparison, Report
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from rlhf_core.models.load import LoadedModel


def check_device(name: str, model: str, ranks: int | None, show: Callable[[Comparison], None]) -> Report:
    """Compare every forward, the native engine, a checkpoint and every strategy with the plain way on this device.

    Args:
        name: ``cpu`` or ``cuda``.
        model: as of ``--model``.
        ranks: processes for strategies; None takes the cards there are, and two on the CPU.
        show: called with each comparison once it is made.

    Raises:
        ConfigError: there is no such device, or fewer cards than ranks.
        ModelError: the model cannot be loaded.
    """
    import torch

    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_policy
    from rlhf_core.plan import library_versions

    device = _device(name)
    cards = torch.cuda.device_count() if device.type == "cuda" else None
    ranks = ranks or cards or 2
    if cards is not None and ranks > cards:
        raise ConfigError(f"{ranks} processes need as many cards, torch sees {cards}", fix=f"--ranks {cards}")
    began, rows = time.perf_counter(), list[Comparison]()
    loaded = load_policy(ModelConfig(path=model))
    with tempfile.TemporaryDirectory() as folder:
        for row in _comparisons(loaded, model, device, ranks, Path(folder)):
            rows.append(row)
            show(row)
    title = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    return Report(title, model, round(time.perf_counter() - began, 1), library_versions(), tuple(rows))


def _comparisons(
    loaded: LoadedModel, model: str, device: torch.device, ranks: int, folder: Path
) -> Iterator[Comparison]:
    from rlhf_core.device_check.forwards import compare_engine, compare_forwards
    from rlhf_core.device_check.runs import compare_runs

    for precision in ("fp32", "bf16"):
        yield from compare_forwards(loaded, device, precision)
        yield from compare_engine(loaded, device, precision)
    yield from compare_runs(model, device, ranks, folder)


def _device(name: str) -> torch.device:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "there is no CUDA device",
            why=f"torch {torch.__version__} sees none",
            fix="install a torch with CUDA, check nvidia-smi, or --device cpu",
        )
    return torch.device(name)
