"""Truncated sampling in training: the update's distribution is the one that was drawn from."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import rlhf_core
from rlhf_core.data import read_jsonl
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_core.training.forward import ALL, PLAIN, ForwardOptions
from rlhf_core.training.policy_module import LOGPROBS
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_plugin_native.decode import Decoder
from rlhf_plugin_native.decode_step import plain_step
from rlhf_plugin_native.sampling import StopStrings, truncate
from rlhf_plugin_schedule.truncation import TruncatedPolicy
from tests.resume.runs import cut_back

V = 7
TRUNCATIONS = [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.15}, {"top_k": 5, "top_p": 0.8, "temperature": 0.7}]


def tiny(kind: str = "llama") -> Any:
    torch.manual_seed(3)
    if kind == "gpt2":
        shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=64, initializer_range=0.5, **shape)).eval()
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=V, initializer_range=0.3, **shape)).eval()


def sampled(model: Any, params: SamplingParams, count: int = 6) -> list[TrainingSample]:
    """Completions of two prompts, drawn by the native engine's decoder."""
    prompts = [(1, 2, 3), (4, 1)]
    requests = [RolloutRequest("p", prompts[n % 2], n, seed=50 + n, max_tokens=2 + n % 3) for n in range(count)]

    def forward(ids: Any, mask: Any, positions: Any, cache: Any) -> Any:
        return plain_step(model, None, ids, mask, positions, cache)

    stop, device = StopStrings(None, ()), torch.device("cpu")
    with torch.no_grad():
        drawn = Decoder(forward, requests, params, [0], stop, model.config, device, max_concurrent=4).run()
    return [
        TrainingSample(
            f"p#{n}",
            request.prompt_ids,
            tuple(row.tokens),
            np.ones(len(row.tokens), bool),
            np.zeros(len(row.tokens), np.float32),
            row.logprobs_T,
            support=row.support,
        )
        for n, (request, row) in enumerate(zip(requests, drawn, strict=True))
    ]


def logprobs(model: Any, samples: list[TrainingSample], temperature: float, options: ForwardOptions = ALL) -> Any:
    return TruncatedPolicy(model, temperature, options)._logprobs(samples, entropy=True)


@pytest.mark.parametrize("settings", TRUNCATIONS)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("min_tokens", [1, 3])
def test_the_trainer_computes_what_the_engine_drew_with(settings: dict[str, Any], kind: str, min_tokens: int) -> None:
    params = SamplingParams(max_tokens=4, min_tokens=min_tokens, support=True, **settings)
    model = tiny(kind)
    samples = sampled(model, params)
    with torch.no_grad():
        rows = TruncatedPolicy(model, params.temperature).measure(samples, LOGPROBS)
    for sample, row in zip(samples, rows, strict=True):
        assert sample.behaviour_T is not None
        np.testing.assert_allclose(row.logprobs_T, sample.behaviour_T, atol=2e-6)
        assert sample.support is not None
        assert sample.support[: len(sample.completion_ids)].min() >= 1
    sizes = np.concatenate([s.support[: len(s.completion_ids)] for s in samples if s.support is not None])
    assert sizes.min() < V, "something was excluded"


def gradient(model: Any, value: torch.Tensor) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()), allow_unused=False)])


@pytest.mark.parametrize("settings", TRUNCATIONS)
def test_the_policy_gradient_is_that_of_every_completion_that_can_be_drawn(settings: dict[str, Any]) -> None:
    """By exact enumeration: the mean of R grad log pi over what can be drawn is the gradient of the expected reward."""
    params, model, prompt = SamplingParams(max_tokens=2, **settings), tiny(), (1, 2, 3)
    reward = {pair: float(np.sin(3 * pair[0] + pair[1])) for pair in itertools.product(range(V), repeat=2)}
    ids = torch.tensor([[*prompt, first] for first in range(V)])
    scaled_AV2 = model(ids).logits[:, -2:] / params.temperature  # after the prompt, and after each first token
    left_AV2 = torch.stack([truncate(scaled_AV2[:, n].detach(), params).isfinite() for n in range(2)], 1)
    probs_AV2 = scaled_AV2.masked_fill(~left_AV2, -torch.inf).softmax(-1)
    chance = {pair: probs_AV2[0, 0, pair[0]] * probs_AV2[pair[0], 1, pair[1]] for pair in reward}
    possible = [pair for pair in reward if chance[pair].item() > 0]
    assert len(possible) < V * V
    expected = torch.stack([chance[pair] * reward[pair] for pair in reward])
    wanted = gradient(model, expected.sum())

    def support(pair: tuple[int, int]) -> np.ndarray[Any, Any]:
        ids = [np.flatnonzero(left_AV2[0, 0]), np.flatnonzero(left_AV2[pair[0], 1])]
        return np.concatenate([np.array([len(i) for i in ids]), *ids]).astype(np.int32)

    zeros = np.zeros(2, np.float32)
    samples = [TrainingSample("p", prompt, p, zeros == 0, zeros, support=support(p)) for p in possible]
    logprobs_BT = logprobs(model, samples, params.temperature).logprobs_BT
    chances = logprobs_BT.sum(-1).exp()
    assert chances.sum().item() == pytest.approx(1.0, abs=1e-5), "these are all completions that can be drawn"
    weights = torch.tensor([reward[p] for p in possible]) * chances.detach()
    estimated = gradient(model, (weights * logprobs_BT.sum(-1)).sum())
    torch.testing.assert_close(estimated, wanted, atol=2e-6, rtol=1e-4)
    assert estimated.norm() > 1e-3


def test_optimisations_and_neighbours_change_nothing() -> None:
    params = SamplingParams(max_tokens=4, top_k=3, temperature=0.8, support=True)
    model = tiny()
    samples = sampled(model, params)
    masked = replace(samples[0], mask_T=np.zeros(len(samples[0].completion_ids), bool))
    samples = [masked, *samples[1:]]

    def total(options: ForwardOptions, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [logprobs(model, samples[i : i + size], 0.8, options) for i in range(0, len(samples), size)]
        values = torch.cat([part.logprobs_BT[part.mask_BT] for part in parts])
        entropies = torch.cat([part.entropy_BT[part.mask_BT] for part in parts])
        weights = torch.cos(torch.arange(len(values)))
        return values, gradient(model, (weights * values + entropies).sum())

    whole = total(ALL, 6)
    for options, size in ((PLAIN, 6), (ALL, 1), (PLAIN, 2), *((ALL.without(name), 4) for name in ALL.names)):
        other = total(options, size)
        torch.testing.assert_close(other[0], whole[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(other[1], whole[1], atol=1e-5, rtol=0)


def train(folder: Path, steps: int, **settings: Any) -> Any:
    sizes = {"rollout_batch_size": 16, "group_size": 4, "eval_samples": 0, "optimizer": {"learning_rate": 3e-4}}
    return rlhf_core.train(
        "grpo",
        dataset="pocket/assistant",
        reward="random",
        settings={
            "trainer": {
                **sizes,
                "steps": steps,
                "sampling": {"max_tokens": 6, "temperature": 1.5, "top_k": 20, "top_p": 0.95},
            },
            "threads": 1,
            **settings,
        },
        run_dir=folder,
        progress=False,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    steps = [row for row in read_jsonl(folder / "metrics.jsonl") if "tokens_generated" in row]
    return [{key: value for key, value in row.items() if key != "time"} for row in steps]


def test_a_run_of_several_updates_with_a_reference(tmp_path: Path) -> None:
    several = {"trainer.train_batch_size": 8, "trainer.kl.coefficient": 0.1, "trainer.entropy_coefficient": 0.01}
    train(tmp_path / "run", 3, **several)
    first, *later = rows(tmp_path / "run")
    assert all(0 < row["drift/mean_abs"] < 1e-5 for row in (first, *later))
    assert abs(first["kl"]) < 1e-6, "the policy is the reference, truncated alike"
    assert all(row["kl"] > 0 for row in later)


@pytest.mark.slow
def test_rollouts_sampled_ahead_resume_with_what_they_were_drawn_from(tmp_path: Path) -> None:
    ahead = {"trainer.rollouts.max_staleness": 1, "trainer.checkpoint_every": 1, "trainer.keep_checkpoints": 9}
    train(tmp_path / "whole", 4, **ahead)
    cut_back(tmp_path / "whole", 2, tmp_path / "cut")
    rlhf_core.load_run(tmp_path / "cut").resume(progress=False)
    whole, cut = rows(tmp_path / "whole"), rows(tmp_path / "cut")
    assert cut == whole
    assert cut[-1]["importance/mean_ratio"] != 1.0


@pytest.mark.slow
def test_an_episode_is_trained_on_what_each_turn_was_drawn_from(tmp_path: Path) -> None:
    tools = {"environment.name": "lookup", "agent.name": "multi_turn", "reward.name": "environment"}
    sizes = {"rollout_batch_size": 8, "group_size": 4, "steps": 1, "eval_samples": 0}
    rlhf_core.train(
        "grpo",
        dataset="lookup",
        settings={
            "model.path": "pocket-tools",
            "trainer": {**sizes, "sampling": {"max_tokens": 200, "temperature": 1.2, "top_k": 8}},
            "threads": 1,
            **tools,
        },
        run_dir=tmp_path / "run",
        progress=False,
    )
    (row,) = rows(tmp_path / "run")
    assert 0 < row["drift/mean_abs"] < 1e-5
    assert row["turns/mean"] > 1


def test_an_engine_that_does_not_say_what_it_drew_from_is_refused(call: Callable[..., Any]) -> None:
    run = ("train", "--algo", "grpo", "--reward", "random", "--dataset", "pocket/arithmetic", "--dry-run")
    ran = call(*run, "--set", "trainer.sampling.top_p=0.9", "--set", "rollout.name=vllm")
    assert ran.code == 2
    assert "rollout engine 'vllm' does not say which tokens each draw could choose from" in ran.err
    assert "rollout.name=native" in ran.err


def test_nothing_is_recorded_where_nothing_asks() -> None:
    assert all(s.support is None for s in sampled(tiny(), SamplingParams(max_tokens=3, top_k=3)))
