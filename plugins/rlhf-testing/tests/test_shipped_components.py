"""Every component that this repository ships conforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rlhf_testing as kit
from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.plugins.registry import Registry

NEEDS_A_MODEL = {
    "rlhf-plugin-algorithms/sft_mix",
    "rlhf-plugin-health/keep_best",  # whose checkpoints it keeps
    "rlhf-plugin-episodes/multi_turn",
    *(f"rlhf-plugin-agents/{n}" for n in ("react", "zero_shot", "scratchpad", "plan_and_execute", "multi_agent")),
    "rlhf-plugin-agents/code_executor",
    "rlhf-plugin-agents/agent_suite",
    "rlhf-plugin-reward/bradley_terry",
    "rlhf-plugin-reward/ensemble",
    "rlhf-plugin-rubric/rubric_model",
    "rlhf-plugin-tts/audio_reward_model",
    "rlhf-plugin-tts/speaker_similarity",
    "rlhf-plugin-tts/utmos22",
}
"""Components with no default to run on; their own tests run them, as those of components with required settings."""
PRESETS = {("trainer", n) for n in ("cispo", "dapo", "dr_grpo", "grpo_paper", "gspo", "reinforce_pp", "rloo")}
"""Trainers that are grpo with other defaults."""
REQUIRED = {
    "path": "somewhere",
    "url": "http://127.0.0.1:9",
    "to": "elsewhere",
    "expression": "level > 2",
    "pattern": "[0-9]+",
    "task": "chain_sum",
    "check": "check.py",
    "parts": {"rules": {"reward": "programmatic"}},
    "of": "programmatic",
    "tool": "calculator",
    "mcp": {"server": "import:somewhere:server"},
}
"""Values of required settings."""
OF_VERDICTS = {f"rlhf-plugin-grpo/{name}" for name in ("keep", "max_rl", "pass_at_k")}
"""Estimators of scores that are verdicts, or that leave completions out; the plugin's tests have their formulas."""
OF_A_MICRO_BATCH = {"rlhf-plugin-grpo/clip_cov", "rlhf-plugin-grpo/kl_cov"}
"""Losses that take a micro-batch's covariance, as published, and so depend on its size; tests/test_trust_losses.py
of the plugin compares them with verl's."""
NEEDS_A_GREEDY_COMPLETION = {"rlhf-plugin-grpo/remax"}
"""Estimators whose baseline the trainer samples; tests/test_remax.py of the plugin runs them."""
NEEDS_A_SERVICE = {
    "rlhf-plugin-wandb/wandb",
    "rlhf-plugin-judge/judge",
    "rlhf-plugin-verifiers/remote",
    "rlhf-plugin-rubric/rubric",
    "rlhf-plugin-agents/web_search",
    "rlhf-plugin-agents/mcp",
}
BY_CHANCE = {"rlhf-plugin-composite/random"}
"""Whose scores are not a matter of the completion, which is what they are for."""
PASSED_IN = "rlhf-core/python"
"""Objects of the caller, which no configuration alone stands for; tests/python_api runs them."""
NEEDS_AN_EXTRA = {"rlhf-plugin-verifiers/reasoning_gym": "reasoning_gym", "rlhf-plugin-tts/distillmos": "distillmos"}
"""Components -> the module that an extra of their distribution installs."""
CHECKS: dict[str, Callable[..., None]] = {
    "loss": kit.check_loss,
    "optimizer": kit.check_optimizer,
    "advantage": kit.check_advantage,
    "algorithm": kit.check_algorithm,
    "reward": kit.check_reward,
    "verifier": kit.check_verifier,
    "agent": kit.check_agent,
    "dataset": kit.check_dataset,
    "tracker": kit.check_tracker,
    "monitor": kit.check_monitor,
    "trainer": kit.check_trainer,
    "environment": kit.check_environment,
    "tool": kit.check_tool,
}
ENTRIES = [
    e for e in Registry(disabled=()).entries() if e.distribution.startswith("rlhf-") and e.qualified != PASSED_IN
]


def required(entry: Any) -> dict[str, Any]:
    fields = Registry(disabled=()).load(entry.kind, entry.qualified).model_fields
    values = {**REQUIRED, "of": "pocket"} if entry.kind == "dataset" else REQUIRED
    return {name: values[name] for name, field in fields.items() if field.is_required()}


RUN = [
    e
    for e in ENTRIES
    if e.kind in CHECKS
    and e.qualified
    not in NEEDS_A_MODEL | NEEDS_A_SERVICE | BY_CHANCE | OF_VERDICTS | OF_A_MICRO_BATCH | NEEDS_A_GREEDY_COMPLETION
    and not required(e)
]


def load(kind: str, name: str, **options: Any) -> ComponentConfig:
    registry = Registry(disabled=())
    cls = registry.load(kind, name)
    if kind == "reward" and "workers" in cls.model_fields:
        options = {"workers": 1, **options}  # the tests of rlhf-plugin-verifiers have more
    if kind == "trainer" and "teacher" in cls.model_fields:
        options = {"teacher": "pocket", **options}
    return cls.model_validate({"name": cls.model_fields["name"].default, **options}, context={"registry": registry})


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [pytest.param(e, marks=pytest.mark.long if (e.kind, e.name) in PRESETS else ()) for e in RUN],
    ids=lambda e: f"{e.kind}-{e.name}",
)
def test_component_conforms(entry: Any) -> None:
    if entry.qualified in NEEDS_AN_EXTRA:
        pytest.importorskip(NEEDS_AN_EXTRA[entry.qualified])
    CHECKS[entry.kind](load(entry.kind, entry.qualified))


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e not in RUN], ids=lambda e: f"{e.kind}-{e.name}")
def test_config_conforms(entry: Any) -> None:
    kit.check_config(load(entry.kind, entry.qualified, **required(entry)), entry.kind)


def test_options_of_shipped_losses_conform() -> None:
    kit.check_loss(load("loss", "grpo_clip", clip_range_high=0.28))
    kit.check_loss(load("loss", "rlhf-plugin-reward/bradley_terry", label_smoothing=0.1))
    kit.check_advantage(load("advantage", "group_norm", scale="none"))
    kit.check_dataset(load("dataset", "pocket", subset="arithmetic"))
    kit.check_dataset(load("dataset", "pocket"), read="pairs")
    kit.check_dataset(load("dataset", "pocket"), read="demonstrations")
