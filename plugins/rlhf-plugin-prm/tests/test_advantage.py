"""Step rewards as token advantages."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_core.models import ModelConfig, load_tokenizer
from rlhf_core.rewards import Score
from rlhf_core.rollouts import FinishReason, Rollout
from rlhf_plugin_prm.advantage import credited, token_ends
from rlhf_plugin_prm.reward_config import StepAdvantageConfig
from rlhf_plugin_prm.steps import split_steps
from rlhf_testing import check_advantage, make_context

TOKENIZER = load_tokenizer(ModelConfig())


def rollout(text: str, index: int = 0) -> Rollout:
    ids = (*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id)
    return Rollout("p", index, (1,), ids, np.zeros(len(ids), np.float32), 0, FinishReason.EOS, text, index)


def score(text: str, rewards: list[float]) -> Score:
    ends = [s.end for s in split_steps(text, "newline")]
    return Score(
        min(rewards),
        {**{f"step_{n}": r for n, r in enumerate(rewards, 1)}, **{f"end_{n}": float(e) for n, e in enumerate(ends, 1)}},
    )


def estimator(**settings: Any) -> Any:
    return StepAdvantageConfig(**settings).build(make_context(policy=SimpleNamespace(tokenizer=TOKENIZER)))


@pytest.mark.parametrize("credit", ["sum", "own", "min"])
def test_it_conforms(credit: Any) -> None:
    check_advantage(StepAdvantageConfig(credit=credit))


def test_without_steps_it_is_group_norm() -> None:
    from rlhf_plugin_grpo.advantage_config import GroupNormConfig

    rows = [rollout("a b c", n) for n in range(6)]
    scores = [Score(v) for v in (0.3, 0.9, 0.1, 0.5, 0.5, 0.2)]
    groups = [0, 0, 0, 1, 1, 1]
    step_values = estimator().estimate(rows, scores, groups).values
    group_norm_values = GroupNormConfig().build(make_context()).estimate(rows, scores, groups).values
    assert [float(v[0]) for v in step_values] == pytest.approx([float(v) for v in group_norm_values], abs=1e-6)
    assert all(np.ptp(v) == 0 for v in step_values)


def test_tokens_get_the_rewards_of_their_own_and_later_steps() -> None:
    """By hand: rewards 1, 0 and 1, 1 have mean 0.75 and std 0.5; normalised 0.5, -1.5 and 0.5, 0.5."""
    texts = ["7 + 5 = 12\n12 - 3 = 8", "7 + 5 = 12\n12 - 3 = 9"]
    rows = [rollout(t, n) for n, t in enumerate(texts)]
    scores = [score(texts[0], [1, 0]), score(texts[1], [1, 1])]
    first = len(TOKENIZER.encode("7 + 5 = 12", add_special_tokens=False))
    for credit, expected in (
        ("sum", [(-1.0, -1.5), (1.0, 0.5)]),
        ("own", [(0.5, -1.5), (0.5, 0.5)]),
        ("min", [(-1.5, -1.5), (0.5, 0.5)]),
    ):
        advantages = estimator(credit=credit).estimate(rows, scores, [0, 0]).values
        for values, (before, after) in zip(advantages, expected):
            assert values[:first] == pytest.approx([before] * first, abs=1e-4)
            assert values[first:] == pytest.approx([after] * (len(values) - first), abs=1e-4)


def test_credit() -> None:
    scaled = np.array([1.0, -2.0, 3.0])
    assert credited(scaled, "sum").tolist() == [2.0, 1.0, 3.0]
    assert credited(scaled, "own").tolist() == [1.0, -2.0, 3.0]
    assert credited(scaled, "min").tolist() == [-2.0, -2.0, 3.0]


def test_ends_are_found_in_the_sampled_ids_not_in_text_encoded_again() -> None:
    """The same text spelled by other tokens than the tokenizer would choose."""
    text = "12 is 12.\nÜ is 9."
    ids = tuple(TOKENIZER.encode(c, add_special_tokens=False)[0] for c in "12 is 12.\n")
    ids += tuple(TOKENIZER.encode("Ü is 9.", add_special_tokens=False))
    sampled = Rollout("p", 0, (1,), ids, np.zeros(len(ids), np.float32), 0, FinishReason.LENGTH, text, 0)
    assert TOKENIZER.decode(ids) == text
    assert token_ends(sampled, [9], TOKENIZER) == [9]
    assert token_ends(sampled, [9, len(text)], TOKENIZER) == [9, len(ids)]


def test_a_missing_score_takes_no_part() -> None:
    texts = ["1\n2", "1\n3", "1\n4"]
    rows = [rollout(t, n) for n, t in enumerate(texts)]
    scores = [score(texts[0], [1, 0]), Score.failed(Score(1.0).status.ERROR, "x"), score(texts[2], [1, 1])]
    values = estimator().estimate(rows, scores, [0, 0, 0]).values
    alone = estimator().estimate([rows[0], rows[2]], [scores[0], scores[2]], [0, 0]).values
    assert values[1] is None
    assert np.array_equal(values[0], alone[0])
    assert np.array_equal(values[2], alone[1])


@pytest.mark.parametrize("setting", ["trainer.kl={where: reward, coefficient: 0.1}", "trainer.overlong.cache=0.2"])
def test_a_penalty_that_would_be_lost_is_refused(command: Callable[..., tuple[int, str]], setting: str) -> None:
    code, err = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "verifier",
        "--dataset",
        "chain_steps",
        "--set",
        "advantage=step",
        "--set",
        setting,
        "--dry-run",
    )
    assert code == 2
    assert "the penalty would be lost" in err
