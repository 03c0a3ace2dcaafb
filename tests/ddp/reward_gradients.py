"""Gradients of what learns from pairs, labelled steps, grades and single responses, under any strategy.

Imported by the scripts that compare strategies with one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matrix import items, policy

from rlhf_core.distributed import LocalStrategy
from rlhf_core.plugins.strategy_protocols import ShardedLoading
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import micro_batches_of_size
from rlhf_core.training.optimizer import plan_optimizer, prepare_to_learn
from rlhf_plugin_dpo.items import Side
from rlhf_plugin_dpo.unpaired import UnpairedItem, UnpairedModule
from rlhf_plugin_dpo.unpaired_config import KtoLossConfig
from rlhf_plugin_dpo.unpaired_loss import UnpairedLoss
from rlhf_plugin_prm.config import StepBceConfig
from rlhf_plugin_prm.loss import StepBce
from rlhf_plugin_prm.net import StepItem, StepModule
from rlhf_plugin_reward.loss import BradleyTerry
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.pairs import PairItem, PairModule
from rlhf_plugin_reward.reward import keep_features
from rlhf_plugin_rubric.graded import GradedItem
from rlhf_plugin_rubric.model import GradeLoss, GradeModule
from rlhf_plugin_rubric.rubric import load_rubric

BETA = 0.9
KINDS = (
    "reward_model",
    "reward_model, lora",  # adapters that came with the model
    "reward_model, adapters",  # those of trainer.train_trunk=lora
    "reward_model, frozen",
    "prm",
    "prm, adapters",
    "prm, frozen",
    "rubric_model",
    "rubric_model, adapters",
    "rubric_model, frozen",
    "kto",
    "kto, lora",
)
FEW = ("reward_model, adapters", "prm, frozen", "rubric_model", "kto, lora")
SHARING = {"adapters": "lora", "frozen": "frozen"}


def samples_of(kind: str) -> list[Any]:
    """Seven of them."""
    rows = items()
    texts = [(*row.prompt_ids, *row.completion_ids) for row in rows]
    if kind == "kto":
        sides = [Side(r.prompt_ids, r.completion_ids, len(r.completion_ids), ref=-3.0) for r in rows]
        return [UnpairedItem(f"u{n}", side, n % 2 == 0, side, kl=0.1) for n, side in enumerate(sides)]
    if kind == "prm":
        return [StepItem(f"s{n}", ids, (2, len(ids) - 1), (True, n % 2 == 0)) for n, ids in enumerate(texts)]
    if kind == "rubric_model":
        return [GradedItem(f"g{n}", ids, (n / 6, 0.5, 1.0, 0.0, n / 12)) for n, ids in enumerate(texts)]
    return [PairItem(f"p{n}", text, texts[(n + 1) % 7]) for n, text in enumerate(texts)]


def module_of(kind: str, option: str, *, weights: bool) -> tuple[torch.nn.Module, Any]:
    """What is trained, with adapters that are not zero, and its loss."""
    loaded = policy(frozenset({option}), weights=weights)
    if kind == "kto":
        return UnpairedModule(loaded.model), UnpairedLoss(KtoLossConfig())
    rubric = load_rubric("assistant")
    heads = len(rubric.criteria) if kind == "rubric_model" else 1
    net = fresh_net(loaded, heads, 0, SHARING.get(option, "none"), copy_trunk=False)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in net.named_parameters():
        if option == "adapters" and "lora_B" in name:
            parameter.data.normal_(std=0.05, generator=generator)
    if kind == "prm":
        return StepModule(net), StepBce(StepBceConfig().wrong_weight)
    if kind == "rubric_model":
        mean_K = [0.5] * heads
        return GradeModule(net, mean_K), GradeLoss(rubric, mean_K)
    return PairModule(net), BradleyTerry()


def reward_gradient(strategy: Any, kind: str, share: Sequence[Any]) -> dict[str, torch.Tensor]:
    """By parameter, as the first moments have it after one update that was not clipped.

    Args:
        strategy: of this rank.
        kind: one of ``KINDS``.
        share: this rank's samples; two a micro-batch.
    """
    name, _, option = kind.partition(", ")
    module, loss = module_of(name, option, weights=not isinstance(strategy, ShardedLoading))
    if option == "frozen" and name != "prm":
        ids = [row for item in samples_of(name) for row in conversations(item)]
        keep_features(module.net, ids, strategy)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    config = OnlineTrainerConfig(name="t", optimizer={"max_grad_norm": 1e9, "betas": (BETA, 0.99)})  # pyright: ignore
    plan = plan_optimizer(module, config.optimizer)
    prepared, optimizer = prepare_to_learn(strategy, module, config.optimizer)
    learner = Learner(prepared, loss, strategy, config, 1, micro_batcher=micro_batches_of_size(2), optimizer=optimizer)
    learner.update(share)
    moments = optimizer.state_dict()["state"]
    names = [name for group in plan.groups for name in group.names]
    return {name: whole(moments[n]["exp_avg"]) / (1 - BETA) for n, name in enumerate(names)}


def conversations(item: Any) -> Sequence[tuple[int, ...]]:
    """What a net reads of an item by its last token."""
    return (item.chosen_ids, item.rejected_ids) if isinstance(item, PairItem) else (item.ids,)


def whole(value: Any) -> torch.Tensor:
    """A tensor that ranks hold parts of."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def reward_gradients(strategies: Mapping[str, Callable[[], Any]], kinds: Sequence[str]) -> dict[str, float]:
    """Largest distance from one process's gradient, relative where it exceeds 1; shares of five and two samples.

    Args:
        strategies: by name, what makes each on this rank.
        kinds: of ``KINDS``.
    """
    far: dict[str, float] = {}
    for kind in kinds:
        samples = samples_of(kind.partition(", ")[0])
        want = reward_gradient(LocalStrategy(), kind, samples)
        assert max(float(g.abs().max()) for g in want.values()) > 1e-3, "the gradient is there"
        for name, make in strategies.items():
            strategy = make()
            got = reward_gradient(strategy, kind, samples[:5] if strategy.rank == 0 else samples[5:])
            assert got.keys() == want.keys()
            gaps = [(got[k] - want[k]).abs() / want[k].abs().clamp_min(1) for k in want]
            far[f"{kind}/{name}"] = max(float(gap.max()) for gap in gaps)
    return far
