"""The commonest keys of TRL, verl and OpenRLHF, typed as if they were ours: the error names what to write instead."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from rlhf_core.config import ConfigError, Registry
from rlhf_core.config.load import resolve
from rlhf_plugin_migrate.tables import PEERS, load_table
from rlhf_plugin_migrate.targets import Targets

LR = "trainer.optimizer.learning_rate"
GRPO = {
    "learning_rate": LR,
    "lr": LR,
    "weight_decay": "trainer.optimizer.weight_decay",
    "adam_beta1": "trainer.optimizer.betas",
    "adam_beta2": "trainer.optimizer.betas",
    "adam_epsilon": "trainer.optimizer.eps",
    "max_grad_norm": "trainer.optimizer.max_grad_norm",
    "lr_scheduler_type": "trainer.optimizer.schedule",
    "warmup_ratio": "trainer.optimizer.warmup_steps",
    "warmup_steps": "trainer.optimizer.warmup_steps",
    "num_generations": "trainer.group_size",
    "max_completion_length": "trainer.sampling.max_tokens",
    "max_prompt_length": "dataset.max_prompt_tokens",
    "temperature": "trainer.sampling.temperature",
    "top_p": "trainer.sampling.top_p",
    "top_k": "trainer.sampling.top_k",
    "beta": "trainer.kl.coefficient",
    "kl_coef": "trainer.kl.coefficient",
    "epsilon": "loss.clip_range",
    "epsilon_high": "loss.clip_range_high",
    "cliprange": "loss.clip_range",
    "delta": "loss.dual_clip",
    "num_iterations": "trainer.epochs_per_rollout_batch",
    "importance_sampling_level": "loss.importance_level",
    "scale_rewards": "advantage.scale",
    "mask_truncated_completions": "trainer.mask_truncated",
    "per_device_train_batch_size": "trainer.train_batch_size",
    "generation_batch_size": "trainer.rollout_batch_size",
    "max_steps": "trainer.steps",
    "bf16": "trainer.precision",
    "eval_steps": "trainer.eval_every",
    "save_steps": "trainer.checkpoint_every",
    "save_total_limit": "trainer.keep_checkpoints",
    "model_name_or_path": "model.path",
    "torch_dtype": "model.dtype",
    "attn_implementation": "model.attention",
    "lora_r": "model.lora.r",
    "lora_alpha": "model.lora.alpha",
    "lora_target_modules": "model.lora.target_modules",
    "report_to": "trackers",
    "ref_model_sync_steps": "trainer.kl.sync_every",
    "entropy_coef": "trainer.entropy_coefficient",
    "clip_ratio": "loss.clip_range",
    "clip_ratio_low": "loss.clip_range",
    "clip_ratio_high": "loss.clip_range_high",
    "clip_ratio_c": "loss.dual_clip",
    "ppo_mini_batch_size": "trainer.train_batch_size",
    "ppo_micro_batch_size_per_gpu": "trainer.micro_batch_size",
    "ppo_epochs": "trainer.epochs_per_rollout_batch",
    "kl_loss_coef": "trainer.kl.coefficient",
    "use_kl_loss": "trainer.kl.where",
    "kl_loss_type": "trainer.kl.estimator",
    "entropy_coeff": "trainer.entropy_coefficient",
    "loss_agg_mode": "trainer.reduction",
    "adv_estimator": "trainer.name",
    "max_response_length": "trainer.sampling.max_tokens",
    "train_files": "dataset.name",
    "total_training_steps": "trainer.steps",
    "save_freq": "trainer.checkpoint_every",
    "test_freq": "trainer.eval_every",
    "grad_clip": "trainer.optimizer.max_grad_norm",
    "pretrain": "model.path",
    "prompt_data": "dataset.name",
    "input_key": "dataset.columns.prompt",
    "n_samples_per_prompt": "trainer.group_size",
    "actor_learning_rate": LR,
    "init_kl_coef": "trainer.kl.coefficient",
    "eps_clip": "loss.clip_range",
    "micro_train_batch_size": "trainer.micro_batch_size",
    "generate_max_len": "trainer.sampling.max_tokens",
    "prompt_max_len": "dataset.max_prompt_tokens",
    "dynamic_filtering": "trainer.dynamic_sampling",
}
OTHERS = [
    ("dpo", "beta", "loss.beta"),
    ("dpo", "loss_type", "loss.name"),
    ("dpo", "label_smoothing", "loss.label_smoothing"),
    ("dpo", "rpo_alpha", "trainer.sft.weight"),
    ("dpo", "f_divergence_type", "loss.divergence"),
    ("dpo", "num_train_epochs", "trainer.epochs"),
    ("dpo", "per_device_train_batch_size", "trainer.batch_size"),
    ("sft", "max_seq_length", "trainer.max_length"),
    ("sft", "num_train_epochs", "trainer.epochs"),
    ("sft", "assistant_only_loss", "trainer.learn"),
    ("reward_model", "center_rewards_coefficient", "loss.centring"),
    ("kto", "desirable_loss_weight", "loss.desirable_weight"),
    ("grpo", "use_vllm", "rollout.name"),
    ("grpo", "deepspeed", "strategy.name"),
    ("ppo", "lam", "advantage.gae_lambda"),
    ("ppo", "vf_coef", "advantage.value_coefficient"),
    ("ppo", "critic_learning_rate", "advantage.critic.learning_rate"),
    ("ppo", "value_clip", "advantage.cliprange_value"),
]
NEVER = [
    ("grpo", "logging_steps", "not needed: every step is in metrics.jsonl"),
    ("grpo", "output_dir", "not needed: --run-dir DIR"),
    ("grpo", "ddp_backend", "no counterpart: --set strategy.name=NAME"),
    ("dpo", "epsilon", "no counterpart with algorithm 'dpo'"),
    ("grpo", "lam", "no counterpart with algorithm 'grpo'"),
    ("sft", "num_generations", "no counterpart with algorithm 'sft'"),
]


@cache
def registry() -> Registry:
    return Registry(disabled=())


def said(algorithm: str, setting: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(registry(), settings=[setting], sugar={"trainer": {"name": algorithm}})
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "key", "target"), [*(("grpo", key, target) for key, target in GRPO.items()), *OTHERS]
)
def test_a_peers_key_is_answered_with_ours_at_the_top_and_in_the_trainer(algorithm: str, key: str, target: str) -> None:
    assert Targets(registry(), {"trainer": algorithm}).exists(target)
    assert f"'s {key} is {target} here" in said(algorithm, f"{key}=1")
    if key not in ("max_steps", "temperature"):
        fields = registry().load("trainer", algorithm).model_fields
        assert key in fields or f"'s {key} is {target} here" in said(algorithm, f"trainer.{key}=1")


@pytest.mark.parametrize(("algorithm", "key", "text"), NEVER)
def test_what_has_no_counterpart_says_so(algorithm: str, key: str, text: str) -> None:
    assert text in said(algorithm, f"{key}=1")


def test_nested_keys_of_verl_are_answered_one_by_one() -> None:
    text = said("grpo", "actor_rollout_ref={actor: {clip_ratio: 0.1, optim: {lr: 1e-6}}, rollout: {n: 4}}")
    assert "verl's actor_rollout_ref.actor.clip_ratio is loss.clip_range here" in text
    assert f"verl's actor_rollout_ref.actor.optim.lr is {LR} here" in text
    assert "verl's actor_rollout_ref.rollout.n is trainer.group_size here" in text
    assert "rlhf config from-verl FILE" in text


def test_a_key_that_no_peer_uses_gets_the_nearest_of_ours() -> None:
    assert said("grpo", "trainer.gruop_size=1").endswith("fix: did you mean 'trainer.group_size'?")


def test_a_component_that_is_chosen_counts() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(registry(), settings=["loss.name=sapo", "loss.epsilon=0.1"], sugar={"trainer": {"name": "grpo"}})
    assert "no counterpart with algorithm 'grpo'" in str(caught.value)


def test_hints_that_fail_do_not_hide_the_unknown_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no table")

    monkeypatch.setattr("rlhf_plugin_migrate.hints.best", broken)
    text = said("grpo", "trainer.learning_rate=1")
    assert "unknown key 'trainer.learning_rate'" in text
    assert "no table" not in text


def test_without_the_plugin_the_nearest_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_core.plugins.entry_points.disabled_distributions", lambda: ["rlhf-plugin-migrate"])
    assert "TRL" not in said("grpo", "trainer.num_generations=1")


@pytest.mark.parametrize("peer", PEERS)
def test_every_counterpart_of_the_tables_exists_for_some_choice(peer: str) -> None:
    choices: list[dict[str, str]] = [
        *({"trainer": t} for t in ("grpo", "ppo", "dpo", "kto", "sft", "reward_model", "reinforce_pp")),
        *({"trainer": "grpo", "loss": loss} for loss in ("sapo", "vespo", "clip_cov", "kl_cov")),
        *({"trainer": "grpo", "advantage": name} for name in ("gdpo", "reinforce_pp")),
        *({"trainer": "grpo", "reward": name} for name in ("bradley_terry", "composite")),
        *({"trainer": "grpo", "dataset": name} for name in ("hub", "jsonl")),
        {"trainer": "dpo", "loss": "discopop"},
        {"trainer": "grpo", "strategy": "fsdp"},
    ]
    targets = [Targets(registry(), choice) for choice in choices]
    wanted = {t for entry in load_table(peer).entries for t in (*entry.ours, *filter(None, [entry.hint]))}
    assert [target for target in sorted(wanted) if not any(t.exists(target) for t in targets)] == []


def test_no_key_is_in_a_table_twice() -> None:
    for peer in PEERS:
        keys: list[Any] = [key for entry in load_table(peer).entries for key in entry.keys]
        assert [key for key in set(keys) if keys.count(key) > 1] == []


def test_our_own_key_of_that_name_is_named_where_a_peers_hint_names_none() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'trainer\.batch_size'"):
        resolve(Registry(), settings=["batch_size=8"], sugar={"trainer": {"name": "sft"}})
