"""Pairs on their way: shared prompts, which rollouts become a pair, what a buffer holds, whose response stands in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf_core.api import FinishReason, ModelConfig, Prompt, PromptGroup, Rollout, Score, ScoreStatus
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.policy.paths import ALL, PLAIN
from rlhf_plugin_dpo.batches import reference_by_rank, sides_by_rank
from rlhf_plugin_dpo.buffer import PairBuffer, pack, unpack
from rlhf_plugin_dpo.choose import choose_pairs
from rlhf_plugin_dpo.config import BetaSchedule
from rlhf_plugin_dpo.foundry import PairFoundry
from rlhf_plugin_dpo.items import PairItem, Side, make_pair, sides_of
from rlhf_plugin_dpo.judged import stand_ins
from rlhf_plugin_dpo.schedule import beta_scale


@pytest.fixture(scope="module")
def policy() -> LoadedModel:
    return load_policy(ModelConfig())


def some(count: int = 3) -> list[PairItem]:
    return [make_pair(f"p{n}", tuple(range(5, 12 + n)), tuple(range(20, 24 + n)), tuple(range(30, 39 - n)))
            for n in range(count)]


def test_shared_prompts_and_packed_rows_change_nothing(policy: LoadedModel) -> None:
    for alpha in (1.0, 0.25):
        batches = [PairFoundry(policy.model, alpha, paths=paths)(some()) for paths in (ALL, PLAIN)]
        torch.testing.assert_close(batches[0].chosen_B, batches[1].chosen_B, atol=1e-4, rtol=0)
        alone = torch.cat([PairFoundry(policy.model, alpha)([item]).rejected_B for item in some()])
        torch.testing.assert_close(batches[0].rejected_B, alone, atol=1e-4, rtol=0)
        sums = PairFoundry(policy.model, alpha).sums(sides_of(some()), 2)
        assert sums[1::2] == pytest.approx(alone.tolist(), abs=1e-4)


def test_the_supervised_term_is_a_mean_over_tokens(policy: LoadedModel) -> None:
    from rlhf_plugin_dpo.batches import with_scales

    for conversation in (False, True):
        items = with_scales(some(), None, True, conversation)
        whole = PairFoundry(policy.model, conversation=conversation)(items)
        nll = whole.nll_B
        assert nll is not None
        ids = [(*i.chosen.prompt_ids, *i.chosen.completion_ids) for i in items]
        losses: list[float] = []
        for item, row in zip(items, ids):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([row])).logits[0, :-1]
            every = torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="none")
            losses += every[0 if conversation else len(item.chosen.prompt_ids) - 1 :].tolist()
        assert float(nll.detach().mean()) == pytest.approx(float(np.mean(losses)), rel=1e-4)


def rollout(prompt: str, index: int, ids: tuple[int, ...]) -> Rollout:
    return Rollout(prompt, index, (1, 2), ids, np.zeros(len(ids), np.float32), 0, FinishReason.EOS, "", index)


def test_best_and_worst_become_a_pair_and_everything_else_is_counted() -> None:
    values: list[list[float | None]] = [[0.1, 0.9, 0.5], [0.4, 0.4, 0.4], [0.0, 0.15, 0.05], [None, 0.3, None],
                                        [1.0, 0.0, 0.5], [0.2, None, 0.8]]
    groups = [PromptGroup(Prompt(f"q{n}", ({"role": "user", "content": "?"},)), (1, 2), 3) for n in range(len(values))]
    rollouts = [rollout(f"q{n}", g, (7,) if n == 4 else (10 * n + g, 3)) for n in range(len(values)) for g in range(3)]
    scores = [Score(v) if v is not None else Score.failed(ScoreStatus.TIMEOUT, "late") for row in values for v in row]
    pairs, dropped = choose_pairs(groups, rollouts, scores, 0.2, 3)
    assert [(p.name, p.chosen.completion_ids, p.rejected.completion_ids) for p, _, _ in pairs] == [
        ("3/q0", (1, 3), (0, 3)), ("3/q5", (52, 3), (50, 3))]
    assert [(b, w) for _, b, w in pairs] == [(1, 0), (17, 15)]
    assert dropped == {"pairs_tied": 1, "pairs_below_margin": 1, "pairs_unscored": 1, "pairs_identical": 1}


def test_a_buffer_keeps_what_it_should_and_every_pair_gets_its_turn() -> None:
    held = {}
    for keep in ("current", "rolling", "full"):
        buffer = PairBuffer(keep, 2)  # pyright: ignore[reportArgumentType]
        for n in range(4):
            buffer.add([make_pair(f"{n}/{k}", (1,), (2,), (3,)) for k in range(2)])
        held[keep] = [i.name for i in buffer.items]
    assert held == {"current": ["3/0", "3/1"], "rolling": ["2/0", "2/1", "3/0", "3/1"],
                    "full": [f"{n}/{k}" for n in range(4) for k in range(2)]}
    names = [i.name for place in range(4) for i in buffer.draw(4, place, (0, 1))]
    assert sorted(names[:8]) == sorted(names[8:]) == sorted(held["full"])
    assert names[:8] != names[8:], "the second epoch has an order of its own"
    assert len(PairBuffer("full", 2).iterations) == 0
    assert len(buffer.draw(100, 0, (0, 1))) == 8


def test_packed_pairs_come_back_as_they_were() -> None:
    items = [*some(), make_pair("r", (4,), (5, 6), (7,)).with_refs(-1.25, -3.5)]
    assert unpack(pack(items)) == items
    assert unpack(pack([])) == []


def test_ranks_decide_who_is_compared() -> None:
    items = [i.with_refs(*refs) for i, refs in zip(some(), ((-1.0, -4.0), (-5.0, -1.0), (-2.0, -2.0)))]  # 3, -4, 0
    ours = [0.0, 1.0, 2.0]  # policy's differences, so ranks 0, 1, 2
    found = reference_by_rank(items, ours, [0.0] * 3)
    assert [(i.chosen.ref, i.rejected.ref) for i in found] == [(-5.0, -1.0), (-2.0, -2.0), (-1.0, -4.0)]
    assert [i.name for i in found] == ["p0", "p1", "p2"]
    sorted_sides = sides_by_rank(items, [-1.0, -2.0, -3.0], [-4.0, -9.0, 0.0])  # ratios 0, 3, -1 and 0, -8, 2
    assert [i.rejected.completion_ids for i in sorted_sides] == [items[n].rejected.completion_ids for n in (0, 2, 1)]


@pytest.mark.parametrize(("kind", "middle"), [("linear", 0.75), ("cosine", 0.75)])
def test_beta_goes_from_one_to_its_end(kind: str, middle: float) -> None:
    schedule = BetaSchedule(kind=kind, end=0.5)  # pyright: ignore[reportArgumentType]
    assert [beta_scale(schedule, n, 5) for n in (0, 1, 3, 5)] == pytest.approx([1, 1, middle, 0.5])
    assert beta_scale(BetaSchedule(), 3, 5) is None


def test_a_stand_in_is_another_prompts_response() -> None:
    sides = [Side((1,), (10,), 1), Side((1,), (11,), 1), Side((2,), (12, 13), 2)]
    found = stand_ins(sides, 2)
    assert [(s.prompt_ids, s.completion_ids) for s in found] == [((1,), (12,)), ((1,), (12,)), ((2,), (10,))]
