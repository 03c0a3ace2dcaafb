"""Order over prompts: no repeats, weights, exact resume; and which prompts are admitted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest

from rlhf_core.data.datasets import admit
from rlhf_core.data.order import PromptOrder
from rlhf_core.data.settings import DatasetSettings
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.rollouts import Prompt


def prompts(**sizes: int) -> list[Prompt]:
    return [
        Prompt(f"{s}/{i}", ({"role": "user", "content": "x " * i},), source=s)
        for s, n in sizes.items()
        for i in range(n)
    ]


def ids(prompts_taken: Sequence[Prompt]) -> list[str]:
    return [p.id for p in prompts_taken]


def test_every_prompt_once_per_epoch_in_a_new_order() -> None:
    order = PromptOrder(prompts(a=50), {"a": 1.0}, seed=3)
    epochs = [[p for _ in range(10) for p in ids(order.take(5))] for _ in range(3)]
    assert all(len(set(e)) == 50 for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != ids(prompts(a=50))


def test_same_seed_same_order_other_seed_other_order() -> None:
    first, again, other = (ids(PromptOrder(prompts(a=50), {"a": 1.0}, seed=s).take(50)) for s in (3, 3, 4))
    assert first == again != other


def test_shuffle_off_keeps_the_rows_order() -> None:
    assert ids(PromptOrder(prompts(a=5), {"a": 1.0}, 0, shuffle=False).take(5)) == ids(prompts(a=5))


def test_one_batch_has_no_prompt_twice_across_an_epochs_end() -> None:
    order = PromptOrder(prompts(a=10), {"a": 1.0}, seed=0)
    seen: Counter[str] = Counter()
    for _ in range(200):
        batch = ids(order.take(8))
        assert len(set(batch)) == 8
        seen.update(batch)
    assert max(seen.values()) - min(seen.values()) <= 1  # what was put off came back within its epoch


def test_mixture_keeps_its_weights() -> None:
    order = PromptOrder(prompts(a=1000, b=7, c=300), {"a": 6.0, "b": 1.0, "c": 3.0}, seed=1)
    seen = Counter(p.source for _ in range(250) for p in order.take(4))
    assert {s: n / 1000 for s, n in seen.items()} == pytest.approx({"a": 0.6, "b": 0.1, "c": 0.3}, abs=0.002)
    early = Counter(p.source for p in PromptOrder(prompts(a=20, b=20), {"a": 3.0, "b": 1.0}, 0).take(8))
    assert early == {"a": 6, "b": 2}  # from the first batch on, not only in the long run


@pytest.mark.parametrize("stop", [1, 2, 7, 19])
def test_resume_equals_uninterrupted(stop: int) -> None:
    def fresh() -> PromptOrder:
        return PromptOrder(prompts(a=10, b=13), {"a": 2.0, "b": 1.0}, seed=5)

    whole = fresh()
    expected = [ids(whole.take(9)) for _ in range(40)]
    first = fresh()
    for _ in range(stop):
        first.take(9)
    state = json.loads(json.dumps(first.state_dict()))
    second = fresh()
    second.load_state_dict(state)
    assert [ids(second.take(9)) for _ in range(40 - stop)] == expected[stop:]
    assert second.state_dict() == whole.state_dict()


def test_resume_with_other_prompts_is_refused() -> None:
    state = PromptOrder(prompts(a=10), {"a": 1.0}, 0).state_dict()
    with pytest.raises(DatasetError, match="prompts of source 'a' changed"):
        PromptOrder(prompts(a=11), {"a": 1.0}, 0).load_state_dict(state)
    with pytest.raises(DatasetError, match="sources changed"):
        PromptOrder(prompts(a=10, b=1), {"a": 1.0, "b": 1.0}, 0).load_state_dict(state)


def test_a_batch_larger_than_the_dataset_is_refused() -> None:
    order = PromptOrder(prompts(a=5), {"a": 1.0}, 0)
    order.require(5)
    with pytest.raises(DatasetError, match=r"6 different prompts of 'a', which has only 5[\s\S]*rollout_batch_size"):
        order.require(6)
    with pytest.raises(DatasetError, match="only 5"):
        order.take(6)


def words(prompt: Prompt) -> tuple[int, ...]:
    return tuple(range(len(prompt.text.split())))


def limits(tokens: int, dropped_fraction: float) -> DatasetSettings:
    return DatasetSettings.model_construct(max_prompt_tokens=tokens, max_dropped_fraction=dropped_fraction)


def test_admit_keeps_what_fits_and_counts_the_rest() -> None:
    kept, counts = admit(prompts(a=20), words, limits(100, 0.1), context=30, max_tokens=12)
    assert [len(words(p)) for p in kept] == list(range(19))
    assert counts == {"prompts_too_long": 1}
    assert admit(prompts(a=20), words, limits(100, 0), context=99, max_tokens=9)[1] == {}


def test_admit_refuses_when_too_many_would_go() -> None:
    with pytest.raises(DatasetError) as caught:
        admit(prompts(a=20), words, limits(10, 0.1), context=99, max_tokens=9)
    text = str(caught.value)
    assert caught.value.exit_code == 2
    for part in ("9 of 20 prompts", "10 tokens", "a/19 (19 tokens)", "a/18", "dataset.max_prompt_tokens", "10%"):
        assert part in text


def test_admit_never_loses_a_whole_source_or_everything() -> None:
    with pytest.raises(DatasetError, match="all of source 'a'"):
        admit(prompts(a=20)[15:], words, limits(10, 1.0), context=99, max_tokens=9)
    with pytest.raises(DatasetError, match="leaves no room"):
        admit(prompts(a=2), words, limits(10, 1.0), context=16, max_tokens=16)
    assert admit([], words, limits(10, 0.1), context=99, max_tokens=9) == ([], {})
