"""`rlhf_core.generate`, `score` and `evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rlhf_core
from rlhf_core.config import ConfigError, PluginError
from rlhf_core.data import DatasetError, Prompt
from rlhf_core.models import ModelConfig
from rlhf_core.rewards import Score


def test_generate_takes_texts_rows_and_prompts_and_gives_the_same_whatever_its_form() -> None:
    text = "What is 2 + 3?"
    message = {"role": "user", "content": text}
    forms = (text, [text], [{"prompt": text}], [{"messages": [message]}], [Prompt("p", (message,))])
    answers = [rlhf_core.generate("pocket", form, n=2, max_tokens=8, seed=1) for form in forms]
    assert [len(rollouts) for rollouts in answers[0]] == [2]
    assert {tuple(r.text for r in rollouts) for (rollouts,) in answers} == {tuple(r.text for r in answers[0][0])}
    assert answers[0][0][0].text != ""


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"prompts": []}, "no prompt"),
        ({"prompts": ["a", " "]}, r"prompts\[1\] is empty"),
        ({"prompts": "a", "n": 0}, "n is 0"),
        ({"prompts": "a", "temprature": 0.5}, "temprature"),
        ({"prompts": "a", "max_tokens": 10**6}, "context"),
        ({"prompts": "a", "temperature": -1}, "temperature"),
        ({"prompts": "a", "max_tokens": 0}, "max_tokens"),
    ],
)
def test_generate_refuses_what_cannot_work(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        rlhf_core.generate("pocket", **arguments)  # type: ignore[arg-type]


def test_score_with_a_name_a_function_and_a_file(tmp_path: Path) -> None:
    rows = [{"prompt": "What is 2 + 2?", "answer": "4", "completion": text} for text in ("It is 4.", "It is 5.")]
    assert [s.value for s in rlhf_core.score(rows, "verifier")] == [1.0, 0.0]
    assert [s.value for s in rlhf_core.score(rows, lambda samples: [len(s.completion) for s in samples])] == [8, 8]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [s.value for s in rlhf_core.score(file, "verifier", settings={"timeout_s": 5})] == [1.0, 0.0]
    assert rlhf_core.score(rows, lambda samples: [Score(0.25), None])[1].value is None


def test_score_refuses_a_wrong_count_and_an_unknown_reward() -> None:
    rows = [{"prompt": "a", "completion": "b"}]
    with pytest.raises(PluginError, match="2 scores for 1 samples"):
        rlhf_core.score(rows, lambda samples: [1.0, 2.0])
    with pytest.raises(PluginError, match="unknown reward 'verifer'"):
        rlhf_core.score(rows, "verifer")


def test_settings_that_would_have_no_effect_are_refused() -> None:
    rows = [{"prompt": "a", "completion": "b"}]
    with pytest.raises(ConfigError, match="settings timeout_s would have no effect"):
        rlhf_core.score(rows, lambda samples: [1.0], settings={"timeout_s": 5})


def test_a_reward_function_may_score_with_another_reward() -> None:
    rows = [{"prompt": "What is 2 + 2?", "answer": "4", "completion": "It is 4."}]
    assert rlhf_core.score(rows, lambda samples: [1 - s.value for s in rlhf_core.score(rows, "verifier")])[0].value == 0


def test_prompts_are_written_as_the_models_config_says() -> None:
    text = "What is 2 + 3?"

    def ids(model: object, **options: str) -> tuple[int, ...]:
        return rlhf_core.generate(model, text, max_tokens=2, **options)[0][0].prompt_ids  # type: ignore[arg-type]

    raw = ids(ModelConfig(path="pocket", prompt_format="raw"))
    assert raw == ids("pocket", prompt_format="raw")
    assert raw != ids("pocket") == ids(ModelConfig(path="pocket"))
    assert ids(ModelConfig(path="pocket", prompt_format="raw"), prompt_format="chat") == ids("pocket")


@pytest.mark.slow
def test_evaluate_gives_the_benchmarks_metrics() -> None:
    settings = {"dataset": {"name": "pocket/arithmetic"}, "limit": 4, "verifier": "numeric"}
    first = rlhf_core.evaluate(ModelConfig(path="pocket"), "prompts", settings=settings)
    assert 0 <= first["pass@1"] <= 1
    assert first == rlhf_core.evaluate("pocket", "prompts", settings=settings)


def test_one_text_is_one_stop_string_and_one_row_is_one_prompt() -> None:
    row = {"prompt": "What is 2 + 3?"}
    (rollouts,) = rlhf_core.generate("pocket", row, n=4, max_tokens=12, stop="zq answer")
    assert {r.finish_reason for r in rollouts}.isdisjoint({"stop"})
    samples = [{**row, "completion": "It is 5."}]
    assert rlhf_core.score(samples, lambda given: [len(given[0].completion)], stop="is so")[0].value == 8


@pytest.mark.parametrize("answer", [{1.0, 0.0}, {0: 1.0, 1: 0.0}, "12", b"12", ["1.0", "0.5"]], ids=repr)
def test_a_reward_function_returns_a_number_for_each_sample_in_order(answer: Any) -> None:
    rows = [{"prompt": "a", "completion": text} for text in "bc"]
    with pytest.raises(PluginError, match="returned"):
        rlhf_core.score(rows, lambda samples: answer)


@pytest.mark.parametrize("row", [{"completion": None}, {"response": None}, {}], ids=repr)
def test_a_row_without_a_completion_is_not_judged_by_its_own_answer(row: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match=r"no column 'completion'|the completion is null"):
        rlhf_core.score([{"prompt": "What is 2 + 2?", "answer": "4", **row}], "verifier")


def test_arrays_in_rows_are_numbers_not_text() -> None:
    seen: list[Any] = []
    row = {"prompt": "a", "completion": "b", "tests": np.array([1, 2]), "weight": np.float32(0.5)}
    rlhf_core.score([row], lambda samples: seen.extend(s.prompt.meta for s in samples) or [0.0])
    assert seen[0] == {"tests": [1, 2], "weight": 0.5}


def test_rows_may_be_a_data_frame_and_nothing_that_has_no_rows() -> None:
    rows = pd.DataFrame({"prompt": ["a", "b"], "completion": ["c", "dd"]})
    scores = rlhf_core.score(rows, lambda samples: [len(s.completion) for s in samples])
    assert [s.value for s in scores] == [1, 2]
    with pytest.raises(DatasetError, match="row 1 of 'samples' is a str"):
        rlhf_core.score(["a"], lambda samples: [0.0])
