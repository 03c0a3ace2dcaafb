"""A student's tests of the primitives: numbers worked out by hand, and plain torch on the pocket model."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.training.forward import completion_logprobs
from rlhf_core.types.batches import TokenBatch
from rlhf_core.types.rollouts import Score
from rlhf_plugin_grpo import functional as F
from rlhf_plugin_grpo.advantage import GroupNorm
from rlhf_plugin_grpo.config import GroupNormConfig
from rlhf_plugin_grpo.functional.surrogate import clipped_surrogate
from rlhf_plugin_grpo.loss import GrpoClip
from rlhf_testing.samples import make_rollouts

from . import adapters as run

PROMPTS = ["What is 2 + 2?", "Hi", "Say something long, please."]
OUTPUTS = ["The answer is 4.", "Hello there, friend!", "!"]


@pytest.fixture(scope="module")
def pocket() -> Any:
    """The pocket model and its tokenizer."""
    return load_policy(ModelConfig(path="pocket"))


def test_tokens_are_joined_shifted_and_masked(pocket: Any) -> None:
    tokenizer = pocket.tokenizer
    prompts = [tokenizer.encode(t) for t in PROMPTS]
    outputs = [tokenizer.encode(t, add_special_tokens=False) for t in OUTPUTS]
    batch = run.run_tokenize_prompt_and_output(PROMPTS, OUTPUTS, tokenizer)
    width = max(len(p) + len(o) for p, o in zip(prompts, outputs)) - 1
    assert {k: tuple(v.shape) for k, v in batch.items()} == dict.fromkeys(
        ("input_ids", "labels", "response_mask"), (3, width)
    )
    for row, (prompt, output) in enumerate(zip(prompts, outputs)):
        whole = prompt + output
        assert batch["labels"][row, : len(whole) - 1].tolist() == whole[1:]
        assert batch["input_ids"][row, : len(whole) - 1].tolist() == whole[:-1]
        assert batch["labels"][row][batch["response_mask"][row].bool()].tolist() == output
        assert set(batch["labels"][row, len(whole) - 1 :].tolist()) <= {tokenizer.pad_token_id}


def test_an_output_token_that_looks_like_padding_counts(pocket: Any) -> None:
    tokenizer = pocket.tokenizer
    pad = tokenizer.decode([tokenizer.pad_token_id])
    batch = run.run_tokenize_prompt_and_output(["Hi", "Hi"], ["ok" + pad, "a longer output"], tokenizer)
    kept = batch["labels"][0][batch["response_mask"][0]].tolist()
    assert kept == [*tokenizer.encode("ok", add_special_tokens=False), tokenizer.pad_token_id]


def test_entropy_of_known_distributions() -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [1000.0, 0.0, 0.0, 0.0], [math.log(3.0), 0.0, -1e9, -1e9]]])
    three_to_one = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert run.run_compute_entropy(logits)[0].tolist() == pytest.approx([math.log(4), 0.0, three_to_one], abs=1e-6)


def test_log_probs_and_entropy_are_those_of_the_models_logits(pocket: Any) -> None:
    batch = run.run_tokenize_prompt_and_output(PROMPTS, OUTPUTS, pocket.tokenizer)
    output = run.run_get_response_log_probs(pocket.model, batch["input_ids"], batch["labels"], True)
    logp = pocket.model(batch["input_ids"]).logits.log_softmax(-1)
    want = logp.gather(-1, batch["labels"][..., None])[..., 0]
    torch.testing.assert_close(output["log_probs"], want)
    torch.testing.assert_close(output["token_entropy"], -(logp.exp() * logp).sum(-1))
    assert output["log_probs"].requires_grad
    assert set(run.run_get_response_log_probs(pocket.model, batch["input_ids"], batch["labels"], False)) == {
        "log_probs"
    }


def test_log_probs_are_those_the_trainers_compute(pocket: Any) -> None:
    batch = run.run_tokenize_prompt_and_output(PROMPTS, OUTPUTS, pocket.tokenizer)
    output = run.run_get_response_log_probs(pocket.model, batch["input_ids"], batch["labels"], True)
    outputs = [pocket.tokenizer.encode(t, add_special_tokens=False) for t in OUTPUTS]
    trainers = completion_logprobs(pocket.model, [pocket.tokenizer.encode(t) for t in PROMPTS], outputs, entropy=True)
    assert trainers.entropy_BT is not None
    for ours, theirs in ((output["log_probs"], trainers.logprobs_BT), (output["token_entropy"], trainers.entropy_BT)):
        torch.testing.assert_close(ours[batch["response_mask"]], theirs[trainers.mask_BT], atol=1e-5, rtol=1e-5)


VALUES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 60.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("dim", "mean", "total"),
    [
        (None, 7 / 3, 7.0),
        (0, [2.5, 2.0, math.nan], [5.0, 2.0, 0.0]),
        (1, [1.5, 4.0], [3.0, 4.0]),
        (-1, [1.5, 4.0], [3.0, 4.0]),
    ],
)
@pytest.mark.parametrize("mask", [MASK, MASK.bool(), MASK.float()])
def test_masked_mean_and_sum_over_a_constant(dim: int | None, mean: Any, total: Any, mask: torch.Tensor) -> None:
    assert run.run_masked_mean(VALUES, mask, dim).tolist() == pytest.approx(mean, nan_ok=True)
    want = (torch.tensor(total) / 4).tolist()
    assert run.run_masked_normalize(VALUES, mask, dim=dim, normalize_constant=4.0).tolist() == pytest.approx(want)


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_the_mean_of_nothing_is_that_of_an_empty_tensor(dim: int | None) -> None:
    nothing = run.run_masked_mean(torch.ones(2, 3), torch.zeros(2, 3), dim)
    assert nothing.isnan().all()
    assert nothing.shape == (torch.ones(2, 3).mean() if dim is None else torch.ones(2, 3).mean(dim)).shape


def test_a_response_without_tokens_takes_no_part_in_a_step() -> None:
    """A step of one's own goes on where the mean alone is NaN: the response counts as 0, as in the trainers."""
    log_probs = torch.zeros(2, 3, requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    loss, _ = run.run_grpo_microbatch_train_step(
        policy_log_probs=log_probs,
        response_mask=mask,
        gradient_accumulation_steps=1,
        loss_type="reinforce_with_baseline",
        advantages=torch.ones(2, 1),
    )
    assert loss.isfinite()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[-0.25, -0.25, 0.0], [0.0, 0.0, 0.0]]


def test_length_normalisation_decides_each_tokens_gradient() -> None:
    """The course's example: advantages 2, responses of 4 and of 7 tokens."""
    ratio = torch.ones(2, 7, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1] * 7])
    by_mean = run.run_masked_mean(2 * ratio, mask, 1)
    by_constant = run.run_masked_normalize(2 * ratio, mask, dim=1, normalize_constant=7)
    assert by_mean.tolist() == [2.0, 2.0]
    assert by_constant.tolist() == pytest.approx([8 / 7, 2.0])
    grads = [torch.autograd.grad(v.mean(), ratio)[0] for v in (by_mean, by_constant)]
    assert grads[0][:, 0].tolist() == pytest.approx([1 / 4, 1 / 7])
    assert grads[1][:, 0].tolist() == pytest.approx([1 / 7, 1 / 7])
    assert grads[0][0, 4:].abs().sum() == grads[1][0, 4:].abs().sum() == 0


def reward(response: str, truth: str) -> dict[str, float]:
    right = float(response == truth)
    return {"reward": right, "format_reward": 1.0, "answer_reward": right}


def test_rewards_are_normalised_within_their_group() -> None:
    responses, truths = ["4", "5", "4", "6", "1", "1", "1", "1"], ["4"] * 4 + ["1"] * 4
    by_std, raw, meta = run.run_compute_group_normalized_rewards(reward, responses, truths, 4, 1e-6, True)
    assert raw.tolist() == [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    high = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert by_std.tolist() == pytest.approx([high, -high, high, -high, 0, 0, 0, 0])
    plain, _, _ = run.run_compute_group_normalized_rewards(reward, responses, truths, 4, 1e-6, False)
    assert plain.tolist() == [0.5, -0.5, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0]
    assert (meta["reward_mean"], meta["reward_min"], meta["reward_max"]) == (0.75, 0.0, 1.0)
    assert (meta["format_reward"], meta["answer_reward"], meta["constant_groups"]) == (1.0, 0.75, 0.5)


def test_both_spellings_of_the_keyword_are_the_same() -> None:
    groups = (["4", "5"], ["4", "4"], 2, 1e-6)
    one, _, _ = F.compute_group_normalized_rewards(reward, *groups, normalize_by_std=False)
    other, _, _ = F.compute_group_normalized_rewards(reward, *groups, normalized_by_std=False)
    assert one.tolist() == other.tolist() == [0.5, -0.5]
    for both in ({}, {"normalize_by_std": True, "normalized_by_std": True}):
        with pytest.raises(TypeError, match="normalized_by_std or normalize_by_std"):
            F.compute_group_normalized_rewards(reward, *groups, **both)


def test_functions_are_listed() -> None:
    assert {"masked_mean", "compute_grpo_clip_loss", "sft_microbatch_train_step"} <= set(dir(F))


def test_normalised_rewards_are_the_trainers_advantages() -> None:
    values = [0.1, 0.7, 0.2, 0.2, 3.0, -1.0, 0.5, 0.25]
    rollouts, ids = make_rollouts(2, 4)
    for scale, by_std in (("std", True), ("none", False)):
        config = GroupNormConfig(scale=scale)  # type: ignore[arg-type]
        theirs = GroupNorm(config).estimate(rollouts, [Score(v) for v in values], ids).values
        ours, _, _ = run.run_compute_group_normalized_rewards(
            lambda response, truth: {"reward": float(response)}, [str(v) for v in values], ["x"] * 8, 4, 1e-6, by_std
        )
        torch.testing.assert_close(ours, torch.tensor(theirs, dtype=torch.float32), rtol=0, atol=0)


def test_whole_groups_are_asked_for() -> None:
    with pytest.raises(ValueError, match="not whole groups of 4"):
        run.run_compute_group_normalized_rewards(reward, ["a"] * 6, ["a"] * 6, 4, 1e-6, True)
    with pytest.raises(ValueError, match="ground truths"):
        run.run_compute_group_normalized_rewards(reward, ["a"] * 4, ["a"], 4, 1e-6, True)


LOGP = [[math.log(0.5), math.log(0.25)], [math.log(0.1), math.log(0.2)]]
OLD = [[math.log(0.25), math.log(0.25)], [math.log(0.2), math.log(0.1)]]
ADVANTAGES = torch.tensor([[2.0], [-1.0]])
"""Ratios: [[2, 1], [0.5, 2]]."""


def test_naive_loss() -> None:
    output = run.run_compute_naive_policy_gradient_loss(ADVANTAGES, torch.tensor(LOGP))
    assert output.tolist() == [pytest.approx([-2 * LOGP[0][0], -2 * LOGP[0][1]]), pytest.approx(LOGP[1])]
    with pytest.raises(ValueError, match=r"\[B, 1\]"):
        run.run_compute_naive_policy_gradient_loss(ADVANTAGES[:, 0], torch.tensor(LOGP))


@pytest.mark.parametrize(
    ("cliprange", "loss", "clipped"),
    [
        (0.2, [[-2.4, -2.0], [0.8, 2.0]], [[True, False], [True, False]]),
        (10.0, [[-4.0, -2.0], [0.5, 2.0]], [[False, False], [False, False]]),
    ],
)
def test_clipped_loss(cliprange: float, loss: Any, clipped: Any) -> None:
    new, old = torch.tensor(LOGP, requires_grad=True), torch.tensor(OLD, requires_grad=True)
    output, meta = run.run_compute_grpo_clip_loss(ADVANTAGES, new, old, cliprange)
    torch.testing.assert_close(output, torch.tensor(loss))
    assert meta["clipped"].tolist() == clipped
    output.sum().backward()
    assert old.grad is None
    assert new.grad is not None
    assert (new.grad == 0).tolist() == clipped


def test_clipped_loss_is_the_trainers() -> None:
    torch.manual_seed(0)
    new, old, advantages = torch.randn(4, 6), torch.randn(4, 6), torch.randn(4, 1)
    for low, high in ((0.2, 0.2), (0.2, 0.28)):
        ratio = (new - old).exp()
        ours, clipped = clipped_surrogate(ratio, advantages, low, high)
        mask = torch.ones_like(new, dtype=torch.bool)
        theirs = GrpoClip(low, high)(TokenBatch(new, mask, advantages.expand(4, 6), old))
        torch.testing.assert_close(ours, theirs.loss, rtol=0, atol=0)
        assert int(clipped.sum()) == int(theirs.metrics["clip_fraction"][0])


def test_the_wrapper_chooses() -> None:
    logp, old, raw = torch.tensor(LOGP), torch.tensor(OLD), torch.tensor([[1.0], [0.0]])
    everything = {
        "policy_log_probs": logp,
        "raw_rewards": raw,
        "advantages": ADVANTAGES,
        "old_log_probs": old,
        "cliprange": 0.2,
    }
    wanted = {
        "no_baseline": -raw * logp,
        "reinforce_with_baseline": -ADVANTAGES * logp,
        "grpo_clip": run.run_compute_grpo_clip_loss(ADVANTAGES, logp, old, 0.2)[0],
        "grpo_no_clip": -ADVANTAGES * (logp - old).exp(),
    }
    needs = {
        "no_baseline": ["raw_rewards"],
        "reinforce_with_baseline": ["advantages"],
        "grpo_clip": ["advantages", "old_log_probs", "cliprange"],
        "grpo_no_clip": ["advantages", "old_log_probs"],
    }
    for kind, want in wanted.items():
        torch.testing.assert_close(run.run_compute_policy_gradient_loss(loss_type=kind, **everything)[0], want)
        for name in needs[kind]:
            with pytest.raises(AssertionError, match=name):
                run.run_compute_policy_gradient_loss(loss_type=kind, **{**everything, name: None})
    words = run.run_compute_policy_gradient_loss(loss_type="GRPO-No-Clip", **everything)[0]
    torch.testing.assert_close(words, wanted["grpo_no_clip"], rtol=0, atol=0)
    with pytest.raises(ValueError, match="grpo_clip"):
        run.run_compute_policy_gradient_loss(loss_type="ppo", **everything)


def test_grpo_step_means_over_tokens_then_sequences_then_steps() -> None:
    logp = torch.tensor(LOGP, requires_grad=True)
    loss, meta = run.run_grpo_microbatch_train_step(
        policy_log_probs=logp,
        response_mask=torch.tensor([[1, 1], [1, 0]]),
        gradient_accumulation_steps=2,
        loss_type="grpo_clip",
        advantages=ADVANTAGES,
        old_log_probs=torch.tensor(OLD),
        cliprange=0.2,
    )
    assert float(loss) == pytest.approx(((-2.4 - 2.0) / 2 + 0.8) / 2 / 2)
    assert float(meta["clip_fraction"]) == pytest.approx(2 / 3)
    assert logp.grad is not None
    assert logp.grad.flatten().tolist() == pytest.approx([0.0, -2.0 / 8, 0.0, 0.0])


@pytest.mark.parametrize("kind", ["no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip"])
def test_accumulated_grpo_steps_are_one_large_one(kind: str) -> None:
    torch.manual_seed(1)
    mask = torch.arange(7)[None, :] < torch.tensor([7, 3, 5, 1, 2, 6, 4, 7])[:, None]
    old, values = -torch.rand(8, 7), torch.randn(8, 1)
    grads = []
    for steps in (1, 4):
        logp = (old + 0.3 * torch.sin(torch.arange(56.0).reshape(8, 7))).requires_grad_()
        for rows in torch.arange(8).chunk(steps):
            run.run_grpo_microbatch_train_step(
                policy_log_probs=logp[rows],
                response_mask=mask[rows],
                gradient_accumulation_steps=steps,
                loss_type=kind,
                raw_rewards=values[rows],
                advantages=values[rows],
                old_log_probs=old[rows],
                cliprange=0.2,
            )
        grads.append(logp.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_sft_step() -> None:
    logp = torch.tensor(LOGP, requires_grad=True)
    mask = torch.tensor([[1, 1], [0, 1]])
    loss, meta = run.run_sft_microbatch_train_step(logp, mask, 2, normalize_constant=5.0)
    total = -(LOGP[0][0] + LOGP[0][1] + LOGP[1][1])
    assert float(loss) == pytest.approx(total / 2 / 2 / 5)
    assert float(meta["token_loss"]) == pytest.approx(total / 3)
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, -mask.float() / 20)
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        run.run_sft_microbatch_train_step(logp, mask, 0)


def test_dpo_loss_of_a_pair(pocket: Any) -> None:
    tokenizer, policy, reference = pocket.tokenizer, copy.deepcopy(pocket.model), pocket.model
    prompt, chosen, rejected = "What is 2 + 2?", " 4", " I do not know"
    same = run.run_compute_per_instance_dpo_loss(policy, reference, tokenizer, 0.5, prompt, chosen, rejected)
    assert float(same.detach()) == pytest.approx(math.log(2), abs=1e-6)
    with torch.no_grad():
        policy.get_output_embeddings().weight.mul_(1.1)

    def total(model: Any, text: str) -> float:
        ids = tokenizer.encode(prompt)
        more = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        logp = model(torch.tensor([ids + more])).logits[0].log_softmax(-1)
        return sum(float(logp[len(ids) - 1 + n, t].detach()) for n, t in enumerate(more))

    margin = (total(policy, chosen) - total(reference, chosen)) - (total(policy, rejected) - total(reference, rejected))
    loss = run.run_compute_per_instance_dpo_loss(policy, reference, tokenizer, 0.5, prompt, chosen, rejected)
    assert float(loss.detach()) == pytest.approx(-math.log(1 / (1 + math.exp(-0.5 * margin))), rel=1e-4)
    loss.backward()
    assert all(p.grad is None for p in reference.parameters())
    assert any(bool(p.grad.abs().sum() > 0) for p in policy.parameters() if p.grad is not None)
