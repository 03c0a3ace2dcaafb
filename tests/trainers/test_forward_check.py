"""A run notices that an optimisation changes its model's results, says which, and goes on without it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers import packing
from rlhf_core.models.load import load_policy
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.forward import ForwardOptions, completion_logprobs, structure
from rlhf_core.training.forward_check import choose_samples, forward_check
from rlhf_core.training.rollout_batch import TrainingSample

from .conftest import ONLINE, Train

FAST = {"trainer": {"steps": 2, "rollout_batch_size": 16, "eval_samples": 0, "kl": {"coefficient": 0.0}}}


@pytest.fixture
def leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed attention that looks at everything before it in the row, once models have been examined."""
    real = packing.pack

    def leaky(prompts: Any, completions: Any, share: bool) -> packing.Row:
        row = real(prompts, completions, share)
        if len(row.ids) < 22:  # the few tokens that a model is examined with
            return row
        segments = tuple(packing.Segment(s.own, (0, s.own[0])) for s in row.segments)
        return packing.Row(row.ids, row.positions, segments, row.target_positions)

    monkeypatch.setattr(packing, "pack", leaky)


def items() -> list[TrainingSample]:
    generator = torch.Generator().manual_seed(0)

    def draw(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(6, 700, (n,), generator=generator).tolist())

    prompts = [draw(9), draw(12)]
    empty: Any = torch.zeros(0).numpy()
    return [TrainingSample(f"i{n}", prompts[n % 2], draw(4 + 3 * n), empty, empty) for n in range(6)]


def test_all_is_well_on_a_sound_model() -> None:
    policy = load_policy(ModelConfig()).model
    chosen = choose_samples(items())
    assert [i.name for i in chosen] == ["i0", "i4", "i1", "i5"]
    assert forward_check(policy, chosen, 0.8, ForwardOptions()) == []
    assert all(p.grad is None for p in policy.parameters())


def test_only_what_differs_is_found(leak: None) -> None:
    policy = load_policy(ModelConfig()).model
    assert structure(policy).pack
    found = forward_check(policy, choose_samples(items()), 1.0, ForwardOptions())
    assert [f.name for f in found] == ["packing"]
    assert found[0].nats > 0.1
    assert found[0].gradient > 0.01


def test_a_wrong_gradient_is_found_where_logprobs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_core.models.layers import chunked_head

    real = chunked_head._logit_gradient
    monkeypatch.setattr(chunked_head, "_logit_gradient", lambda *args: real(*args) * 1.1)
    found = forward_check(load_policy(ModelConfig()).model, choose_samples(items()), 1.0, ForwardOptions())
    assert [f.name for f in found] == ["chunked_head"]
    assert found[0].nats < 1e-4
    assert found[0].gradient == pytest.approx(0.1, abs=0.01)


def test_rounding_of_a_small_gradient_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a policy is certain, large terms cancel in the gradient of its logprobs and their rounding is what is left;
    a wrong gradient is still found."""
    from rlhf_core.models.layers import chunked_head

    policy, prompt = load_policy(ModelConfig()).model, (1, 3, 291, 266, 226, 29, 295, 226, 30, 36, 2, 4)
    samples = [replace(s, prompt_ids=prompt, completion_ids=(57, 77, 74, 314, 266, 226)) for s in items()[:4]]
    certain = completion_logprobs(policy, [prompt], [samples[0].completion_ids])  # What is 8 + 9? The answer is
    assert certain.logprobs_BT.min() > -1e-3
    assert forward_check(policy, samples, 1.0, ForwardOptions()) == []
    real = chunked_head._logit_gradient
    monkeypatch.setattr(chunked_head, "_logit_gradient", lambda *args: real(*args) * 1.1)
    assert [f.name for f in forward_check(policy, samples, 1.0, ForwardOptions())] == ["chunked_head"]


@pytest.mark.slow
def test_a_run_falls_back_and_trains_as_without(train: Train, leak: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train(ONLINE, change=FAST, run="leaky")
    assert "trainer.packing changes this model's results" in caplog.text
    plain = {"trainer": {**FAST["trainer"], "packing": "off", "self_check": False}}
    train(ONLINE, change=plain, run="plain")
    rows = [
        [
            {k: v for k, v in json.loads(line).items() if k != "time"}
            for line in (train.folder / run / "metrics.jsonl").open()
        ]
        for run in ("leaky", "plain")
    ]
    assert rows[0] == rows[1]
    summary = json.loads((train.folder / "leaky" / "summary.json").read_text())
    assert summary["dropped"]["switched_off_packing"] == 1
    assert "switched_off_share_prefix" not in summary["dropped"]


def test_the_check_can_be_left_out(train: Train, leak: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train(ONLINE, change={"trainer": {**FAST["trainer"], "steps": 1, "self_check": False}})
    assert "self-check" not in caplog.text


@pytest.mark.parametrize("word", ["auto", "on", "off"])
def test_packing_as_it_is_typed(word: str) -> None:
    """YAML makes booleans of two of the three words."""
    value = yaml.safe_load(f"packing: {word}")["packing"]
    assert OnlineTrainerConfig.model_validate({"name": "t", "packing": value}).packing == word
