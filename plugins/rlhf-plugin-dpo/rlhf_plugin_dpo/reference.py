"""Reference logprobs: computed once, before training, and kept in the run's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from rlhf_core.api import BuildContext
from rlhf_core.sdk import ForwardOptions, Reference, whole_folder
from rlhf_plugin_dpo.items import Side
from rlhf_plugin_dpo.pair_module import PairModule

FOLDER = "reference"


def side_logprobs(
    model: Any, sides: Sequence[Side], ld_alpha: float, paths: ForwardOptions, micro_batch_size: int
) -> list[float]:
    """Summed logprob of each side under the reference that an untrained policy holds (with LoRA: its adapter off)."""
    reference = Reference(model, adapter=hasattr(model, "disable_adapter"))
    with reference.active() as quiet:
        return PairModule(quiet, ld_alpha, paths=paths).sums(sides, micro_batch_size)


def kept_logprobs(
    model: Any,
    sides: Sequence[Side],
    ctx: BuildContext,
    split: str,
    ld_alpha: float,
    paths: ForwardOptions,
    micro_batch_size: int,
) -> list[float]:
    """:func:`side_logprobs` over all ranks, from the run's folder if it has them for these very tokens.

    All ranks call it before the policy is trained.
    """
    digest = hashlib.sha256(repr((ctx.config.model.model_dump(mode="json"), ld_alpha, sides)).encode()).hexdigest()[:16]
    folder = None if ctx.run_dir is None else Path(ctx.run_dir) / FOLDER / f"{split}-{digest}"
    strategy = ctx.strategy
    found = _read(folder) if folder is not None and strategy.rank == 0 else None
    found = strategy.gather_objects(found)[0]
    if found is not None and len(found) == len(sides):
        return found
    pairs = [sides[n : n + 2] for n in range(0, len(sides), 2)]
    mine = [s for pair in pairs[strategy.rank :: strategy.world_size] for s in pair]
    shards = strategy.gather_objects(side_logprobs(model, mine, ld_alpha, paths, micro_batch_size))
    world = strategy.world_size
    found = [shards[p % world][2 * (p // world) + n] for p, pair in enumerate(pairs) for n in range(len(pair))]
    if folder is not None and strategy.rank == 0:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder) as aside:
            data = save({"logprobs": torch.tensor(found, dtype=torch.float64)})
            (aside / "logprobs.safetensors").write_bytes(data)
    return found


def _read(folder: Path) -> list[float] | None:
    file = folder / "logprobs.safetensors"
    return load_file(str(file))["logprobs"].tolist() if file.is_file() else None
