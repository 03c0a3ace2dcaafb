"""Prompts rendered and counted at once come to what one by one does; a data set is read once before a run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.data import Prompt
from rlhf_core.models import Formatter, ModelConfig, load_tokenizer
from rlhf_plugin_preflight.datacheck.duplicates import Shingles, groups, shingles_of
from rlhf_plugin_preflight.datacheck.lengths import token_counts
from rlhf_plugin_preflight.together import lengths, never_lengthens, render_prompts


@functools.cache
def formatter_of(model: str) -> Formatter:
    return Formatter(load_tokenizer(ModelConfig(path=model)), "auto")


def prompts_of(texts: list[str]) -> list[Prompt]:
    return [Prompt(str(n), ({"role": "user", "content": text},)) for n, text in enumerate(texts)]


@pytest.mark.parametrize("model", ["pocket", "pocket-tools"])
@given(
    texts=st.lists(st.one_of(st.text(max_size=30), st.sampled_from(["<|end|>", "a<|user|>b", "2 + 2?"])), max_size=6)
)
@settings(max_examples=40, deadline=None)
def test_no_prompt_that_is_too_long_is_let_in(model: str, texts: list[str]) -> None:
    """A count up to ``enough`` may be more than there are, and every other count is exact."""
    formatter, enough = formatter_of(model), 20
    prompts = prompts_of(texts)
    exact = [len(formatter.encode_prompt(prompt)) for prompt in prompts]
    counted = lengths(formatter)(prompts, enough)
    assert [n > enough for n in counted] == [n > enough for n in exact]
    assert all(most == true or true <= most <= enough for most, true in zip(counted, exact))


def test_texts_rendered_at_once_are_those_rendered_alone() -> None:
    formatter = formatter_of("pocket")
    prompts = [p.messages for p in prompts_of(["What is 2 + 2?", "", "Wie geht's?  "])]
    alone = [formatter.render(prompt, add_generation_prompt=True) for prompt in prompts]
    assert render_prompts(formatter, prompts) == alone
    assert render_prompts(formatter, [*prompts, ({"role": "user", "content": "a <|end|> b"},)]) == []


def test_short_prompts_are_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a data set whose rows fit whatever they say, the tokenizer is given none."""
    formatter = formatter_of("pocket")
    calls: list[Any] = []
    encode = formatter.encode_prompt
    monkeypatch.setattr(formatter, "encode_prompt", lambda prompt: calls.append(prompt) or encode(prompt))
    prompts = prompts_of([f"What is {n} + 1?" for n in range(500)] + ["Was heißt das?", "long " * 100])
    assert never_lengthens(formatter.text)
    counted = lengths(formatter)(prompts, 200)
    assert [prompt.text for prompt in calls] == ["Was heißt das?", "long " * 100]
    assert counted[-1] == len(encode(prompts[-1])) > 200


def test_a_batch_is_one_call_of_the_tokenizer() -> None:
    tokenizer = formatter_of("pocket").tokenizer
    texts = [f"What is {n} + 1?<|end|>" for n in range(100)]
    assert token_counts(tokenizer, texts) == [len(tokenizer.encode(t, add_special_tokens=False)) for t in texts]


def test_shingles_in_one_array_are_those_of_each_text() -> None:
    texts = ["", "one two", "one two three four five six seven", "one two three four five six seven"]
    shingles = Shingles(texts)
    assert list(shingles) == [shingles_of(text) for text in texts]
    assert list(shingles.some([2, 1])) == [shingles_of(texts[2]), shingles_of(texts[1])]
    assert groups(texts) == ([[2, 3]], [0, 1, 2])
    assert groups([]) == ([], [])


def test_the_rows_of_a_run_are_read_once_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier's check of the answers and the plan's number of rows look at the same reading."""
    import json

    from rlhf_core.config.load import resolve
    from rlhf_core.data import files
    from rlhf_core.plugins.hooks import load_hooks
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.runs.launch.run import plan_run, preflight, with_rows

    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(80)))
    reads: list[str] = []
    read = files.read_text
    monkeypatch.setattr(files, "read_text", lambda path, *what: reads.append(path) or read(path, *what))
    registry = Registry()
    config = resolve(
        registry, settings=["trainer.name=grpo", "reward.name=exact", f"dataset={file}", "model.path=pocket"]
    )
    plan = plan_run(registry, load_hooks(), config, 1)
    plan = with_rows(plan, preflight(registry, config, 1))
    assert reads == [str(file)]
    assert sum(plan.rows["rows"].values()) == 80
