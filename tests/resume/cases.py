"""Algorithms and features whose runs are resumed; each says how its run shows that the feature took part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .runs import Left

Settings = Mapping[str, Any]


class Case(NamedTuple):
    """A run and the checkpoints from which it is resumed."""

    algorithm: str
    settings: Settings
    """Dotted name -> value; ``DATA`` in a path stands for the folder of the data sets that the tests write."""
    cuts: tuple[int, ...]
    slow: tuple[int, ...] = ()
    """Further ones, among the slow tests."""
    shows: Callable[[Left], bool] = lambda left: True
    """Whether the feature took part in the uninterrupted run."""


EVERY = {"threads": 1, "trainer.checkpoint_every": 1, "trainer.keep_checkpoints": 99}
SAMPLED = {
    **EVERY,
    "dataset": "pocket/arithmetic",
    "dataset.limit": 64,
    "reward": {"name": "verifier", "workers": 1, "timeout_s": 60},  # a busy machine is no late verifier
    "trainer.rollout_batch_size": 16,
    "trainer.sampling.max_tokens": 12,
    "trainer.eval_samples": 2,
}
GRPO = {**SAMPLED, "trainer.steps": 3, "trainer.group_size": 4, "trainer.eval_every": 2}
KILLED = {
    "threads": 1,
    "dataset": "pocket/arithmetic",
    "dataset.limit": 64,
    "reward": {"name": "verifier", "workers": 1},
    "trainer.steps": 6,
    "trainer.rollout_batch_size": 16,
    "trainer.group_size": 4,
    "trainer.eval_samples": 4,
    "trainer.eval_every": 2,
    "trainer.checkpoint_every": 2,
}
SUMS = {**GRPO, "trainer.rollout_batch_size": 8, "dataset": {"name": "jsonl", "path": "DATA/sums.jsonl"}}
AHEAD = {**GRPO, "trainer.steps": 5, "trainer.eval_samples": 1, "trainer.optimizer.learning_rate": 1e-3}
PPO = {
    **SAMPLED,
    "trainer.steps": 3,
    "trainer.train_batch_size": 8,
    "trainer.epochs_per_rollout_batch": 1,
    "trainer.kl.coefficient": 0.2,
    "trainer.kl.target": 0.01,
}
ALGORITHM_PPO = {name: value for name, value in PPO.items() if name != "trainer.kl.target"}
ITERATIVE = {
    **SAMPLED,
    "trainer.steps": 2,
    "trainer.rollout_batch_size": 32,
    "trainer.rollout_batches": 2,
    "trainer.updates": 2,
    "trainer.pair_batch_size": 4,
    "trainer.gold_samples": 2,
    "trainer.buffer": "rolling",
    "trainer.kl.sync_every": 1,
    "trainer.optimizer.learning_rate": 1e-2,
    "trainer.optimizer.warmup_steps": 0,
}
OFFLINE = {**EVERY, "trainer.max_steps": 4, "trainer.batch_size": 8, "trainer.eval_every": 2, "trainer.eval_samples": 4}
PAIRS = {
    **EVERY,
    "dataset": {"name": "jsonl", "path": "DATA/owners.jsonl"},
    "dataset.heldout_fraction": 0.25,
    "trainer.batch_size": 8,
    "trainer.eval_every": 0,
    "trainer.eval_samples": 2,
    "trainer.sample_prompts": 2,
    "trainer.optimizer.learning_rate": 1e-3,
    "trainer.epochs": 2,
}
FROZEN = {
    **EVERY,
    "trainer.train_trunk": "frozen",
    "trainer.epochs": 3,
    "trainer.eval_samples": 8,
    "trainer.batch_size": 7,  # rows come in other batches in each epoch, and packed rows round by their batch
    "trainer.micro_batch_size": 7,
    "dataset.limit": 28,
    "trainer.optimizer.learning_rate": 1e-2,
}
HACKING = {
    "name": "hacking",
    "divergence": {"second": "verifier", "samples": 16},
    "warmup": 2,
    "stop": False,
}
PARTS = {
    "right": {"reward": "verifier", "weight": 0.8},
    "short": {
        "reward": {"name": "programmatic", "mode": "continuous", "length": {"unit": "tokens", "max": 5}},
        "weight": 0.2,
        "normalise": "zscore",
    },
}
COMPOSITE = {f"reward/part/{part}" for part in ("right/raw", "short/raw", "short/normalised", "short/length")}


def ahead(staleness: int, settings: Settings, *, slow: bool = True, algorithm: str = "grpo") -> Case:
    """Rollout batches are in flight when the checkpoint is written."""
    changed = {**AHEAD, "trainer.rollouts.max_staleness": staleness, **settings}
    return Case(algorithm, changed, () if slow else (3,), (3,) if slow else (), metric(3, "buffer/batches"))


TRUNCATED = {"trainer.sampling.temperature": 1.5, "trainer.sampling.top_k": 20, "trainer.sampling.top_p": 0.95}


def metric(step: int, name: str, above: float = 0) -> Callable[[Left], bool]:
    return lambda left: left.at(step)[name] > above


def dropped(name: str) -> Callable[[Left], bool]:
    return lambda left: left.summary["dropped"][name] > 0


def holds(file: str) -> Callable[[Left], bool]:
    return lambda left: file in left.tensors


def coefficients_differ(left: Left) -> bool:
    return len({row["kl_coefficient"] for row in left.metrics if "kl_coefficient" in row}) == 3


TEACHER = {"path": "pocket", "context": "{prompt} It is {answer}."}
DISTILL = {
    **{name: value for name, value in SAMPLED.items() if name != "reward"},
    "trainer.steps": 3,
    "trainer.eval_every": 2,
    "trainer.teacher": TEACHER,
    "trainer.optimizer.learning_rate": 1e-3,
}
MIX = {"name": "sft_mix", "rows": 3}
CASES: Mapping[str, Case] = {
    "algorithm": Case("algorithm", {**GRPO, "trainer.algorithm": MIX}, (1,), (2,), metric(3, "signal/cross_entropy")),
    "algorithm-ppo": Case(
        "algorithm",
        {**ALGORITHM_PPO, "trainer.algorithm": "ppo"},
        (),
        (2,),
        holds("checkpoints/step-000003/critic.safetensors"),
    ),
    "distill": Case("distill", DISTILL, (1,), (2,)),
    "distill-ahead": Case(
        "distill",
        {**DISTILL, "trainer.steps": 5, "trainer.rollouts.max_staleness": 2},
        (),
        (3,),
        lambda left: left.at(3)["buffer/batches"] > 0,
    ),
    "distill_offline": Case(
        "distill_offline",
        {**OFFLINE, "dataset": "pocket/arithmetic", "trainer.teacher": {**TEACHER, "context": "{prompt} {completion}"}},
        (2,),
    ),
    "grpo": Case("grpo", GRPO, (1,)),
    "grpo-several_updates": Case(
        "grpo",
        {
            **GRPO,
            "trainer.train_batch_size": 8,
            "trainer.epochs_per_rollout_batch": 2,
            "trainer.kl.coefficient": 0.05,
        },
        (2,),
        shows=lambda left: left.summary["updates"] == 12,
    ),
    "grpo-ensemble": Case(
        "grpo",
        {
            **GRPO,
            "dataset": "pocket/assistant",
            "reward": {"name": "ensemble", "members": 2, "max_pairs": 16, "heldout_pairs": 8, "gate_quantile": 0.9},
            "trainer.gold_samples": 0,
        },
        (2,),
    ),
    "grpo-lora": Case("grpo", {**GRPO, "model.lora.r": 4}, (), (1,)),
    "grpo-renewed_reference": Case(
        "grpo",
        {
            **GRPO,
            "trainer.steps": 5,
            "trainer.kl.coefficient": 0.05,
            "trainer.kl.sync_every": 2,
            "trainer.optimizer.learning_rate": 3e-3,
        },
        (),
        (3,),
        shows=holds("checkpoints/step-000005/reference.safetensors"),
    ),
    "grpo-dynamic_sampling": Case(
        "grpo", {**GRPO, "trainer.dynamic_sampling.max_rounds": 8}, (), (1,), shows=dropped("groups_set_aside")
    ),
    "grpo-adaptive_sampling-difficulty": Case(
        "grpo",
        {
            **GRPO,
            "trainer.steps": 2,
            "trainer.rollout_batch_size": 32,
            "trainer.adaptive_sampling": {"k_success": 2, "k_failure": 1, "max_completions": 10, "chunk_size": 4},
            "dataset.difficulty": {},
        },
        (1,),
        shows=metric(2, "adaptive/group_size", above=4),
    ),
    "grpo-difficulty": Case("grpo", {**SUMS, "trainer.steps": 9, "dataset.difficulty.explore": 0.2}, (), (4,)),
    "grpo-curriculum": Case(
        "grpo", {**SUMS, "dataset.curriculum": {"order": "hard_first", "path": "DATA/passes.json"}}, (1,)
    ),
    "grpo-composite_reward": Case(
        "grpo",
        {**GRPO, "reward": {"name": "composite", "parts": PARTS}},
        (),
        (2,),
        shows=lambda left: left.at(3).keys() >= COMPOSITE,
    ),
    "grpo-monitor": Case(
        "grpo",
        {**GRPO, "trainer.steps": 4, "monitors": [HACKING]},
        (3,),
        shows=lambda left: "hacking/second" in left.at(4),
    ),
    "grpo-ahead-renewed_reference": ahead(2, {"trainer.kl.coefficient": 0.05, "trainer.kl.sync_every": 2}, slow=False),
    # two updates a step leave no room ahead: what waits at step 3 is the batch that step 4 reads again
    "grpo-ahead-read_again": ahead(4, {"trainer.rollouts.max_reads": 2, "trainer.train_batch_size": 8})._replace(
        shows=metric(4, "buffer/reads", 1)
    ),
    "grpo-ahead-dynamic_sampling": ahead(1, {"trainer.dynamic_sampling.max_rounds": 3}),
    "grpo-ahead-adaptive_sampling": ahead(1, {"trainer.adaptive_sampling.max_completions": 8}),
    "grpo-ahead-lora": ahead(1, {"model.lora.r": 4}),
    "grpo-ahead-truncated": ahead(1, TRUNCATED),
    "grpo-ahead-evictions": ahead(2, {"trainer.rollouts.capacity": 2, "trainer.train_batch_size": 8}),
    "ppo-ahead": ahead(2, {"trainer.train_batch_size": 16}, algorithm="ppo"),
    "ppo": Case("ppo", PPO, (1,), shows=coefficients_differ),
    "ppo-shared_critic": Case("ppo", {**PPO, "advantage.critic.kind": "shared"}, (), (1,), coefficients_differ),
    "dpo": Case("dpo", PAIRS, (2,)),
    "dpo-lora-aot-sft": Case("dpo", {**PAIRS, "model.lora.r": 4, "loss": "aot", "trainer.sft.weight": 0.5}, (), (2,)),
    "kto": Case("kto", {**PAIRS, "dataset.path": "DATA/judged.jsonl", "trainer.epochs": 3}, (), (3,)),
    # Steps 1 and 2 of an iteration are rollout batches, 3 and 4 updates.
    "iterative_dpo": Case(
        "iterative_dpo", ITERATIVE, (5,), (1, 2, 4, 7), shows=lambda left: left.summary["updates"] == 4
    ),
    "sft": Case("sft", OFFLINE, (2,)),
    "reward_model": Case("reward_model", {**OFFLINE, "dataset.limit": 64}, (2,)),
    "reward_model-frozen_trunk": Case("reward_model", FROZEN, (5,)),
    # Six steps and a checkpoint after every other one: what is killed on the way has done work that it must do again.
    "killed-grpo": Case("grpo", KILLED, ()),
    "killed-algorithm": Case("algorithm", {**KILLED, "trainer.algorithm": MIX}, ()),
    "killed-several_updates": Case(
        "grpo",
        {
            **KILLED,
            "trainer.train_batch_size": 8,
            "trainer.epochs_per_rollout_batch": 2,
            "trainer.kl.coefficient": 0.05,
        },
        (),
    ),
    "killed-lora": Case("grpo", {**KILLED, "model.lora.r": 4}, ()),
    "killed-ensemble": Case(
        "grpo",
        {
            **KILLED,
            "dataset": "pocket/assistant",
            "reward": {"name": "ensemble", "members": 2, "max_pairs": 32, "heldout_pairs": 16, "gate_quantile": 0.9},
            "trainer.gold_samples": 0,
        },
        (),
    ),
    "killed-sft": Case(
        "sft", {"threads": 1, "trainer.max_steps": 12, "trainer.checkpoint_every": 3, "trainer.eval_samples": 8}, ()
    ),
    "killed-reward_model": Case(
        "reward_model",
        {
            "threads": 1,
            "trainer.max_steps": 8,
            "trainer.checkpoint_every": 2,
            "trainer.eval_samples": 8,
            "trainer.batch_size": 8,
            "dataset.limit": 64,
        },
        (),
    ),
    "prm": Case("prm", {**OFFLINE, "dataset": {"name": "chain_steps", "chains": 12}}, (), (2,)),
}
