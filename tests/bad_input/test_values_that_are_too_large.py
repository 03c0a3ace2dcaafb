"""Values that would stall or break something far from where they came in are refused where they come in."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.cli.options import open_plugins
from rlhf_core.config import ConfigError, RunConfig, parse_settings, read_yaml
from rlhf_core.config.load import MOST_VALUES, load_yaml, resolve
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.plugins.contracts import CheckedReward
from rlhf_core.python_api.objects import _score
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_core.types.errors import RunDirError
from rlhf_core.types.rollouts import LARGEST_SCORE, Prompt

SUGAR = {"trainer": {"name": "grpo"}, "reward": {"name": "verifier"}}
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{n}: &{n} [{','.join([f'*{m}'] * 9)}]\n" for m, n in zip("abcdefgh", "bcdefghi")
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=30,
)


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]", "a: &a {b: *a}", "[" * 1200, "k: " + "{a: " * 900])
def test_a_yaml_text_that_grows_without_end_is_refused_at_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "bomb.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bomb\.yaml' is not valid YAML"):
        read_yaml(tmp_path / "bomb.yaml")
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_settings([f"trainer={text if text[0] == '[' else '&a [*a]'}"])


@pytest.mark.parametrize(
    "value", ["9" * 5000, "0x" + "f" * 5000, "1" + ":59" * 3000, "2001-99-99", "!!int ''", "!!bool x", "!!timestamp x"]
)
def test_a_value_that_yaml_cannot_make_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "run.yaml").write_text(f"seed: {value}")
    with pytest.raises(ConfigError, match=r"run\.yaml' is not valid YAML") as caught:
        read_yaml(tmp_path / "run.yaml")
    assert "a value cannot be read" in str(caught.value)
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_settings([f"seed={value}"])


@settings(deadline=None)
@given(values)
def test_other_texts_say_what_they_say_to_yaml(value: Any) -> None:
    assert load_yaml(yaml.safe_dump(value)) == value
    assert load_yaml(f"a: &a {json.dumps(value)}\nb: [*a, *a]") == {"a": value, "b": [value, value]}


def test_a_long_list_is_counted_as_it_stands() -> None:
    assert len(load_yaml("\n".join(["- 1"] * 1000))) == 1000
    with pytest.raises(yaml.YAMLError, match=f"more than {MOST_VALUES} values"):
        load_yaml(BOMB)


@pytest.mark.parametrize("value", [1e308, -1e308, 1e16, 10**400, math.inf, math.nan])
def test_a_reward_too_large_to_learn_from_is_the_rewards_own_fault(value: Any) -> None:
    prompt = Prompt("p", ({"role": "user", "content": "?"},))

    class Huge:
        def score(self, samples: Any) -> list[Score]:
            return [Score(value) for _ in samples]

    (score,) = CheckedReward(Huge(), "reward 'huge'").score([Sample(prompt, "4")])  # type: ignore[arg-type]
    assert score.status is ScoreStatus.ERROR
    assert "within +-1e+15" in score.detail
    assert _score(value).status is ScoreStatus.ERROR


@settings(deadline=None)
@given(st.lists(st.floats(-LARGEST_SCORE, LARGEST_SCORE), min_size=2, max_size=16))
def test_what_a_score_may_be_has_a_finite_mean_and_deviation_in_float32(values: list[float]) -> None:
    import torch

    scores_G = torch.tensor([Score(value).value for value in values], dtype=torch.float32)
    assert torch.isfinite(scores_G.std())
    assert torch.isfinite(((scores_G - scores_G.mean()) ** 2).sum())


@pytest.mark.parametrize("seed", [2**64, 10**30, -1])
def test_a_seed_that_torch_cannot_take_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match="'seed'"):
        RunConfig.from_settings({"seed": seed, "trainer": None})


COUNTS = (
    "threads",
    "trainer.group_size",
    "trainer.rollout_batch_size",
    "trainer.rollouts.max_reads",
    "trainer.reward_workers",
)


@pytest.mark.parametrize("key", [*COUNTS, "reward.workers"])
@pytest.mark.parametrize("value", [10**9, 10**30])
def test_a_count_that_no_machine_could_hold_is_refused_with_its_limit(key: str, value: int) -> None:
    registry, _ = open_plugins()
    with pytest.raises(ConfigError, match=f"'{key}': Input should be less than or equal to [0-9]+, got {value}"):
        resolve(registry, sugar=SUGAR, settings=[f"{key}={value}"])


@pytest.mark.parametrize("name", [entry.name for entry in open_plugins()[0].entries("trainer")])
def test_every_algorithm_limits_the_size_of_a_group(name: str) -> None:
    fields = open_plugins()[0].load("trainer", name).model_fields
    if "group_size" in fields:
        assert [part.le for part in fields["group_size"].metadata if hasattr(part, "le")] == [2**16]


@given(st.integers(1, 600), st.integers(1, 600))
@settings(deadline=None, max_examples=40)
def test_the_sizes_that_are_advised_fit_each_other(total: int, size: int) -> None:
    registry, _ = open_plugins()

    def sizes(**chosen: int) -> Any:
        texts = [f"trainer.{key}={value}" for key, value in chosen.items()]
        return resolve(registry, sugar=SUGAR, settings=["trainer.train_batch_size=null", *texts]).trainer

    if total % size == 0:
        assert sizes(group_size=size, rollout_batch_size=total)
        return
    with pytest.raises(ConfigError, match=f"group_size {size} does not divide rollout_batch_size {total}") as caught:
        sizes(group_size=size, rollout_batch_size=total)
    advice = dict(re.findall(r"trainer\.(\w+)=(\d+)", str(caught.value)))
    assert sizes(group_size=int(advice["group_size"]), rollout_batch_size=total)
    assert int(advice["group_size"]) <= size
    if "rollout_batch_size" in advice:
        assert sizes(group_size=size, rollout_batch_size=int(advice["rollout_batch_size"]))


@pytest.mark.parametrize("line", [b"{", b"\xff{}", b"5", b"null", b"[1]", b"[" * 5000, b"", b'{"a": 1} x'])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(RunDirError, match=r"trace\.jsonl', line 2, is damaged"):
        list(read_jsonl(file))
    file.write_bytes(b'{"step": 1}\n{"st')
    assert list(read_jsonl(file)) == [{"step": 1}]
