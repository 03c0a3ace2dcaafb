"""Reference logprobs: computed once, before training, and cached in the run's folder."""

from __future__ import annotations

import copy
import gc
import hashlib
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from rlhf_core.config import BuildContext
from rlhf_core.data import verify_files, whole_folder
from rlhf_core.distributed import Strategy
from rlhf_core.models import ModelError, has_meta_weights
from rlhf_core.training import NoGradForward
from rlhf_plugin_dpo.items import Side
from rlhf_plugin_dpo.pair_module import PairModule

log = logging.getLogger(__name__)
FOLDER = "reference"


def side_logprobs(
    model: Any,
    sides: Sequence[Side],
    strategy: Strategy,
    ld_alpha: float,
    paths: Mapping[str, Any],
    micro_batch_size: int,
    dtype: str | None = None,
) -> list[float]:
    """Summed logprob of each side under the reference that an untrained policy holds, in its own numbers or those of
    ``dtype``; all ranks call it."""
    if has_meta_weights(model) or dtype is not None:
        frozen = copy.deepcopy(model).requires_grad_(False)
        if dtype is not None:
            for parameter in frozen.parameters():  # buffers are not: rotary frequencies are float32 in any model
                parameter.data = parameter.data.to(getattr(torch, dtype))
        for part in frozen.modules() if dtype not in (None, "float32") else ():
            if vars(part).pop("compute_dtype", None) is not None:  # mixed precision hands float32 to the head
                del part.forward
        forward = NoGradForward(strategy, PairModule(frozen, ld_alpha, paths=paths), frozen=True)
        sums = forward.rows(
            sides, 2 * micro_batch_size, lambda module, micro: module.side_sums(micro), untrained(frozen)
        )
        forward.release()
        return sums
    with untrained(model):
        return PairModule(model, ld_alpha, paths=paths).sums(sides, micro_batch_size)


@contextmanager
def untrained(model: Any) -> Generator[None, None, None]:
    """Without dropout, and with LoRA without the adapter; every module's own mode is restored after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext():
            yield
    finally:
        for module, training in modes:
            module.training = training


def cached_logprobs(
    model: Any,
    sides: Sequence[Side],
    ctx: BuildContext,
    split: str,
    ld_alpha: float,
    paths: Mapping[str, Any],
    micro_batch_size: int,
    dtype: str | None = None,
) -> list[float]:
    """:func:`side_logprobs`, or those of the run's folder for these tokens; all ranks call it before training."""
    folder = cache_folder(ctx, split, sides, ld_alpha, dtype)
    strategy = ctx.strategy
    rank, world = strategy.rank, strategy.world_size
    cached = _read(folder) if folder is not None and rank == 0 else None
    cached = strategy.gather_objects(cached)[0]
    if cached is not None and len(cached) == len(sides):
        return cached
    pairs = [sides[n : n + 2] for n in range(0, len(sides), 2)]
    rank_sides = [side for pair in pairs[rank::world] for side in pair]
    shards = strategy.gather_objects(
        side_logprobs(model, rank_sides, strategy, ld_alpha, paths, micro_batch_size, dtype)
    )
    gc.collect()  # shards of a reference hold on to each other
    logprobs = [shards[p % world][2 * (p // world) + n] for p, pair in enumerate(pairs) for n in range(len(pair))]
    if folder is not None and rank == 0:
        _write(folder, logprobs)
    return logprobs


def cache_folder(
    ctx: BuildContext, split: str, sides: Sequence[Side], ld_alpha: float, dtype: str | None = None
) -> Path | None:
    """Where the logprobs of these very tokens under this model are kept; None outside a run."""
    if ctx.run_dir is None:
        return None
    decisive = (ctx.config.model.model_dump(mode="json"), ld_alpha, sides, *([dtype] if dtype else []))
    digest = hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]
    return Path(ctx.run_dir) / FOLDER / f"{split}-{digest}"


def _write(folder: Path, logprobs: Sequence[float]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as temporary:
        data = save({"logprobs": torch.tensor(logprobs, dtype=torch.float64)})
        (temporary / "logprobs.safetensors").write_bytes(data)


def _read(folder: Path) -> list[float] | None:
    file = folder / "logprobs.safetensors"
    try:
        verify_files(folder)
    except ModelError as error:
        log.warning("reference logprobs are computed again: %s", error)
        return None
    return load_file(str(file))["logprobs"].tolist() if file.is_file() else None
