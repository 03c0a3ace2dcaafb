"""FSDP against one process, inside one pair of ranks: run by torchrun, rank 0 writes what it found.

Gradients under every pair of optimisations, of policies with and without a critic, and of what learns from pairs,
steps, grades and single responses; a reference kept in every way; logprobs, values and losses on shards before and
after an update; a policy whose weights each rank reads by itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.reference import Reference
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import micro_batches_of_size
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.training.policy_module import PolicyModule, ReferencePolicy
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.strategy import Fsdp
from rlhf_plugin_grpo.loss import GrpoClip
from rlhf_plugin_ppo.config import CriticSettings
from rlhf_plugin_ppo.critic import make_critic

sys.path.insert(0, str(Path(__file__).parent))

from matrix import PAIRS, gradient, items, plain
from policy_gradients import BRIEF, EVERY, policy_gradients
from reference_kinds import reference_kinds
from reward_gradients import FEW, KINDS, reward_gradients
from sharded_forward import numbers

CONFIG = OnlineTrainerConfig(name="t", optimizer={"eps": 1e-3, "learning_rate": 1e-3, "weight_decay": 0.1})  # pyright: ignore


def whole(value: Any) -> torch.Tensor:
    """A tensor that ranks hold parts of."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def strategy_of(ranks: AcceleratedStrategy, **settings: Any) -> Fsdp:
    """As a run makes it, around ranks that are there."""
    return Fsdp(FsdpConfig(**settings), ranks)


def gradients(ranks: AcceleratedStrategy, brief: bool) -> dict[str, float]:
    """Distance from one process, of every pair with two ranks in it and of other layouts."""
    far: dict[str, float] = {}
    layouts = [(pair, {}) for pair in PAIRS if "ranks" in pair]
    layouts += [
        (frozenset({"accumulation", "ranks"}), {"shard_size": 1}),
        (frozenset({"accumulation", "ranks"}), {"sync_every_micro_batch": False, "reshard_after_forward": False}),
    ]
    for pair, settings in layouts[-3:] if brief else layouts:
        got = {k: whole(v) for k, v in gradient(pair, strategy=strategy_of(ranks, **settings)).items()}
        want = plain("lora" in pair)
        assert got.keys() == want.keys()
        name = "+".join([*sorted(pair), *settings])
        far[name] = max(float((got[k] - want[k]).abs().max()) for k in want)
    return far


def forwards(ranks: AcceleratedStrategy, brief: bool) -> dict[str, float]:
    """Numbers of forwards without gradient around an update, shares of five and two samples and of seven and none."""
    far, rows = {}, items()
    for kind, first in (("separate", 7),) if brief else (("shared", 5), ("separate", 7)):
        want = numbers(LocalStrategy(), kind, rows)
        got = numbers(strategy_of(ranks), kind, rows[:first] if ranks.rank == 0 else rows[first:])
        for name, local in got.items():
            if name == "saved" and ranks.rank:
                continue
            every = local if name == "saved" or name.endswith("loss") else None
            flat = every or [row for rank in ranks.gather_objects(local) for row in rank]
            one, two = (np.concatenate([np.ravel(r) for r in x]) for x in (want[name], flat))
            far[f"{kind}/{name}"] = float(np.abs(one - two).max())
    return far


def trained(strategy: Any, share: list[Any], lora: bool, weights: bool) -> dict[str, Any]:
    """Policy, critic and reference of a small PPO-like run: what they are before and after three updates."""
    torch.manual_seed(7)
    settings = LoraSettings(r=4) if lora else None
    loaded = load_policy(ModelConfig(path="pocket", lora=settings), weights=weights)
    reference = Reference.of(loaded.model)
    module = PolicyModule(loaded.model, 0.8)
    module.critic = make_critic(CriticSettings(kind="separate"), SimpleNamespace(policy=loaded))  # pyright: ignore
    prepared, optimizer = prepare_to_learn(strategy, module, CONFIG.optimizer, module.critic, 3e-4)
    loss = GrpoClip(0.2, 0.2)
    learner = Learner(prepared, loss, strategy, CONFIG, 10, module.critic, 3e-4, optimizer=optimizer)
    policy = ReferencePolicy(reference, loaded.model, prepared, strategy, 0)
    before = {k: v.clone() for k, v in strategy.full_state(module).items()}
    held = sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in module.parameters())
    for _ in range(3):
        learner.update(share)
    logprobs = policy.logprobs(share, module, micro_batches_of_size(2))
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    learner.update(share)
    return {"before": before, "held": held, "after": strategy.full_state(module), "reference": logprobs}


def loading(ranks: AcceleratedStrategy, brief: bool) -> dict[str, float]:
    """A policy that each rank reads its part of, against one that is loaded whole in one process."""
    found: dict[str, float] = {}
    rows = items()
    share = rows[:5] if ranks.rank == 0 else rows[5:]
    for lora in (True,) if brief else (False, True):
        want = trained(LocalStrategy(), rows, lora, weights=True)
        got = trained(strategy_of(ranks), share, lora, weights=False)
        logprobs = [row for rank in ranks.gather_objects(got["reference"]) for row in rank]
        name = "lora" if lora else "full"
        apart = [np.abs(a - b).max() for a, b in zip(want["reference"], logprobs, strict=True)]
        found[f"{name}/reference"] = float(max(apart))
        found[f"{name}/held"] = got["held"] / want["held"]
        if ranks.rank == 0:
            assert got["before"].keys() == want["before"].keys()
            found[f"{name}/loaded unlike"] = sum(
                not torch.equal(want["before"][k], v) for k, v in got["before"].items()
            )
            moved = [(want["after"][k] - want["before"][k]).abs().max() for k in want["before"]]
            found[f"{name}/moved"] = float(max(moved))
            gaps = [(want["after"][k] - v).abs().max() for k, v in got["after"].items()]
            found[f"{name}/after"] = float(max(gaps))
    return found


def updated(strategy: Any, share: list[Any], forwards: int) -> dict[str, torch.Tensor]:
    """Weights after two updates, between which this rank alone makes so many forwards on whole weights."""
    loaded = load_policy(ModelConfig(path="pocket"))
    module = PolicyModule(loaded.model, 0.8)
    prepared, optimizer = prepare_to_learn(strategy, module, CONFIG.optimizer)
    learner = Learner(prepared, GrpoClip(0.2, 0.2), strategy, CONFIG, 10, optimizer=optimizer)
    learner.update(share)
    with torch.no_grad(), strategy.gathered(module):
        for _ in range(forwards):
            loaded.model(torch.arange(8)[None])
    learner.update(share)
    return strategy.full_state(module)


def sampled_alone(ranks: AcceleratedStrategy) -> dict[str, float]:
    """An update after rank 0 has sampled, and rank 1 has not: its distance from one process."""
    far, rows = {}, items()
    for name, first in (("shares of 5 and 2", 5), ("shares of 7 and 0", 7)):
        want = updated(LocalStrategy(), rows, 0)
        got = updated(strategy_of(ranks), (rows[first:], rows[:first])[ranks.rank == 0], 3 * (ranks.rank == 0))
        far[name] = max((float((want[k] - v).abs().max()) for k, v in got.items()), default=0.0)
    return far


def main(out: str, extent: str) -> None:
    """All of it, or what is ``brief``: a pair, a layout, a loss with a critic and one without, each once."""
    brief = extent == "brief"
    ranks = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 200)
    found = {
        "gradients": gradients(ranks, brief),
        "policies": policy_gradients(lambda: strategy_of(ranks), BRIEF if brief else EVERY),
        "references": reference_kinds(lambda: strategy_of(ranks)),
        "rewards": reward_gradients({"fsdp": lambda: strategy_of(ranks)}, FEW if brief else KINDS),
        "forwards": forwards(ranks, brief),
        "loading": loading(ranks, brief),
        "sampled alone": sampled_alone(ranks),
    }
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(found, indent=1))
    ranks.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
