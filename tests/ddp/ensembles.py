"""Reward ensembles that two ranks train together, under each strategy, against one process: run by torchrun.

Rank 0 writes what it found.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file

from rlhf_core.data import PreferencePair
from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.models import ModelConfig
from rlhf_core.training.learner import Learner
from rlhf_plugin_reward import members
from rlhf_plugin_reward.config import EnsembleConfig
from rlhf_plugin_reward.ensemble import train_ensemble
from rlhf_plugin_reward.members import Member

sys.path.insert(0, str(Path(__file__).parent))

from offline_slices import strategy_of

PAIRS = [
    PreferencePair(
        f"p/{i}", ({"role": "user", "content": f"What is 2 + {i}?"},), "5", "Great question! " * (i % 3) + "6"
    )
    for i in range(12)
]
RATES: Any = {"eps": 1e-3, "learning_rate": 1e-3, "warmup_steps": 0}


def trained(strategy: Any, sharing: str, lora: bool, folder: Path) -> dict[str, Any]:
    """One ensemble: how much each update of this rank was given, and what is left in memory afterwards."""
    base = ModelConfig.model_validate({"lora": {"r": 4} if lora else None})
    config = EnsembleConfig(members=2, batch_size=5, micro_batch_size=2, sharing=sharing, optimizer=RATES)  # pyright: ignore
    update, make, shares, nets = Learner.update, Member, list[int](), list[weakref.ref[torch.nn.Module]]()

    def updating(learner: Learner, samples: Any, *args: Any, **kwargs: Any) -> Any:
        shares.append(len(samples))
        return update(learner, samples, *args, **kwargs)

    def member(net: torch.nn.Module, prepared: torch.nn.Module) -> Member:
        nets.append(weakref.ref(net))
        return make(net, prepared)  # type: ignore[arg-type]  # pyright: ignore

    torch.manual_seed(0 if strategy.rank == 0 else 1)  # rank 0's is every rank's
    with patch.object(Learner, "update", updating), patch.object(members, "Member", member):
        train_ensemble(config, base, PAIRS[:8], PAIRS[8:], 0, folder, lambda _: None, strategy)
    gc.collect()
    return {"shares": shares, "left": sum(net() is not None for net in nets)}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of an ensemble."""
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{f.relative_to(folder)}/{k}": v for f in files for k, v in load_file(str(f)).items()}


def scores(folder: Path) -> np.ndarray:
    """Of the held-out pairs, as they are kept."""
    meta = json.loads((folder / "ensemble.json").read_text())
    return np.array([meta["heldout"]["chosen"], meta["heldout"]["rejected"]])


def main(out: str) -> None:
    """Every way to share a trunk, under every strategy."""
    ranks, place = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 200), Path(out).parent
    names = ("ddp", "fsdp", *(("3",) if find_spec("deepspeed") else ()))
    found: dict[str, dict[str, Any]] = {}
    for sharing, lora in (("none", False), ("none", True), ("lora", False), ("frozen", False)):
        kind = f"{sharing}{'+lora' if lora else ''}"
        alone = place / kind / "alone"
        if ranks.rank == 0:
            trained(LocalStrategy(), sharing, lora, alone)
        for name in ("fsdp",) if lora else names:
            folder = place / kind / name
            seen = trained(ranks if name == "ddp" else strategy_of(ranks, name), sharing, lora, folder)
            every = ranks.gather_objects(seen)
            if ranks.rank:
                continue
            one, two = weights(alone), weights(folder)
            assert one.keys() == two.keys()
            found[f"{kind}/{name}"] = {
                "apart": max(float((one[k] - two[k]).abs().max()) for k in one),
                "scores apart": float(np.abs(scores(alone) - scores(folder)).max()),
                "shares": [rank["shares"] for rank in every],
                "left": max(rank["left"] for rank in every),
            }
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(found, indent=1))
    ranks.close()


if __name__ == "__main__":
    main(sys.argv[1])
