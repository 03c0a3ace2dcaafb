"""Labelled steps: generated chains, changed GSM8K solutions, ProcessBench; and rows that do not fit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import DatasetError, Datasets, DatasetSettings, JsonlConfig, Prompt
from rlhf_core.rewards import Sample
from rlhf_plugin_prm.data.chains import check, gold, read_question
from rlhf_plugin_prm.data.config import ChainStepsConfig, Gsm8kStepsConfig, ProcessBenchConfig
from rlhf_plugin_prm.data.perturb import NotWorked, evaluate, perturb, untouched
from rlhf_plugin_prm.examples import Solution, check_both_classes, read_solutions
from rlhf_testing import check_dataset, make_context

QUESTION = "Natalia sold clips to 48 friends in April, and half as many in May. How many altogether?"
ANSWER = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nSo 48+24 = <<48+24=72>>72 clips.\n#### 72"


def test_a_carried_error_is_worked_out_and_a_slip_is_not() -> None:
    assert untouched(ANSWER).steps == (
        "Natalia sold 48/2 = 24 clips in May.",
        "So 48+24 = 72 clips.",
        "The answer is 72.",
    )
    carried = [perturb(QUESTION, ANSWER, "carried", random.Random(n)) for n in range(40)]
    first = [c for c in carried if c and not c.labels[0]]
    assert first
    for solution in first:
        new = solution.steps[0].split(" = ")[1].split()[0]
        total = 48 + int(new)
        assert solution.steps[1:] == (f"So 48+{new} = {total} clips.", f"The answer is {total}.")
        assert solution.labels == (False, False, False)
        assert not solution.outcome
    assert any(c and c.labels == (True, False, False) for c in carried)
    slip = perturb(QUESTION, ANSWER, "slip", random.Random(1))
    assert slip is not None
    assert slip.steps[0] != untouched(ANSWER).steps[0]
    assert slip.steps[1:] == untouched(ANSWER).steps[1:]
    assert (slip.labels, slip.outcome) == ((False, False, False), True)


def test_numbers_of_the_question_are_not_taken_for_computed_ones() -> None:
    answer = "She has 5*1 = <<5*1=5>>5.\nThat is <<5+2=7>>7.\n#### 7"
    solutions = [perturb("She has 5 and gets 2.", answer, "carried", random.Random(n)) for n in range(20)]
    assert {solution.labels for solution in solutions if solution} == {(True, False, False)}
    assert perturb("She has 5 and gets 2.", answer, "slip", random.Random(0)) is None


def test_what_is_no_worked_solution() -> None:
    with pytest.raises(NotWorked, match="ends with '#### X'"):
        untouched("72")
    assert evaluate("(48+24)/2") == 36
    assert [evaluate(t) for t in ("1/0", "2**8", "x+1", "(" * 5000, "")] == [None] * 5


def test_real_solutions_are_changed_in_one_place(test_data: Path) -> None:
    config = Gsm8kStepsConfig(path=str(test_data / "gsm8k" / "test.jsonl.gz"), slip=1, problems=300)
    rows = config.build(make_context()).rows("train")
    kinds: dict[str, list[Any]] = {k: [r for r in rows if r["kind"] == k] for k in ("right", "carried", "slip")}
    assert len(kinds["right"]) == 300
    assert len(kinds["carried"]) > 250
    assert len(kinds["slip"]) > 250
    published = {r["prompt"]: r["steps"] for r in kinds["right"]}
    for row in kinds["slip"]:
        differ = [a != b for a, b in zip(row["steps"], published[row["prompt"]])]
        assert sum(differ) == 1
        assert differ.index(True) == row["labels"].index(False)
    for row in kinds["carried"]:
        differ = [a != b for a, b in zip(row["steps"], published[row["prompt"]])]
        assert differ.index(True) == row["labels"].index(False)
        assert differ[-1]


@pytest.mark.slow
def test_no_problem_is_in_both_splits(test_data: Path) -> None:
    config = Gsm8kStepsConfig(path=str(test_data / "gsm8k" / "test.jsonl.gz"), heldout_share=0.2)
    source = config.build(make_context())
    train, heldout = ({r["prompt"] for r in source.rows(s)} for s in ("train", "heldout"))
    assert not train & heldout
    assert len(heldout) > 150


def test_chains_say_which_steps_are_right() -> None:
    config = ChainStepsConfig(chains=60, slip=1, cancelled=1)
    check_dataset(config)
    rows = config.build(make_context()).rows("train")
    assert {r["kind"] for r in rows} == {"right", "carried", "slip", "cancelled"}
    for row in rows:
        chain = read_question(row["prompt"])
        assert chain is not None
        assert check(chain, row["completion"]) == row["labels"]
        ends_right = row["completion"].endswith(f"The answer is {row['answer']}.")
        assert ends_right == row["outcome"] == (row["kind"] != "carried")
        assert all(row["labels"]) == (row["kind"] == "right")
    heldout = config.build(make_context()).rows("heldout")
    assert not {r["prompt"] for r in rows} & {r["prompt"] for r in heldout}


def test_the_gold_score_wants_every_step() -> None:
    prompt = Prompt("a", ({"role": "user", "content": "What is 7 + 5 - 3?"},))
    texts = {
        "7 + 5 = 12\n12 - 3 = 9\nThe answer is 9.": (1, 1, 1),
        "7 + 5 = 13\n12 - 3 = 9\nThe answer is 9.": (0, 1, 0),
        "The answer is 9.": (0, 1, 0),
        "": (0, 0, 0),
        "7 + 5 = 12\nThe answer is 12.": (0, 0, 0.5),
    }
    for text, expected in texts.items():
        assert tuple(gold(Sample(prompt, text)).values()) == expected


def test_processbench(test_data: Path) -> None:
    config = ProcessBenchConfig(path=str(test_data / "processbench" / "gsm8k.json.gz"))
    check_dataset(config)
    rows = solutions([config])
    assert len(rows) == 400
    assert sum(r.first_error >= 0 for r in rows) == 207
    assert sum(r.outcome for r in rows) == 200
    first = rows[0]
    assert (first.first_error, len(first.steps), first.labels) == (1, 4, (True, False, False, False))


def solutions(sources: list[Any]) -> list[Solution]:
    settings = {"sources": [{"source": s} for s in sources], "heldout_fraction": 0.0}
    datasets = Datasets(DatasetSettings.model_validate(settings), make_context())
    return read_solutions(datasets.prompts("train"), "newline", datasets.where)


def test_numbers_of_a_table_are_read(tmp_path: Path) -> None:
    row = {"prompt": "2 + 3?", "completion": "It is 6.", "label": "0", "outcome": "False"}  # cells are texts
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert [(r.labels, r.outcome) for r in solutions([JsonlConfig(path=str(tmp_path / "a.jsonl"))])] == [
        ((False,), False)
    ]


GOOD = {"prompt": "2 + 3?", "completion": "2 + 3 = 5\nIt is 5.", "labels": [True, False]}
BAD = {
    "2 steps but 3 labels": {"labels": [1, 1, 0]},
    "label 5 is not a step of 2": {"labels": None, "label": 5},
    "label -2 is not a step": {"labels": None, "label": -2},
    "a row has no step labels": {"labels": None},
    "labels: 'yes' is neither true nor false": {"labels": ["yes", True]},
    "outcome: 0.5 is neither": {"outcome": 0.5},
    "the response is empty": {"completion": " \n"},
    "step 2 of 2 is empty": {"steps": ["one", " "]},
    "steps are not a list of texts": {"steps": "one"},
    "neither steps nor a completion": {"completion": None},
}


@pytest.mark.parametrize("message", list(BAD))
def test_a_row_that_does_not_fit_is_named(
    command: Callable[..., tuple[int, str]], tmp_path: Path, message: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in (GOOD, {**GOOD, **BAD[message]}, GOOD)))
    with pytest.raises(DatasetError) as caught:
        solutions([JsonlConfig(path=str(file))])
    assert message in str(caught.value)
    assert "line 2" in str(caught.value)


def test_rows_of_one_class_are_refused_before_the_model_is_loaded(
    command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({**GOOD, "labels": [1, 1], "outcome": n % 2}) + "\n" for n in range(30)))
    code, err = command(
        "train", "--algo", "prm", "--dataset", file, "--model", "no/such-model", "--run-dir", tmp_path / "run"
    )
    assert code == 2
    assert "labelled steps are right" in err
    assert "rlhf data perturb" in err
    rows = solutions([JsonlConfig(path=str(file))])
    with pytest.raises(DatasetError, match="all 60 labelled steps are right"):
        check_both_classes(rows, "steps")
    check_both_classes(rows, "outcome")


@pytest.mark.parametrize("setting", ["turns=last", "truncation=right"])
def test_settings_of_pairwise_models_are_refused(command: Callable[..., tuple[int, str]], setting: str) -> None:
    code, err = command("train", "--algo", "prm", "--set", f"trainer.{setting}", "--dry-run")
    assert code == 2
    assert "has no effect with 'prm'" in err


def test_perturb_writes_rows_that_the_trainer_reads(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    raw, out = tmp_path / "gsm8k.jsonl", tmp_path / "steps.jsonl"
    raw.write_text("".join(json.dumps({"question": QUESTION, "answer": ANSWER}) + "\n" for _ in range(3)))
    code, err = command("data", "perturb", "--input", raw, "--output", out, "--slip", 1)
    assert code == 0, err
    rows = solutions([JsonlConfig(path=str(out))])
    assert len(rows) == 9
    assert sum(r.outcome for r in rows) == 6
    raw.write_text(json.dumps({"question": QUESTION, "answer": "72"}) + "\n")
    code, err = command("data", "perturb", "--input", raw, "--output", out)
    assert code == 2
    assert "line 1" in err
    assert "#### X" in err
