"""Data that cannot be trained on: file and line are named, and no run directory appears."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Refused = Callable[..., str]
GOOD = "".join(json.dumps({"prompt": f"What is {i} + 2?", "answer": str(i + 2)}) + "\n" for i in range(40))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a data file and return its path."""

    def make(text: str) -> str:
        path = tmp_path / "train.jsonl"
        path.write_text(text)
        return str(path)

    return make


def test_missing(refused: Refused, write: Callable[[str], str]) -> None:
    path = write(GOOD)
    wrong = path.replace("train.jsonl", "trian.jsonl")
    refused("--dataset", wrong, says=(f"'{wrong}' does not exist", "did you mean 'train.jsonl'?"))


def test_no_such_pocket_set(refused: Refused) -> None:
    refused("--dataset", "pocket/arithmetik", says=("arithmetik", "arithmetic"))


def test_empty(refused: Refused, write: Callable[[str], str]) -> None:
    refused("--dataset", write(""), says=("train.jsonl' is empty",))


def test_broken_line(refused: Refused, write: Callable[[str], str]) -> None:
    path = write(GOOD + '{"prompt": "half\n')
    refused("--dataset", path, says=(f"{path}:41", "not valid JSON", "half"))


def test_mapped_column_is_not_there(refused: Refused, write: Callable[[str], str]) -> None:
    refused(
        "--dataset",
        write(GOOD),
        "--set",
        "dataset.columns={prompt: prompts}",
        says=("has no column 'prompts'", "line 1", "did you mean 'prompt'?"),
    )


def test_no_prompt_column(refused: Refused, write: Callable[[str], str]) -> None:
    refused("--dataset", write('{"text": "x", "answer": "1"}\n' * 8), says=("no column 'prompt'", "answer, text"))


def test_empty_prompt(refused: Refused, write: Callable[[str], str]) -> None:
    path = write(GOOD + '{"prompt": "  ", "answer": "1"}\n')
    refused("--dataset", path, says=("empty", "line 41"))


def test_no_answers_for_a_verifier(refused: Refused, write: Callable[[str], str]) -> None:
    refused("--dataset", write('{"prompt": "What is 1 + 1?"}\n' * 40), says=("has no reference answers", "numeric"))


def test_a_reference_answer_that_no_completion_can_equal(refused: Refused, write: Callable[[str], str]) -> None:
    path = write(GOOD + '{"prompt": "What is 1 + 1?", "answer": "two"}\n')
    refused("--dataset", path, says=("'two' is not a number alone", "line 41", "1 of "))


def test_prompt_longer_than_the_context(refused: Refused, write: Callable[[str], str]) -> None:
    row = json.dumps({"id": "long", "prompt": "What is 1 + 1? " * 200, "answer": "2"}) + "\n"
    refused(
        "--dataset",
        write(row + GOOD.splitlines(keepends=True)[0]),
        "--set",
        "dataset.heldout_fraction=0",
        says=("1 of 2 prompts are longer than", "/long (1804 tokens)", "context 256"),
    )


def test_too_few_prompts_for_one_step(refused: Refused, write: Callable[[str], str]) -> None:
    refused(
        "--dataset",
        write(GOOD.splitlines(keepends=True)[0]),
        "--set",
        "dataset.heldout_fraction=0",
        says=("may take 2 different prompts", "has only 1"),
    )


@pytest.mark.parametrize("algo", ["sft", "reward_model"])
def test_bad_rows_are_found_before_a_model_is_loaded(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"text": "no such columns"}\n')

    def load(*args: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("rlhf_plugin_sft.task.load_trained_policy", load)
    monkeypatch.setattr("rlhf_plugin_reward.task.load_trained_policy", load)
    refused(args=("train", "--algo", algo, "--dataset", str(data)), says=("has no column", "rows.jsonl, line 1"))


def test_a_null_prompt_is_called_null(refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a?", "answer": "1"}\n' * 30 + '{"prompt": null, "answer": "1"}\n')
    said = refused("--dataset", file, says=("column 'prompt' of 'rows' is null in this row", "line 31"))
    assert "did you mean" not in str(said)


def test_a_context_that_is_too_short_is_not_a_setting(rlhf: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}?", "completion": "word " * 400}) + "\n" for n in range(30)))
    options = ("train", "--algo", "sft", "--dataset", file, "--run-dir", tmp_path / "run")
    out = rlhf(*options)
    assert out.code == 2
    assert "context 256" in out.err
    assert "take a model with a longer context" in out.err
    assert "raise trainer.max_length" not in out.err
    assert "raise trainer.max_length" in rlhf(*options, "--set", "trainer.max_length=64").err
