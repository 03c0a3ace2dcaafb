"""DeepSpeed's ZeRO against one process, inside one pair of ranks: run by torchrun, rank 0 writes what it found.

Gradients under several optimisations, and of what learns from pairs, steps, grades and single responses; updates of
every kind of training, and what is measured without gradient after them; moments that one layout wrote and another
reads. In stage 3 each rank reads its part of the model.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from rlhf_core.distributed import decoder_layers
from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.distributed.whole_weights import gather_weights
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.precision import set_precision
from rlhf_core.models.reference import Reference
from rlhf_core.models.tensor_files import is_lazy, like
from rlhf_core.plugins.strategy_protocols import ShardedLoading
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.forward import ForwardOptions
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import NoGradForward, by_tokens, micro_batches_of_size
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.training.policy_module import LOGPROBS, PolicyModule, ReferencePolicy
from rlhf_core.types.errors import DatasetError
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_deepspeed.stage3 import Zero3
from rlhf_plugin_deepspeed.strategy import Zero
from rlhf_plugin_dpo.items import PairItem as PolicyPair
from rlhf_plugin_dpo.items import Side
from rlhf_plugin_dpo.loss_config import SigmoidConfig
from rlhf_plugin_dpo.pair_loss import PairLoss
from rlhf_plugin_dpo.pair_module import PairModule as PolicyPairs
from rlhf_plugin_grpo.loss import GrpoClip
from rlhf_plugin_ppo.config import CriticSettings
from rlhf_plugin_ppo.critic import make_critic
from rlhf_plugin_ppo.loss import WithValues
from rlhf_plugin_preflight.device.casts import Casts, largest
from rlhf_plugin_reward.loss import BradleyTerry
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.pairs import PairItem, PairModule
from rlhf_plugin_sft.loss import CrossEntropy

sys.path.insert(0, str(Path(__file__).parent))

from matrix import PATHS, items, plain, policy
from reward_gradients import FEW, KINDS, reward_gradient, reward_gradients
from reward_gradients import samples_of as reward_samples

BETA = 0.9
BUCKET = 1000
"""Elements, fewer than most weights have: gradients are added over ranks in many parts."""
LAYOUTS = {
    "1": {"stage": 1},
    "2": {"stage": 2},
    "3": {"stage": 3},
    "3 offloaded": {"stage": 3, "offload": True, "offload_weights": True},
    "1 in buckets": {"stage": 1, "bucket": BUCKET},
    "2 in buckets": {"stage": 2, "bucket": BUCKET},
    "3 in buckets": {"stage": 3, "bucket": BUCKET},
    "2 offloaded in buckets": {"stage": 2, "offload": True, "bucket": BUCKET},
}
GRADIENTS = (
    ("accumulation+share_prefix", "1 in buckets"),
    ("accumulation+checkpointing", "2 in buckets"),
    ("by_tokens+packing+chunked_head", "3 in buckets"),
    ("accumulation+checkpointing+share_prefix", "3"),
    ("accumulation+checkpointing+lora", "3"),
)
RUNS = {
    "sft": ("1 in buckets", "2 in buckets", "3 in buckets"),
    "sft, lora": ("1", "3"),
    "reward_model": ("2", "3"),
    "dpo": ("1", "3"),
    "dpo, lora": ("2", "3"),
    "grpo": ("2", "3"),
    "grpo, lora": ("3",),
    "grpo, bf16": ("2",),
    "grpo, lora, bf16": ("3",),
    "ppo shared": ("3",),
    "ppo shared, lora": ("2",),
    "ppo separate": ("1", "2 offloaded in buckets", "3", "3 offloaded"),
    "ppo separate, lora": ("1", "3"),
    "ppo separate, bf16": ("3",),
}
"""What is trained -> layouts. A sum in bfloat16 depends on what it is part of: micro-batches of one sequence there."""
BRIEF = {
    "sft": ("1 in buckets",),
    "dpo": ("3",),
    "grpo": ("2",),
    "grpo, lora": ("3",),
    "grpo, bf16": ("2",),
    "ppo shared": ("3",),
    "ppo separate": ("2 offloaded in buckets", "3 offloaded"),
}
RATES = {"eps": 1e-3, "learning_rate": 1e-3, "weight_decay": 0.1, "betas": (BETA, 0.99)}


def strategy_of(ranks: AcceleratedStrategy, **settings: Any) -> Zero:
    """As a run makes it, around ranks that are there."""
    config = DeepSpeedConfig(device="cpu", **settings)
    return (Zero3 if config.stage == 3 else Zero)(config, ranks)


def whole(value: Any) -> torch.Tensor:
    """A tensor that ranks hold rows of."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def gradient(options: frozenset[str], strategy: Zero) -> dict[str, torch.Tensor]:
    """Of the batch of :func:`matrix.gradient`, as the first moments have it after one update that was not clipped."""
    paths = ForwardOptions(**{name: name in options for name in PATHS})
    loaded = policy(options, weights=not isinstance(strategy, ShardedLoading))
    module, rows = PolicyModule(loaded.model, 1.0, paths), items()
    config = OnlineTrainerConfig(name="t", optimizer={**RATES, "max_grad_norm": 1e9})  # pyright: ignore
    prepared, optimizer = prepare_to_learn(strategy, module, config.optimizer)
    cut: Any = micro_batches_of_size(2 if "accumulation" in options else len(rows))
    if "by_tokens" in options:
        cut = functools.partial(lambda samples: by_tokens(samples, 30, paths, 64))
    learner = Learner(prepared, GrpoClip(0.2, 0.2), strategy, config, 1, micro_batcher=cut, optimizer=optimizer)
    learner.update(rows[:5] if strategy.rank == 0 else rows[5:])
    state = optimizer.state_dict()
    names = [row.name for row in optimizer.fragments.of]  # type: ignore[attr-defined]
    return {name: whole(state["state"][n]["exp_avg"]) / (1 - BETA) for n, name in enumerate(names)}


def gradients(ranks: AcceleratedStrategy, cases: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Distance from one process's gradient."""
    far: dict[str, float] = {}
    for options, layout in cases:
        strategy = strategy_of(ranks, **LAYOUTS[layout])
        got, want = gradient(frozenset(options.split("+")), strategy), plain("lora" in options)
        assert got.keys() == want.keys()
        name = f"{options}, stage {layout}"
        far[name] = max(float((got[k] - want[k]).abs().max()) for k in want)
    return far


def few_kept(ranks: AcceleratedStrategy) -> dict[str, float | str]:
    """A frozen trunk with room for the features of three conversations: distance from one process, or the refusal."""
    kind, found = "reward_model, frozen", dict[str, float | str]()
    samples = reward_samples("reward_model")
    want = reward_gradient(LocalStrategy(), kind, samples)
    share = samples[:5] if ranks.rank == 0 else samples[5:]
    with patch("rlhf_plugin_reward.net.MOST_CACHED", 3), patch("rlhf_plugin_reward.reward.MOST_CACHED", 3):
        for stage in (1, 2, 3):
            try:
                got = reward_gradient(strategy_of(ranks, stage=stage), kind, share)
                found[str(stage)] = max(relative(got[k], want[k]) for k in want)
            except DatasetError as error:
                found[str(stage)] = str(error)
    return found


class Training(NamedTuple):
    """What one strategy trains."""

    prepared: torch.nn.Module
    learner: Learner
    optimizer: Any
    reference: ReferencePolicy | None


def samples_of(kind: str) -> list[Any]:
    """Seven of them."""
    rows = items()
    kind = kind.split(",")[0]
    if kind == "dpo":
        sides = [Side(r.prompt_ids, r.completion_ids, len(r.completion_ids), ref=-3.0) for r in rows]
        return [PolicyPair(f"p{n}", side, sides[(n + 1) % 7]) for n, side in enumerate(sides)]
    if kind == "reward_model":
        texts = [(*r.prompt_ids, *r.completion_ids) for r in rows]
        return [PairItem(f"p{n}", text, texts[(n + 1) % 7]) for n, text in enumerate(texts)]
    if kind.startswith("ppo"):
        values = [np.linspace(-1, 1, len(r.completion_ids), dtype=np.float32) for r in rows]
        return [replace(r, old_values_T=v, returns_T=2 * v + 1) for r, v in zip(rows, values)]
    return rows


def training(strategy: Any, kind: str) -> Training:
    """A module of that kind and what makes its updates."""
    torch.manual_seed(7)
    kind, *options = kind.split(", ")
    loaded = policy(frozenset(options), weights=not isinstance(strategy, ShardedLoading))
    set_precision(loaded.model, "bf16" if "bf16" in options else "fp32")
    critic: Any = None
    reference: Any = None
    if kind == "dpo":
        module: Any = PolicyPairs(loaded.model)
        loss: Any = PairLoss(SigmoidConfig())
    elif kind == "reward_model":
        module, loss = PairModule(fresh_net(loaded, 1, 0, "none", copy_trunk=False)), BradleyTerry()
    else:
        module, loss = PolicyModule(loaded.model, 0.8), CrossEntropy() if kind == "sft" else GrpoClip(0.2, 0.2)
        reference = None if kind == "sft" else Reference.of(loaded.model)
    if kind.startswith("ppo"):
        critic = make_critic(CriticSettings(kind=kind.split()[1]), SimpleNamespace(policy=loaded))  # pyright: ignore
        module.critic, module.on_policy_trunk = critic, kind == "ppo shared"
        loss = WithValues(loss, 0.5, 0.2)
    config = OnlineTrainerConfig(name="t", optimizer={**RATES, "max_grad_norm": 0.5})  # pyright: ignore
    prepared, optimizer = prepare_to_learn(strategy, module, config.optimizer, critic, 3e-4)
    cut = micro_batches_of_size(1 if "bf16" in options else 2)
    learner = Learner(prepared, loss, strategy, config, 10, critic, 3e-4, micro_batcher=cut, optimizer=optimizer)
    policies = None if reference is None else ReferencePolicy(reference, loaded.model, prepared, strategy, 0)
    return Training(prepared, learner, optimizer, policies)


def numbers(strategy: Any, kind: str, share: Sequence[Any]) -> dict[str, Any]:
    """Norms, losses, logprobs and weights over updates, one of them the critic's alone."""
    made = training(strategy, kind)
    found: dict[str, Any] = {"norms": [], "losses": []}
    for number in range(2):
        critic_only = kind.startswith("ppo") and number == 1
        metrics = made.learner.update(share, critic_only=critic_only)
        found["norms"] += [value for name, value in sorted(metrics.items()) if "norm" in name]
    found["losses"].append(made.learner.measure(share)["loss"])
    if made.reference is not None:
        module: Any = made.prepared
        cut = micro_batches_of_size(1 if "bf16" in kind else 2)
        found["reference"] = made.reference.logprobs(share, module, cut)
        with strategy.gathered(module):  # as the native engine samples: as many forwards as a rank wants
            rows = NoGradForward(LocalStrategy(), module).rows(share, cut, lambda m, micro: m.measure(micro, LOGPROBS))
            found["gathered"] = [row.logprobs_T for row in rows]
    made.optimizer.load_state_dict(made.optimizer.state_dict())
    made.learner.update(share)
    found["weights"] = {k: v.clone() for k, v in strategy.full_state(made.prepared).items()}
    found["one by one"] = one_by_one(strategy, made.prepared)
    found["moments"] = made.optimizer.state_dict()
    if isinstance(strategy, Zero):
        found["bucket"] = made.optimizer.zero.reduce_bucket_size
        trained = sum(v.numel() for k, v in found["weights"].items()) if strategy.rank == 0 else 0
        found["stepped"] = sum(t.numel() for t in made.optimizer.fragments.stepped), trained
        inside = [p for layer in decoder_layers(made.prepared) for p in layer.parameters()]
        found["layers"] = sum(p.numel() for p in inside)
    return found


def one_by_one(strategy: Any, module: torch.nn.Module) -> dict[str, Any]:
    """The weights as rank 0 looks them up while it writes them; their shapes are known before."""
    found: dict[str, Any] = {}

    def look_up(weights: Mapping[str, Any]) -> None:
        assert is_lazy(weights) is isinstance(strategy, Zero3)
        assert all(weights[name].shape == like(weights, name).shape for name in weights)
        found.update({name: weights[name].clone() for name in weights})

    gather_weights(strategy, module, look_up)
    return found


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference, relative where it exceeds 1."""
    return float(((got - want).abs() / want.abs().clamp_min(1)).max())


def updates(ranks: AcceleratedStrategy, runs: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Distance from one process; shares of five and two samples."""
    far: dict[str, float] = {}
    wanted: dict[str, Any] = {}
    for kind, layouts in runs.items():
        samples = samples_of(kind)
        wanted[kind] = want = numbers(LocalStrategy(), kind, samples)
        for layout in layouts:
            strategy = strategy_of(ranks, **LAYOUTS[layout])
            got = numbers(strategy, kind, samples[:5] if ranks.rank == 0 else samples[5:])
            name = f"{kind}/{layout}"
            stepped, trained = got["stepped"]
            if ranks.rank == 0 and "lora" not in kind:
                far[f"{name}/stepped"] = stepped / trained
            far[f"{name}/layers"] = float(got["layers"])
            far[f"{name}/bucket"] = float(got["bucket"])
            for key in ("norms", "losses"):
                if want[key]:
                    far[f"{name}/{key}"] = relative(torch.tensor(got[key]), torch.tensor(want[key]))
            for key in ("reference", "gathered") if "reference" in want else ():
                rows = [row for rank in ranks.gather_objects(got[key]) for row in rank]
                far[f"{name}/{key}"] = max(float(np.abs(a - b).max()) for a, b in zip(want[key], rows, strict=True))
            if ranks.rank == 0:
                assert got["weights"].keys() == want["weights"].keys()
                far[f"{name}/one by one"] = sum(
                    not torch.equal(got["one by one"][k], v) for k, v in got["weights"].items()
                )
                far[f"{name}/weights"] = max(relative(got["weights"][k], v) for k, v in want["weights"].items())
            pairs = [(got["moments"]["state"][n], row) for n, row in want["moments"]["state"].items()]
            assert all(float(a["step"]) == float(b["step"]) for a, b in pairs)
            far[f"{name}/moments"] = max(
                relative(whole(a[key]), b[key]) for a, b in pairs for key in ("exp_avg", "exp_avg_sq")
            )
    far["bf16"] = relative(torch.tensor(wanted["grpo, bf16"]["norms"]), torch.tensor(wanted["grpo"]["norms"]))
    return far


def to_device_async(ranks: AcceleratedStrategy) -> dict[str, float]:
    """Moments of one layout in another, and back from one process: one more update is the same."""
    samples = samples_of("grpo")
    share = samples[:5] if ranks.rank == 0 else samples[5:]
    far: dict[str, float] = {}
    local = training(LocalStrategy(), "grpo")
    local.learner.update(samples)
    plain_state = copy.deepcopy(local.optimizer.state_dict())
    weights = {k: v.clone() for k, v in local.prepared.state_dict().items()}
    local.learner.update(samples)
    want = local.prepared.state_dict()
    state = plain_state
    for layout in ("1", "3", "2", "3 offloaded"):
        strategy = strategy_of(ranks, **LAYOUTS[layout])
        made = training_from(strategy, weights)
        made.optimizer.load_state_dict(state)
        state = made.optimizer.state_dict()  # of this layout, for the next
        same = all(
            torch.equal(whole(state["state"][n][key]), row[key])
            for n, row in plain_state["state"].items()
            for key in ("exp_avg", "exp_avg_sq")
        )
        made.learner.update(share)
        got = strategy.full_state(made.prepared)
        if ranks.rank == 0:
            far[layout] = max(float((got[k] - want[k]).abs().max()) for k in want) if same else 1.0
    return far


def training_from(strategy: Any, weights: dict[str, torch.Tensor]) -> Training:
    """As :func:`training` of grpo, on given weights."""
    module = PolicyModule(load_policy(ModelConfig(path="pocket")).model, 0.8)
    module.load_state_dict(weights)
    config = OnlineTrainerConfig(name="t", optimizer={**RATES, "max_grad_norm": 0.5})  # pyright: ignore
    prepared, optimizer = prepare_to_learn(strategy, module, config.optimizer)
    learner = Learner(prepared, GrpoClip(0.2, 0.2), strategy, config, 10, optimizer=optimizer)
    learner.version = 1
    return Training(prepared, learner, optimizer, None)


def casts(ranks: AcceleratedStrategy) -> dict[str, int]:
    """Bytes of weights in bfloat16 that are alive at once in an update of stage 3, and those of a layer's matrices."""
    strategy, kind = strategy_of(ranks, stage=3), "grpo, bf16, checkpointing"
    samples, made = samples_of(kind), training(strategy, kind)
    plain = policy(frozenset()).model
    with Casts(plain) as seen:
        made.learner.update(samples[:4] if ranks.rank == 0 else samples[4:])
    return {"alive": seen.most, "layer": largest(plain.model.layers[0])}


def main(out: str, extent: str) -> None:
    """All of it, or what is ``brief``."""
    brief = extent == "brief"
    ranks = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 200)
    stages = {str(n): functools.partial(strategy_of, ranks, stage=n) for n in ((3,) if brief else (1, 2, 3))}
    found = {
        "gradients": gradients(ranks, GRADIENTS[::2] if brief else GRADIENTS),
        "rewards": reward_gradients(stages, FEW if brief else KINDS),
        "few kept": few_kept(ranks),
        "updates": updates(ranks, BRIEF if brief else RUNS),
        "handed over": to_device_async(ranks),
        "casts": casts(ranks),
    }
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(found, indent=1))
    ranks.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
