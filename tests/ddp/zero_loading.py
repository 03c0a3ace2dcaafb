"""What two ranks hold while stage 3 of DeepSpeed's ZeRO loads a model: run by torchrun, rank 0 writes what it found.

A deep model, so that a layer is little of it. Each module is prepared from a model without weights, and the policy
also from one that every rank loaded whole. What the memory plan says of such a policy is beside it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from rlhf_core.cli.options import open_plugins, resolve_options
from rlhf_core.distributed import decoder_layers
from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.plugins.context import BuildContext
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.micro_batches import NoGradForward
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.training.policy_module import PolicyModule
from rlhf_plugin_deepspeed import stage3
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_deepspeed.stage3 import Zero3
from rlhf_plugin_ppo.config import CriticSettings
from rlhf_plugin_ppo.critic import make_critic
from rlhf_plugin_preflight.memory.footprint import footprint
from rlhf_plugin_preflight.memory.live import tensor_bytes
from rlhf_plugin_preflight.memory.plan import Placement, plan_for
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.pairs import PairModule

sys.path.insert(0, str(Path(__file__).parent))

from counted_bytes import LiveBytesWithCollectives
from offline_slices import write_model, write_rows

BUCKET = 1000


def policy_and_critic(loaded: LoadedModel) -> torch.nn.Module:
    """As PPO trains them, the critic on a trunk of its own."""
    module = PolicyModule(loaded.model)
    module.critic = make_critic(CriticSettings(kind="separate"), SimpleNamespace(policy=loaded))  # pyright: ignore
    return module


def reference(loaded: LoadedModel) -> torch.nn.Module:
    """Never trained."""
    return PolicyModule(loaded.model).requires_grad_(False)


MODULES: dict[str, Callable[[LoadedModel], torch.nn.Module]] = {
    "reference": reference,
    "policy": lambda loaded: PolicyModule(loaded.model),
    "policy and critic": policy_and_critic,
    "reward net, adapters": lambda loaded: PairModule(fresh_net(loaded, 1, 0, "lora", copy_trunk=False)),
    "reward net, frozen": lambda loaded: PairModule(fresh_net(loaded, 1, 0, "frozen", copy_trunk=False)),
}


def module_of(name: str, folder: Path, weights: bool) -> torch.nn.Module:
    """The module, with weights or without."""
    torch.manual_seed(0)
    return MODULES[name](load_policy(ModelConfig(path=str(folder)), weights=weights))


def prepared(name: str, strategy: Zero3, module: torch.nn.Module) -> torch.nn.Module:
    """What the strategy makes of it."""
    if name == "reference":
        return NoGradForward(strategy, module, frozen=True).module
    return prepare_to_learn(strategy, module, OnlineTrainerConfig(name="t").optimizer)[0]


def measured(name: str, strategy: Zero3, folder: Path, *, weights: bool) -> dict[str, int]:
    """Bytes of live tensors at most: until DeepSpeed is given the module, and in all; and weights unlike the file's."""
    before, make, found = module_of(name, folder, weights=True).state_dict(), stage3.make_engine, dict[str, int]()
    with LiveBytesWithCollectives() as live:

        def making(*args: Any) -> Any:
            found["reading"] = live.peak
            return make(*args)

        module = module_of(name, folder, weights)
        parameters, values = list(module.parameters()), [p for p in module.parameters() if not p.is_meta]
        inside = [p for layer in decoder_layers(module) for p in layer.parameters()]
        found |= {
            "weights": tensor_bytes(parameters),
            "drawn": 0 if weights else tensor_bytes(values),
            "largest": max(tensor_bytes([p]) for p in parameters),
            "root": tensor_bytes(parameters) - tensor_bytes(inside),
            "trained": tensor_bytes(p for p in parameters if p.requires_grad),
        }
        del parameters, values, inside
        with patch.object(stage3, "make_engine", making):
            module = prepared(name, strategy, module)
        found["loading"] = live.peak
    state = {key: strategy.full_tensor(value) for key, value in module.state_dict(keep_vars=True).items()}
    found["unequal"] = sum(whole is not None and not torch.equal(whole, before[key]) for key, whole in state.items())
    assert state.keys() == before.keys()
    strategy.release(module)
    return found


def planned(folder: Path) -> int:
    """Bytes of loading the policy, by the memory plan of an SFT run."""
    write_rows(folder.parent)
    registry, _ = open_plugins(reports=False)
    names = {"algo": "sft", "model": str(folder), "dataset": str(folder.parent / "pairs.jsonl")}
    config = resolve_options(registry, (), ["trainer.sample_prompts=0"], names).config
    ctx = BuildContext(config=config, registry=registry, seed=0, world_size=2)
    plan = plan_for(footprint(ctx, on_cpu=True), Placement("zero3", 2, bucket=BUCKET), on_cpu=True)
    return plan.phases["load"].total


def main(out: str) -> None:
    """Every module, read by parts and loaded whole."""
    ranks, folder = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 100), Path(out).parent / "model"
    if ranks.rank == 0:
        write_model(folder)
    ranks.barrier("the model")
    strategy = Zero3(DeepSpeedConfig(stage=3, device="cpu", bucket=BUCKET), ranks)
    found: dict[str, Any] = {}
    for name in MODULES:
        for way in ("by parts", "whole") if name == "policy" else ("by parts",):
            every = ranks.gather_objects(measured(name, strategy, folder, weights=way == "whole"))
            found[f"{name}, {way}"] = {key: max(rank[key] for rank in every) for key in every[0]}
            gc.collect()
    if ranks.rank == 0:
        found["policy, by parts"]["planned"] = planned(folder)
        Path(out).write_text(json.dumps(found, indent=1))
    ranks.close()


if __name__ == "__main__":
    main(sys.argv[1])
