"""Failures of a published training diary, made on purpose in runs of the pocket model; each is named."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_core.training.forward import completion_logprobs
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_pocket import weights_path

from .conftest import ONLINE, Train


class FaultyEngineConfig(ComponentConfig):
    """The native engine with one of the diary's mistakes."""

    name: str = "faulty"
    fault: Literal["raw_logprobs", "pad_id", "fixed_seed"] = "raw_logprobs"

    def build(self, ctx: BuildContext) -> FaultyEngine:
        return FaultyEngine(NativeEngine(ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context), self.fault)


class FaultyEngine:
    def __init__(self, engine: NativeEngine, fault: str) -> None:
        self.engine, self.fault = engine, fault

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        if self.fault == "fixed_seed":
            requests = [replace(r, seed=42) for r in requests]
        rollouts = self.engine.generate(requests, sampling, policy_version)
        return [getattr(self, self.fault)(r) for r in rollouts]

    def fixed_seed(self, rollout: Rollout) -> Rollout:
        return rollout

    @torch.no_grad()
    def raw_logprobs(self, rollout: Rollout) -> Rollout:
        """Drawn at the temperature asked for, reported at temperature 1."""
        out = completion_logprobs(self.engine.model, [rollout.prompt_ids], [rollout.completion_ids])
        return replace(rollout, logprobs_T=out.logprobs_BT[0].numpy())

    def pad_id(self, rollout: Rollout) -> Rollout:
        """An ordinary token is taken for padding: from there on every logprob is 0."""
        taken = self.engine.tokenizer.encode("1", add_special_tokens=False)[-1]
        ids = np.array(rollout.completion_ids)
        return replace(rollout, logprobs_T=np.where(np.cumsum(ids == taken) > 0, 0, rollout.logprobs_T))


FAULTY = {("rollout", "faulty"): f"{__name__}:FaultyEngineConfig"}


WHOLE = {"name": "pocket", "subset": "arithmetic", "limit": None}
"""All prompts: on the 64 of the other tests the drift stays within its error."""


@pytest.fixture
def named(train: Train, caplog: pytest.LogCaptureFixture) -> Any:
    """``named(change)``: the warnings of a short run, and its summary."""

    def run(trainer: Mapping[str, Any] | None = None, **change: Any) -> tuple[str, Mapping[str, Any]]:
        with caplog.at_level(logging.WARNING, "rlhf"):
            summary = train(
                ONLINE,
                change={"monitors": ["health"], "trainer": {"eval_samples": 0, **(trainer or {})}, **change},
                components=FAULTY,
            )
        return "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("rlhf")), summary

    return run


def engine(fault: str) -> dict[str, str]:
    return {"name": "faulty", "fault": fault}


def test_nothing_is_said_of_a_sound_run(named: Any) -> None:
    assert named({"sampling": {"temperature": 0.6}})[0] == ""


def test_another_temperature_in_sampler_and_trainer(named: Any) -> None:
    said, summary = named(
        {"sampling": {"temperature": 0.6}, "drift_check": "warn"}, rollout=engine("raw_logprobs"), dataset=WHOLE
    )
    assert "the rollout engine's logprobs differ from the trainer's" in said
    assert "another sampling temperature" in said
    assert "kl_spike: kl is" in said
    assert "before any update" in said
    assert "--set trainer.sampling.temperature=1.0 (now 0.6)" in said
    assert summary["dropped"]["drift_warnings"] == 1


def test_a_token_that_is_taken_for_padding(named: Any) -> None:
    said, summary = named(
        {"rollout_batch_size": 16, "kl": {"coefficient": 0}, "drift_check": "warn"},
        rollout=engine("pad_id"),
        dataset=WHOLE,
    )
    assert "the rollout engine's logprobs differ from the trainer's" in said
    assert "ratio_drift: " in said
    assert summary["dropped"]["drift_warnings"] == 1


def test_one_seed_for_every_request(named: Any) -> None:
    said, summary = named(rollout=engine("fixed_seed"))
    assert "identical: " in said
    assert "uses one fixed seed instead of each request's own" in said
    assert summary["dropped"]["constant_groups"] == 6, "and nothing was learnt"


def test_the_chat_template_of_an_instruct_model_on_a_base_model(named: Any, tmp_path: Path) -> None:
    """As published: the base model's tokenizer carries the template, its end token is another one."""
    folder = tmp_path / "base"
    shutil.copytree(weights_path(), folder)
    template = folder / "chat_template.jinja"
    turn = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} ~{% endfor %}assistant:"
    template.write_text(turn)
    said, _ = named({"steps": 1}, model={"path": str(folder)})
    assert "the chat template closes a turn with '~" in said
    assert "--set model.prompt_format=raw" in said


SHARP = {"steps": 8, "rollout_batch_size": 32}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "word"),
    [
        ({"warmup_steps": 0, "eps": 1e-12}, "--set trainer.optimizer.eps=1e-05 (now 1e-12)"),
        ({"warmup_steps": 30, "eps": 1e-4}, ""),
    ],
)
def test_a_small_adam_epsilon_without_warm_up(named: Any, optimizer: dict[str, float], word: str) -> None:
    said, _ = named({**SHARP, "optimizer": {"learning_rate": 0.01, **optimizer}})
    assert ("kl_spike: kl is" in said) is bool(word)
    assert word in said
    assert not word or "--set trainer.optimizer.warmup_steps=30 (now 0)" in said


@pytest.mark.slow
def test_stop_strings_that_miss(named: Any) -> None:
    """Banning the end token makes the pocket model go on after its answer, as a base model does."""
    said, _ = named({"sampling": {"stop": ["Question:"], "min_tokens": 24, "max_tokens": 24}})
    assert "of the completions were cut off at max_tokens. Likely cause: no stop string ends them" in said
    assert "--set trainer.sampling.stop=[...] (now ('Question:',))" in said
