"""The same prompts are held out in every file, folder and format, and what trained on them is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlhf_core.data.datasets import Datasets
from rlhf_core.data.held_out import ancestors, content_key
from rlhf_core.runs.component_set import RowRecorder

Make = Callable[..., Datasets]
Write = Callable[..., str]
ASKED = [f"What is {i} + {i + 1}?" for i in range(200)]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def prompts(rows: Datasets, split: str) -> set[str]:
    return {p.messages[-1]["content"].strip() for p in rows.prompts(split)}


FORMS: dict[str, Callable[[str], dict[str, Any]]] = {
    "prompts": lambda q: {"prompt": q, "answer": "1"},
    "with ids": lambda q: {"id": f"row {q}", "prompt": [user(q)]},
    "demonstrations": lambda q: {"messages": [{"role": "system", "content": "Be kind."}, user(q), assistant("1")]},
    "pairs": lambda q: {"prompt": f"{q}\n", "chosen": "1", "rejected": "2"},
    "transcripts": lambda q: {
        "chosen": f"\n\nHuman: {q}\n\nAssistant: 1",
        "rejected": f"\n\nHuman: {q}\n\nAssistant: 2",
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_prompts_are_held_out_whatever_file_and_form_they_are_in(
    datasets: Make, write: Write, form: str
) -> None:
    first = datasets(name="jsonl", path=write("prompts.jsonl", map(FORMS["prompts"], ASKED)), heldout_fraction=0.2)
    path = write("elsewhere/demos.jsonl", map(FORMS[form], reversed(ASKED)))
    other = datasets(name="jsonl", path=path, heldout_fraction=0.2, prompt_template="{prompt}")
    held = prompts(first, "heldout")
    assert 20 <= len(held) <= 60
    assert prompts(first, "train") == set(ASKED) - held
    if form in ("pairs", "transcripts"):
        assert {p.prompt[-1]["content"].strip() for p in other.pairs("heldout")} == held
    elif form == "demonstrations":
        assert {d.prompt[-1]["content"] for d in other.demonstrations("heldout")} == held
    assert prompts(other, "heldout") == held


def test_more_held_out_rows_are_the_same_and_more(datasets: Make, write: Write) -> None:
    path = write("a.jsonl", map(FORMS["prompts"], ASKED))
    few, many = (prompts(datasets(name="jsonl", path=path, heldout_fraction=f), "heldout") for f in (0.1, 0.3))
    assert few < many


def test_an_explicit_held_out_file_and_what_it_takes_from_training(datasets: Make, write: Write) -> None:
    path = write("a/train.jsonl", map(FORMS["prompts"], ASKED))
    held = write("held.jsonl", map(FORMS["with ids"], [*ASKED[:7], "Another?"]))
    rows = datasets(name="jsonl", path=path, heldout=held)
    assert prompts(rows, "heldout") == {*ASKED[:7], "Another?"}
    assert prompts(rows, "train") == set(ASKED[7:])
    assert rows.counts["train_rows_held_out"] == 7
    assert rows.sizes() == {"a": {"train": 193, "heldout": 0}, "held": {"train": 0, "heldout": 8}}


def test_row_ids_name_the_file(datasets: Make, write: Write) -> None:
    def first(path: str, **more: Any) -> str:
        return datasets(name="jsonl", path=path, heldout_fraction=0, **more).prompts("train")[0].id

    rows = [FORMS["prompts"](q) for q in ASKED[:2]]
    assert first(write("sums/test.jsonl", rows)) == "sums/test/000000"
    assert first(write("sums/train.jsonl", rows)) == "sums/train/000000"
    assert first(write("sums/test.jsonl", rows), heldout_by="place") == "sums/train/000000"
    assert first(write("sums/mine.jsonl", rows)) == "mine/train/000000"


@pytest.mark.slow
def test_what_a_model_was_trained_on_is_known_when_it_is_tested(
    rlhf: Callable[..., Any], write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """SFT on everything; then GRPO holds out some of it, and an evaluation asks all of it."""
    rows = [
        {"prompt": q, "completion": f"The answer is {2 * i + 1}.", "answer": f"{2 * i + 1}"}
        for i, q in enumerate(ASKED)
    ]
    demos, asked = write("demos.jsonl", rows), write("prompts.jsonl", rows[:60])

    def train(*options: object, **settings: object) -> None:
        words = [w for k, v in settings.items() for w in ("--set", f"{k.replace('__', '.')}={v}")]
        ran = rlhf("train", *options, "--set", "threads=1", "--set", "trainer.eval_samples=4", *words)
        assert ran.code == 0, ran.err

    sft: dict[str, object] = {"trainer__max_steps": 1, "dataset__heldout_fraction": 0.01}
    train("--algo", "sft", "--dataset", demos, "--run-dir", "sft", **sft)
    grpo = ("--algo", "grpo", "--reward", "verifier", "--model", "sft/final", "--dataset", asked, "--run-dir", "grpo")
    train(*grpo, trainer__steps=1, trainer__rollout_batch_size=16, dataset__heldout_fraction=0.3)
    assert "the model was trained on" in caplog.text
    (sizes,) = json.loads(Path("grpo/plan.json").read_text())["rows"].values()
    assert sizes == {"train": 60 - 19, "heldout": 19}
    compared = json.loads(rlhf("runs", "compare", "sft", "grpo", "--json").out)["warnings"]
    assert any(w.startswith("grpo was trained (in sft) on") and "it holds out" in w for w in compared)
    ran = rlhf(
        "eval", "prompts", "--model", "grpo/final", "--data", asked, "--verifier", "numeric", "--limit", 4, "--json"
    )
    assert json.loads(ran.out)["seen_in_training"]["rows"] == 4
    ran = rlhf("eval", "prompts", "--dataset", "pocket/arithmetic", "--verifier", "numeric", "--limit", 4, "--json")
    assert "seen_in_training" not in json.loads(ran.out)


def test_a_run_says_which_held_out_rows_it_trains_on(tmp_path: Path, caplog: Any) -> None:
    recorder = RowRecorder(tmp_path, "pocket")
    rows = {"train": ["a", "b", "c"], "heldout": ["d"]}
    recorder(cast("Datasets", SimpleNamespace(content_keys=lambda split: set(rows[split]))))
    assert not caplog.text
    rows["heldout"] += ["b"]
    for _ in range(2):
        recorder(cast("Datasets", SimpleNamespace(content_keys=lambda split: set(rows[split]))))
    assert caplog.text.count("1 of the 2 held-out prompts are trained on too") == 1


def test_composed_and_decomposed_accents_are_one_prompt() -> None:
    assert content_key([user("caf\u00e9?")]) == content_key([user("cafe\u0301?")])


def test_a_damaged_plan_beside_a_model_is_a_warning(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "plan.json").write_text("{}")
    assert ancestors(str(tmp_path / "final")) == []
    assert "is not known: KeyError" in caplog.text
