"""Rows of the migration page that say "same": each has a measured case, or names something that cannot differ."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import Trainer, TrainingArguments

from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.plugins.strategy_protocols import NormPart
from rlhf_core.training.config import OptimizerSettings
from rlhf_core.training.learner import lr_factor
from rlhf_core.training.optimizer import prepare_to_learn

PLUGINS = Path(__file__).parents[2]
TABLE = PLUGINS / "rlhf-plugin-migrate" / "rlhf_plugin_migrate" / "tables" / "trl.yaml"
NAMES = {
    *("model_revision", "attn_implementation", "trust_remote_code", "dataset_config", "dataset_train_split"),
    *("dataset_test_split", "reward_model_path", "sft_model_path", "value_model_path", "seed", "full_determinism"),
    *("shuffle_dataset", "lora_r", "lora_alpha", "lora_target_modules"),
}
"""A path, a name, a switch of a library, or a setting that is handed to peft as it is."""
COUNTS = {
    *("num_train_epochs", "generation_batch_size", "num_iterations", "num_ppo_epochs", "eval_steps", "save_steps"),
    *("save_total_limit", "top_p", "top_k", "min_p", "temperature"),
}
"""A count or a sampler's setting, of which test_convert.py checks the target."""
UNMEASURED = {"kl_coef", "kl_estimator", "mask_truncated_completions", "lam", "vf_coef", "cliprange_value", "rpo_alpha"}
"""Said by both libraries' documentation, and not yet run side by side; nothing may be added here."""


@cache
def parity_tests() -> str:
    return "".join(file.read_text() for file in sorted(PLUGINS.glob("*/tests/test_trl_*.py")))


def same_rows() -> list[tuple[str, ...]]:
    rows = yaml.safe_load(TABLE.read_text())["keys"]
    keys = [[row["key"]] if isinstance(row["key"], str) else row["key"] for row in rows if row.get("is") == "same"]
    return [tuple(key) for key in keys]


@pytest.mark.parametrize("keys", same_rows(), ids=lambda keys: keys[0])
def test_a_row_that_says_same_has_a_measured_case(keys: tuple[str, ...]) -> None:
    measured = any(re.search(rf"\b{key}\b", parity_tests()) for key in keys)
    assert measured or {*keys} & (NAMES | COUNTS | UNMEASURED), f"measure {keys[0]} against TRL, or say what differs"


def arguments(tmp_path: Path, **settings: Any) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **settings)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3))


def theirs(tmp_path: Path, updates: int, **settings: Any) -> tuple[list[float], list[torch.Tensor]]:
    """Rates and weights of a run of transformers' optimizer, on which TRL's trainers stand."""
    model, args = network(), arguments(tmp_path, **settings)
    trainer = Trainer(model, args)
    trainer.create_optimizer_and_scheduler(updates)
    assert trainer.optimizer is not None
    assert trainer.lr_scheduler is not None
    rates: list[float] = []
    for update in range(updates):
        loss(model, update).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
        model.zero_grad()
    return rates, [p.detach() for p in model.parameters()]


def ours(updates: int, **settings: Any) -> tuple[list[float], list[torch.Tensor]]:
    chosen, model = OptimizerSettings(**settings), network()
    prepared, optimizer = prepare_to_learn(LocalStrategy(), model, chosen)
    factor, rates = lr_factor(chosen, updates), list[float]()
    for update in range(updates):
        loss(prepared, update).backward()
        rates.append(factor(update) * chosen.learning_rate)
        optimizer.set_rates(factor(update), factor(update))
        optimizer.step([NormPart("grad_norm", prepared)], chosen.max_grad_norm)
    return rates, [p.detach() for p in prepared.parameters()]


def loss(model: torch.nn.Module, update: int) -> torch.Tensor:
    return (model(torch.arange(update, update + 3) % 7) ** 2).sum() * 3


PAIRS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"learning_rate": 0.01}, {"learning_rate": 0.01}),
    ({"weight_decay": 0.3}, {"weight_decay": 0.3}),
    ({"adam_epsilon": 0.1}, {"eps": 0.1}),
    ({"max_grad_norm": 0.01}, {"max_grad_norm": 0.01}),
    ({"adam_beta1": 0.5, "adam_beta2": 0.7}, {"betas": (0.5, 0.7)}),
    ({"lr_scheduler_type": "linear"}, {"schedule": "linear"}),
    ({"lr_scheduler_type": "cosine"}, {"schedule": "cosine"}),
]


@pytest.mark.parametrize(("trl", "mine"), PAIRS, ids=lambda one: next(iter(one)))
def test_the_optimizer_makes_the_same_updates(tmp_path: Path, trl: dict[str, Any], mine: dict[str, Any]) -> None:
    plain = {"learning_rate": 0.02, "lr_scheduler_type": "constant", "weight_decay": 0.0}
    rates, weights = theirs(tmp_path, 7, **{**plain, **trl})
    our_rates, our_weights = ours(7, **{"learning_rate": 0.02, "betas": (0.9, 0.999), **mine})
    assert our_rates == pytest.approx(rates, rel=1e-12)
    torch.testing.assert_close(our_weights, weights, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [1, 2, 5])
def test_warm_up_is_one_update_ahead_of_theirs_as_the_page_says(tmp_path: Path, schedule: str, warmup: int) -> None:
    kind = "constant_with_warmup" if schedule == "constant" else schedule
    rates, _ = theirs(tmp_path, 9, learning_rate=0.002, lr_scheduler_type=kind, warmup_steps=warmup)
    our_rates, _ = ours(9, learning_rate=0.002, schedule=schedule, warmup_steps=warmup)
    assert our_rates[: warmup - 1] == pytest.approx(rates[1:warmup])
    assert our_rates[warmup - 1] == pytest.approx(0.002)
    assert our_rates[warmup:] == pytest.approx(rates[warmup:])
    (row,) = [row for row in yaml.safe_load(TABLE.read_text())["keys"] if row["key"] == "warmup_steps"]
    assert row["is"] == "other"
    assert "TRL's has 0" in row["note"]


@pytest.mark.parametrize(("share", "steps"), [(0.1, 25), (0.03, 100), (0.5, 7), (0.001, 10)])
def test_a_share_of_the_updates_is_rounded_as_theirs_is(tmp_path: Path, share: float, steps: int) -> None:
    from rlhf_plugin_migrate.case import Case
    from rlhf_plugin_migrate.rules import warmup

    targets: Any = None
    case = Case({"warmup_steps": share, "max_steps": steps}, "sft", targets, 1)
    assert warmup(case, "w", "warmup_steps", share) == {
        "w": arguments(tmp_path, warmup_steps=share).get_warmup_steps(steps)
    }
