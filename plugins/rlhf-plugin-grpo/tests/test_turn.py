"""The advantage per turn: its numbers, and its gradient against exact enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.config import ComponentConfig, ConfigError, Registry
from rlhf_core.losses import TokenBatch
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rollouts import FinishReason, Rollout, Turn
from rlhf_plugin_grpo.loss import GrpoClip
from rlhf_testing import make_context

CONFIG = Registry(disabled=()).load("advantage", "turn")


def episode(*turns: tuple[str, int, float | None], index: int = 0) -> Rollout:
    """Turns of (role, tokens, score); "a" is the policy's, "t" a tool's."""
    ends = list(itertools.accumulate(n for _, n, _ in turns))
    names = {"a": "assistant", "t": "tool"}
    mask_T = np.repeat([role == "a" for role, _, _ in turns], [n for _, n, _ in turns])
    return Rollout(
        "p", index, (1,), tuple(range(2, 2 + ends[-1])), np.where(mask_T, -0.5, 0).astype(np.float32), 0,
        FinishReason.EOS, "", index, mask_T,
        turns=tuple(
            Turn((end - n, end), names[role], {"role": names[role], "content": ""}, score)
            for end, (role, n, score) in zip(ends, turns)
        ),
    )  # fmt: skip


def estimate(rollouts: Sequence[Rollout], values: Sequence[float | None], **options: Any) -> list[Any]:
    scores = [Score.failed(ScoreStatus.TIMEOUT, "slow") if v is None else Score(v) for v in values]
    estimator = CONFIG(name="turn", **options).build(make_context())
    return list(estimator.estimate(rollouts, scores, [0] * len(rollouts)).values)


LONG = episode(("a", 2, None), ("t", 1, 0.5), ("t", 0, 0.25), ("a", 1, None), ("t", 3, -1.0), ("a", 2, None))
MIDDLE = episode(("a", 1, None), ("t", 2, 1.0), ("a", 1, None), index=1)
SHORT = episode(("a", 3, None), index=2)


def test_a_turn_gets_what_it_and_later_ones_bring_less_the_others_at_that_turn() -> None:
    # returns: 0.75 - 1 + 1, -1 + 1, 1 | 1 + 3, 3 | 2
    long, middle, short = estimate([LONG, MIDDLE, SHORT], [1.0, 3.0, 2.0])
    assert long == pytest.approx([0.75 - 3] * 3 + [0.0 - 3] * 4 + [1 - 2.5] * 2)  # alone in turn 3: last turns' mean
    assert middle == pytest.approx([4 - 1.375] * 3 + [3 - 0.0])
    assert short == pytest.approx([2 - 2.375] * 3)


def test_weights_discount_and_scale() -> None:
    both = [LONG, MIDDLE]
    long, middle = estimate(both, [1.0, 3.0], turn_weight=0.0)
    assert (long[0], long[-1], middle[0]) == (-2.0, -2.0, 2.0)  # leave one out
    long, middle = estimate(both, [1.0, 3.0], outcome_weight=0.0, discount=0.5)
    assert long[0] == pytest.approx(0.75 - 0.5 - 1.0)
    raw = estimate(both, [1.0, 3.0])
    scaled = estimate(both, [1.0, 3.0], scale="batch")
    per_turn = [raw[0][0], raw[0][3], raw[0][-1], raw[1][0], raw[1][-1]]
    assert scaled[0][0] == pytest.approx(raw[0][0] / (np.std(per_turn, ddof=1) + 1e-6))


def test_what_the_reward_added_for_the_turns_is_not_counted_twice() -> None:
    context = make_context(config=SimpleNamespace(reward=SimpleNamespace(turn_weight=2.0)))
    estimator = CONFIG(name="turn").build(context)
    scores = [Score(1.0 + 2 * -0.25, {"outcome": 1.0, "turns": -0.25}), Score(3.0 + 2 * 1.0, {"turns": 1.0})]
    twice = list(estimator.estimate([LONG, MIDDLE], scores, [0, 0]).values)
    for row, other in zip(twice, estimate([LONG, MIDDLE], [1.0, 3.0]), strict=True):
        assert row == pytest.approx(other)


def test_missing_scores_take_no_part_and_equal_episodes_teach_nothing() -> None:
    assert estimate([LONG, MIDDLE, SHORT], [1.0, None, None])[1:] == [None, None]
    assert not estimate([LONG, MIDDLE, SHORT], [1.0, None, None])[0].any()
    assert not np.concatenate(estimate([LONG, LONG, LONG], [0.1, 0.1, 0.1])).any()


@pytest.mark.parametrize(
    ("options", "trainer", "says"),
    [
        ({"outcome_weight": 0.0, "turn_weight": 0.0}, {}, "both 0"),
        ({}, {"dynamic_sampling": {}}, "dynamic_sampling"),
    ],
)
def test_what_would_teach_nothing_or_the_wrong_thing_is_refused(
    options: dict[str, float], trainer: dict[str, Any], says: str
) -> None:
    context = make_context(config=SimpleNamespace(trainer=SimpleNamespace(**trainer)))
    with pytest.raises(ConfigError, match=says):
        CONFIG(name="turn", **options).preflight(context)


class Chain:
    """A policy of numbers that decides in every turn whether to stop or to call, at most 3 turns; a call's answer is 0
    or 1. Every episode that can be, with its rollout, its score and what its decisions depend on."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.logits = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)  # one row per history
        rng = np.random.default_rng(1)
        self.rollouts: list[Rollout] = []
        self.outcomes: list[float] = []
        self.decisions: list[list[tuple[int, int]]] = []
        for answers in [(), (0,), (1,), *itertools.product((0, 1), (0, 1))]:
            for calls_last in (False, True) if len(answers) == 2 else (False,):
                turns: list[tuple[str, int, float | None]] = []
                history, decisions = 0, []
                for answer in answers:
                    decisions.append((history, 1))
                    history = 2 * history + 1 + answer
                    turns += [("a", 1, None), ("t", 1, 1.5 * answer - 0.4 + 0.1 * history)]
                decisions.append((history, int(calls_last)))
                self.rollouts.append(episode(*turns, ("a", 1, None)))
                self.outcomes.append(float(rng.normal()) + 0.7 * len(answers))
                self.decisions.append(decisions)

    def logprobs(self, i: int) -> torch.Tensor:
        """Of an episode's decisions."""
        rows = self.logits.log_softmax(-1)
        return torch.stack([rows[state, action] for state, action in self.decisions[i]])

    def probability(self, i: int) -> torch.Tensor:
        """Of an episode; a call's answer is 0 or 1 by the toss of a coin."""
        return self.logprobs(i).sum().exp() * 0.5 ** (len(self.decisions[i]) - 1)

    def true_gradient(self) -> torch.Tensor:
        """Of the expected sum of all turns' scores and the outcome."""
        paid = [sum(t.score or 0.0 for t in r.turns) + o for r, o in zip(self.rollouts, self.outcomes)]
        value = sum(self.probability(i) * paid[i] for i in range(len(paid)))
        return torch.autograd.grad(value, self.logits)[0]

    def expected_gradient(self, advantages_of: Callable[[tuple[int, ...]], list[Any]], size: int) -> torch.Tensor:
        """Of the loss `grpo_clip`, summed over tokens, on policy, over every group of ``size`` episodes."""
        weights_T = [np.zeros(len(r.completion_ids)) for r in self.rollouts]
        chances = [self.probability(i).item() for i in range(len(self.rollouts))]
        for group in itertools.product(range(len(chances)), repeat=size):
            for i, row in zip(group, advantages_of(group)):
                weights_T[i] += math.prod(chances[j] for j in group) * np.asarray(row, np.float64)
        total = torch.zeros((), dtype=torch.float64)
        for i, rollout in enumerate(self.rollouts):
            assert rollout.mask_T is not None
            mask = torch.from_numpy(np.array(rollout.mask_T))[None]
            logprobs = torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(mask, self.logprobs(i))
            batch = TokenBatch(logprobs, mask, torch.from_numpy(weights_T[i])[None], logprobs.detach())
            total = total + (GrpoClip(0.2, 0.2)(batch).loss * mask).sum() / size
        return -torch.autograd.grad(total, self.logits)[0]


def test_the_expected_gradient_is_the_true_one_although_the_policy_decides_when_to_stop() -> None:
    chain = Chain()
    assert sum(chain.probability(i).item() for i in range(len(chain.rollouts))) == pytest.approx(1.0)

    def turn(group: tuple[int, ...]) -> list[Any]:
        return estimate([chain.rollouts[i] for i in group], [chain.outcomes[i] for i in group])

    def centred_by_turn(group: tuple[int, ...]) -> list[Any]:
        """What must not be done: the mean over all that got as far, this episode among them."""
        estimator = CONFIG(name="turn").build(make_context())
        returns = [estimator.returns(chain.rollouts[i], Score(chain.outcomes[i])) for i in group]
        means = [np.mean([r[k] for r in returns if len(r) > k]) for k in range(max(map(len, returns)))]
        rows = [r - means[: len(r)] for r in returns]
        return [np.repeat(row, [2] * (len(row) - 1) + [1]) for row in rows]

    true = chain.true_gradient()
    torch.testing.assert_close(chain.expected_gradient(turn, 3), true, atol=1e-6, rtol=1e-6)
    biased = chain.expected_gradient(centred_by_turn, 2)
    share = (biased / true)[:, 0]  # of each history's gradient
    assert float(share[0]) == pytest.approx(0.5)
    assert share[1:].max() < 0.3


def test_a_reward_that_adds_the_turns_inside_of_another_is_refused() -> None:
    environment = Registry(disabled=()).load("reward", "environment")

    class Wrapper(ComponentConfig):
        name: str = "shuffled"
        of: ComponentConfig

    def check(weight: float, **options: float) -> None:
        reward = Wrapper(of=environment(turn_weight=weight))
        config = SimpleNamespace(reward=reward, trainer=SimpleNamespace())
        CONFIG(name="turn", **options).preflight(make_context(config=config))

    with pytest.raises(ConfigError, match="twice"):
        check(1.0)
    check(0.0)
    check(1.0, turn_weight=0.0)
