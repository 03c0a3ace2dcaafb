"""The order that heeds the run's own scores: unseen first, then the band, and the same after a resume."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from rlhf_core.data.settings import DifficultySettings
from rlhf_core.types.rollouts import Prompt
from rlhf_plugin_schedule.difficulty import DifficultyOrder


def fresh(*, explore: float = 0.1, decay: float = 0.5, **sizes: int) -> DifficultyOrder:
    rows = [
        Prompt(f"{s}/{i}", ({"role": "user", "content": "x"},), source=s) for s, n in sizes.items() for i in range(n)
    ]
    return DifficultyOrder(DifficultySettings(explore=explore, decay=decay), rows, dict.fromkeys(sizes, 1.0), seed=3)


def play(order: DifficultyOrder, steps: int, solved: Sequence[float] = (0.0, 0.5, 1.0, 0.0)) -> list[str]:
    """Prompt i is solved at a rate of ``solved[i % 4]``; returns the ids drawn, in batches of 4."""
    drawn: list[str] = []
    for _ in range(steps):
        batch = order.take(4)
        assert len({p.id for p in batch}) == 4
        drawn += [p.id for p in batch]
        order.observe([(p.id, solved[int(p.id.split("/")[1]) % 4]) for p in batch])
    return drawn


def test_unseen_first_then_the_band() -> None:
    order = fresh(a=40)
    first, later = play(order, 10), play(order, 50)
    assert len(set(first)) == 40
    seen = Counter(int(i.split("/")[1]) % 4 for i in later)
    assert seen[1] == 180, "nine draws in ten are of the prompts solved half the time"
    times = Counter(i for i in later if int(i.split("/")[1]) % 4 == 1)
    assert set(times.values()) == {18}, "each of them equally often"
    outside = [i for i in later if int(i.split("/")[1]) % 4 != 1]
    assert len(set(outside)) == 20, "the others in turn"


def test_without_anything_in_the_band_all_come_in_turn() -> None:
    order = fresh(a=8)
    assert Counter(Counter(play(order, 8, (0.0, 0.0, 1.0, 1.0))).values()) == {4: 8}


def test_running_rate_is_the_exponential_mean() -> None:
    order = fresh(a=4, decay=0.75)
    for rate in (1.0, 0.0, 0.5):
        order.observe([("a/2", rate)])
    assert order.walks["a"].rate_P[2] == pytest.approx(0.75 * (0.75 * 1.0) + 0.25 * 0.5)  # type: ignore[attr-defined]


def test_mixture_keeps_its_weights() -> None:
    drawn = play(fresh(a=20, b=40), 60)
    assert Counter(i.split("/")[0] for i in drawn) == {"a": 120, "b": 120}


@pytest.mark.parametrize("stop", [1, 3, 12, 25])
def test_resume_equals_uninterrupted(stop: int) -> None:
    whole, first, second = fresh(a=21, b=13), fresh(a=21, b=13), fresh(a=21, b=13)
    expected = play(whole, 30)
    play(first, stop)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert play(second, 30 - stop) == expected[4 * stop :]
    assert second.state_dict() == whole.state_dict()


def test_band_without_a_number_is_refused() -> None:
    with pytest.raises(ValidationError, match="is empty"):
        DifficultySettings(band=(0.9, 0.1))
