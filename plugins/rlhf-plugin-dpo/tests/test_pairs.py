"""Pairs on their way: shared prompts, which rollouts become a pair, what a buffer holds, and mismatched responses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.data import Prompt, PromptGroup
from rlhf_core.distributed import LocalStrategy
from rlhf_core.losses import PairBatch
from rlhf_core.models import LoadedModel, ModelConfig, load_policy
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rollouts import FinishReason, Rollout
from rlhf_core.training.forward import ALL, PLAIN
from rlhf_plugin_dpo.batches import reference_by_rank, sides_by_rank, with_scales
from rlhf_plugin_dpo.buffer import PairBuffer, pack, unpack
from rlhf_plugin_dpo.choose import choose_pairs, summed
from rlhf_plugin_dpo.config import BetaSchedule
from rlhf_plugin_dpo.items import PairItem, Side, make_pair, sides_of
from rlhf_plugin_dpo.loss_config import IpoConfig, SigmoidConfig
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_dpo.reference import side_logprobs
from rlhf_plugin_dpo.schedule import beta_scale
from rlhf_plugin_dpo.unpaired import mismatched_sides


@pytest.fixture(scope="module")
def policy() -> LoadedModel:
    return load_policy(ModelConfig())


def make_pairs(count: int = 3) -> list[PairItem]:
    return [
        make_pair(f"p{n}", tuple(range(5, 12 + n)), tuple(range(20, 24 + n)), tuple(range(30, 39 - n)))
        for n in range(count)
    ]


def test_shared_prompts_and_packed_rows_change_nothing(policy: LoadedModel) -> None:
    for alpha in (1.0, 0.25):
        batches = [PairModule(policy.model, alpha, paths=paths.as_arguments)(make_pairs()) for paths in (ALL, PLAIN)]
        torch.testing.assert_close(batches[0].chosen_B, batches[1].chosen_B, atol=1e-4, rtol=0)
        alone = torch.cat([PairModule(policy.model, alpha)([item]).rejected_B for item in make_pairs()])
        torch.testing.assert_close(batches[0].rejected_B, alone, atol=1e-4, rtol=0)
        sums = PairModule(policy.model, alpha).sums(sides_of(make_pairs()), 2)
        assert sums[1::2] == pytest.approx(alone.tolist(), abs=1e-4)


def test_the_supervised_term_is_a_mean_over_tokens(policy: LoadedModel) -> None:
    for conversation in (False, True):
        items = with_scales(make_pairs(), None, True, conversation)
        batch = PairModule(policy.model, conversation=conversation)(items)
        nll = batch.nll_B
        assert nll is not None
        ids = [(*i.chosen.prompt_ids, *i.chosen.completion_ids) for i in items]
        losses: list[float] = []
        for item, row in zip(items, ids):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([row])).logits[0, :-1]
            token_losses = torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="none")
            losses += token_losses[0 if conversation else len(item.chosen.prompt_ids) - 1 :].tolist()
        assert float(nll.detach().mean()) == pytest.approx(float(np.mean(losses)), rel=1e-4)


def rollout(prompt: str, index: int, ids: tuple[int, ...]) -> Rollout:
    return Rollout(prompt, index, (1, 2), ids, np.zeros(len(ids), np.float32), 0, FinishReason.EOS, "", index)


def test_best_and_worst_become_a_pair_and_everything_else_is_counted() -> None:
    values: list[list[float | None]] = [
        [0.1, 0.9, 0.5],
        [0.4, 0.4, 0.4],
        [0.0, 0.15, 0.05],
        [None, 0.3, None],
        [1.0, 0.0, 0.5],
        [0.2, None, 0.8],
    ]
    groups = [PromptGroup(Prompt(f"q{n}", ({"role": "user", "content": "?"},)), (1, 2), 3) for n in range(len(values))]
    rollouts = [rollout(f"q{n}", g, (7,) if n == 4 else (10 * n + g, 3)) for n in range(len(values)) for g in range(3)]
    scores = [Score(v) if v is not None else Score.failed(ScoreStatus.TIMEOUT, "late") for row in values for v in row]
    pairs, dropped = choose_pairs(groups, rollouts, scores, 0.2, 3)
    assert [(p.name, p.chosen.completion_ids, p.rejected.completion_ids) for p, _, _ in pairs] == [
        ("3/q0", (1, 3), (0, 3)),
        ("3/q5", (52, 3), (50, 3)),
    ]
    assert [(b, w) for _, b, w in pairs] == [(1, 0), (17, 15)]
    assert dropped == {"pairs_tied": 1, "pairs_below_margin": 1, "pairs_unscored": 1, "pairs_identical": 1}


def test_a_buffer_keeps_what_it_should_and_every_pair_gets_its_turn() -> None:
    names_kept = {}
    for keep in ("current", "rolling", "full"):
        buffer = PairBuffer(keep, 2)  # pyright: ignore[reportArgumentType]
        for n in range(4):
            buffer.add([make_pair(f"{n}/{k}", (1,), (2,), (3,)) for k in range(2)])
        names_kept[keep] = [i.name for i in buffer.items]
    assert names_kept == {
        "current": ["3/0", "3/1"],
        "rolling": ["2/0", "2/1", "3/0", "3/1"],
        "full": [f"{n}/{k}" for n in range(4) for k in range(2)],
    }
    names = [i.name for update in range(4) for i in buffer.draw(4, update, (0, 1))]
    assert sorted(names[:8]) == sorted(names[8:]) == sorted(names_kept["full"])
    assert names[:8] != names[8:], "the second epoch has an order of its own"
    assert len(PairBuffer("full", 2).iterations) == 0
    assert len(buffer.draw(100, 0, (0, 1))) == 8


def test_packed_pairs_come_back_as_they_were() -> None:
    masked = replace(make_pairs()[0], rejected=replace(make_pairs()[0].rejected, mask=(True, False) * 4 + (True,)))
    items = [*make_pairs(), make_pair("r", (4,), (5, 6), (7,)).with_refs(-1.25, -3.5), masked]
    assert unpack(pack(items)) == items
    assert unpack(pack([])) == []


def test_ranks_decide_who_is_compared() -> None:
    items = [
        i.with_refs(*refs) for i, refs in zip(make_pairs(), ((-1.0, -4.0), (-5.0, -1.0), (-2.0, -2.0)))
    ]  # 3, -4, 0
    ours = [0.0, 1.0, 2.0]  # policy's differences, so ranks 0, 1, 2
    matched = reference_by_rank(items, ours, [0.0] * 3)
    assert [(i.chosen.ref, i.rejected.ref) for i in matched] == [(-5.0, -1.0), (-2.0, -2.0), (-1.0, -4.0)]
    assert [i.right for i in matched] == [0.0, 1.0, 1.0], "of the pairs themselves: -3, 5, 2"
    assert [i.name for i in matched] == ["p0", "p1", "p2"]
    sorted_sides = sides_by_rank(items, [-1.0, -2.0, -3.0], [-4.0, -9.0, 0.0])  # ratios 0, 3, -1 and 0, -8, 2
    assert [i.rejected.completion_ids for i in sorted_sides] == [items[n].rejected.completion_ids for n in (0, 2, 1)]
    assert [i.right for i in sorted_sides] == [0.5, 1.0, 0.0], "0, 11, -3"


@pytest.mark.parametrize(("kind", "middle"), [("linear", 0.75), ("cosine", 0.75)])
def test_beta_goes_from_one_to_its_end(kind: str, middle: float) -> None:
    schedule = BetaSchedule(kind=kind, end=0.5)  # pyright: ignore[reportArgumentType]
    assert [beta_scale(schedule, n, 5) for n in (0, 1, 3, 5)] == pytest.approx([1, 1, middle, 0.5])
    assert beta_scale(BetaSchedule(), 3, 5) is None


def test_a_mismatched_response_is_another_prompts() -> None:
    sides = [Side((1,), (10,), 1), Side((1,), (11,), 1), Side((2,), (12, 13), 2)]
    mismatched = mismatched_sides(sides, 2, 0)
    assert [(s.prompt_ids, s.completion_ids) for s in mismatched[:2]] == [((1,), (12,))] * 2
    assert (mismatched[2].prompt_ids, mismatched[2].completion_ids) in (((2,), (10,)), ((2,), (11,)))
    one_prompt = [Side((1,), (n,), 1) for n in range(20_000)]
    assert [s.completion_ids for s in mismatched_sides(one_prompt, 9, 0)] != [], (
        "in a moment, though all have one prompt"
    )


def test_both_sides_of_pairs_are_used_as_mismatched_responses() -> None:
    """Rows as pairs give them: desirable (even) and undesirable (odd) responses of one prompt next to each other."""
    sides = [Side((n // 2,), (100 + n,), 1) for n in range(400)]
    mismatched = mismatched_sides(sides, 9, 3)
    assert all(
        other.prompt_ids == side.prompt_ids and (other.completion_ids[0] - 100) // 2 != side.prompt_ids[0]
        for other, side in zip(mismatched, sides)
    )
    assert 150 < sum(other.completion_ids[0] % 2 for other in mismatched) < 250
    assert mismatched == mismatched_sides(sides, 9, 3) != mismatched_sides(sides, 9, 4)


def test_tokens_of_an_environment_do_not_count(policy: LoadedModel) -> None:
    mask = (True, False, False, True)
    item = make_pair("a", (5, 6, 7), (20, 21, 22, 23), (30, 31, 32))
    masked = replace(item, chosen=replace(item.chosen, mask=mask))
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[5, 6, 7, 20, 21, 22, 23]])).logits[0, 2:-1]
    tokens_T = logits.log_softmax(-1)[range(4), [20, 21, 22, 23]]
    for alpha, weights in ((1.0, [1, 0, 0, 1.0]), (0.25, [1, 0, 0, 0.25])):
        expected = float((tokens_T * torch.tensor(weights)).sum())
        module = PairModule(policy.model, alpha)
        assert float(module([masked]).chosen_B.detach()) == pytest.approx(expected, abs=1e-4)
        assert module.sums(sides_of([masked]), 2)[0] == pytest.approx(expected, abs=1e-4)
        assert summed(tokens_T.numpy(), masked.chosen, alpha) == pytest.approx(expected, abs=1e-4)
    batch = PairModule(policy.model, conversation=True)(with_scales([masked], None, True, True))
    assert batch.chosen_lengths_B is not None
    assert batch.nll_B is not None
    assert batch.chosen_lengths_B.tolist() == [2]
    with torch.no_grad():
        prompt = policy.model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, :-1].log_softmax(-1)[[0, 1], [6, 7]]
    counted = float(prompt.sum() + tokens_T[0] + tokens_T[3])
    assert float(batch.nll_B.detach()) == pytest.approx(-counted / 4, abs=1e-4)


def test_a_rollouts_mask_goes_with_its_pair() -> None:
    group = PromptGroup(Prompt("q", ({"role": "user", "content": "?"},)), (1, 2), 2)
    best = replace(rollout("q", 0, (7, 8, 9)), mask_T=np.array([True, False, True]))
    pairs, _ = choose_pairs([group], [best, rollout("q", 1, (5,))], [Score(1.0), Score(0.0)], 0.0, 1)
    assert (pairs[0][0].chosen.mask, pairs[0][0].rejected.mask) == ((True, False, True), None)


@pytest.mark.parametrize("divergence", ["forward_kl", "alpha", "js", "reverse_kl"])
def test_very_unlikely_responses_leave_loss_and_gradient_finite(divergence: Any) -> None:
    for config in (SigmoidConfig(divergence=divergence), IpoConfig(divergence=divergence, length_normalised=False)):
        logprobs = torch.tensor([[-5.0, -300.0], [-300.0, -5.0]], requires_grad=True)
        refs = torch.full((2,), -100.0)
        loss_B = config.build(None)(PairBatch(logprobs[0], logprobs[1], refs, refs)).loss  # type: ignore[arg-type]
        loss_B.sum().backward()
        assert logprobs.grad is not None
        assert bool(loss_B.isfinite().all() and logprobs.grad.isfinite().all())


def test_a_rounded_reference_is_the_model_that_is_loaded_in_those_numbers(policy: LoadedModel) -> None:
    """A model loaded in bfloat16 has its rotary frequencies in float32."""
    sides, rest = sides_of(make_pairs()), (LocalStrategy("cpu"), 1.0, PLAIN.as_arguments, 2)
    loaded = load_policy(ModelConfig(dtype="bfloat16")).model
    assert side_logprobs(policy.model, sides, *rest, "bfloat16") == side_logprobs(loaded, sides, *rest)
