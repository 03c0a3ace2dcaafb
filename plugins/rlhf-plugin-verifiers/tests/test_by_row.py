"""RLVR rows as published, each judged by the verifier that a column of it names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import Registry
from rlhf_core.data import DatasetError
from rlhf_core.rewards import ScoreStatus
from rlhf_plugin_verifiers.by_row.rows import reference_of
from rlhf_plugin_verifiers.datasets.config import RlvrDataConfig
from rlhf_testing import check_dataset, check_verifier, make_context, make_samples

BULLETS = {"func_name": "verify_bullet_points", "N": 3, "quantifier": None, "keyword_list": None}
IDS = ["punctuation:no_comma", "last_word:last_word_answer"]
SEVERAL = [{"instruction_id": IDS, "kwargs": [None, {"last_word": ["done"]}]}]
BULLETS_READ = {"instruction_id_list": ["rlvr:verify_bullet_points"], "kwargs": [{"N": 3}]}
SEVERAL_READ = {"instruction_id_list": IDS, "kwargs": [{}, {"last_word": "done"}]}


def row(number: int, dataset: str, ground_truth: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": f"Question {number}?"}]
    more = {"constraint_type": None, "constraint": None}
    return {"messages": turns, "ground_truth": ground_truth, "dataset": dataset, **more}


def write(file: Path, *extra: dict[str, Any]) -> Path:
    kinds = [("gsm8k", "7"), ("MATH", "\\frac{3}{2}"), ("ifeval", json.dumps(BULLETS)), ("ifeval", str(SEVERAL))]
    rows = [row(n, *kinds[n % 4]) for n in range(8)]
    file.write_text("".join(json.dumps(r) + "\n" for r in [*rows, *extra]))
    return file


@pytest.mark.parametrize(
    ("ground_truth", "read"),
    [
        ("72", {"answer": "72"}),
        (72, {"answer": "72"}),
        ("\\frac{1}{2}", {"answer": "\\frac{1}{2}"}),
        ("[1, 2)", {"answer": "[1, 2)"}),
        ("[0,4]", {"answer": "[0,4]"}),
        (["[0,4]"], {"answer": "[0,4]"}),
        ("{1,2}", {"answer": "{1,2}"}),
        ("[[1, 2], [3, 4]]", {"answer": "[[1, 2], [3, 4]]"}),
        (["72"], {"answer": "72"}),
        (json.dumps(BULLETS), BULLETS_READ),
        (str(BULLETS), BULLETS_READ),
        (BULLETS, BULLETS_READ),
        (str(SEVERAL), SEVERAL_READ),
        (json.dumps(SEVERAL), SEVERAL_READ),
        ([str(SEVERAL)], SEVERAL_READ),
        (str([json.dumps(SEVERAL[0])]), SEVERAL_READ),
    ],
)
def test_published_forms_of_a_reference(ground_truth: Any, read: dict[str, Any]) -> None:
    assert reference_of(ground_truth) == read


@pytest.mark.parametrize(
    ("ground_truth", "why"),
    [
        ('{"N": 3}', "neither 'func_name'"),
        ("[]", "names no instruction"),
        ([0, 4], "holds '0'"),
        ('[0, {"N": 3}]', "holds '0'"),
        ('[[{"N": 3}]]', "neither 'func_name'"),
        (None, "names no instruction"),
        ('[{"instruction_id": ["a:b"], "kwargs": []}]', "1 instructions"),
        ('[{"instruction_id": ["a:b"], "kwargs": ["x"]}]', "'x' in 'kwargs'"),
    ],
)
def test_other_forms_are_refused(ground_truth: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        reference_of(ground_truth)


def test_the_data_set_reads_published_files(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = write(tmp_path / "rows.jsonl", {**row(8, "gsm8k", "8"), "key": "k8"})
    rows = RlvrDataConfig(path=str(file)).build(make_context(registry=Registry())).rows("train")
    assert [r.get("answer") for r in rows[:2]] == ["7", "\\frac{3}{2}"]
    assert [r["instruction_id_list"] for r in rows[2:4]] == [
        ["rlvr:verify_bullet_points"],
        IDS,
    ]
    assert (rows[0]["dataset"], rows[8]["id"]) == ("gsm8k", "k8")
    table = pa.Table.from_pylist([json.loads(line) for line in file.read_text().splitlines()])
    pq.write_table(table, tmp_path / "rows.parquet")
    config = RlvrDataConfig(path=str(tmp_path / "rows.parquet"))
    assert [r["prompt"] for r in config.build(make_context(registry=Registry())).rows("train")] == [
        r["prompt"] for r in rows
    ]
    check_dataset(RlvrDataConfig(path=str(file)))
    file.write_text(json.dumps({**row(0, "ifeval", "{'N': 3}")}))
    with pytest.raises(DatasetError, match=r"(?s)rows.jsonl, line 1.*neither 'func_name'"):
        RlvrDataConfig(path=str(file)).build(make_context(registry=Registry())).rows("train")


def test_each_row_is_judged_by_its_verifier(make_verifier: Callable[..., Any], sample: Callable[..., Any]) -> None:
    reward = make_verifier("by_row")
    scores = reward.score(
        [
            sample("The answer is 7.", "7", dataset="gsm8k"),
            sample("So \\boxed{1.5}", None, dataset="MATH", ground_truth="\\frac{3}{2}"),
            sample("* a\n* b\n* c", None, dataset="ifeval", ground_truth=json.dumps(BULLETS)),
            sample("Yes, it is done", None, dataset="ifeval", ground_truth=str(SEVERAL)),
            sample("B", "B", dataset="choice"),
            sample("7", "7", dataset="geometry"),
            sample("7", "7"),
        ]
    )
    assert [s.value for s in scores] == [1.0, 1.0, 1.0, 0.5, 1.0, None, None]  # constraints: their mean
    assert scores[3].parts["strict_instructions"] == scores[3].parts["loose_instructions"] == 0.5
    assert [s.status for s in scores[5:]] == [ScoreStatus.MISSING] * 2
    assert "no verifier of that name" in scores[5].detail


def test_the_table_of_verifiers_can_be_changed(make_verifier: Callable[..., Any], sample: Callable[..., Any]) -> None:
    changed = {"ifeval": {"value": "all"}, "MATH": {"mode": "strict"}, "quiz": "exact"}
    reward = make_verifier({"name": "by_row", "column": "source", "verifiers": changed})
    scores = reward.score(
        [
            sample("Yes, it is done", None, source="ifeval", ground_truth=str(SEVERAL)),
            sample("so 1.5", "1.5", source="MATH"),
            sample("blue", "blue", source="quiz"),
            sample("The answer is 7.", "7", source="gsm8k"),
        ]
    )
    assert [s.value for s in scores] == [0.0, 0.0, 1.0, 1.0]


def test_all_verifiers_can_be_put_into_one_mode(make_verifier: Callable[..., Any], sample: Callable[..., Any]) -> None:
    rows = [
        sample("so 7", "7", dataset="gsm8k"),
        sample("Well, yes.\nThis is done", None, dataset="ifeval", ground_truth=str(SEVERAL)),
    ]
    values = {
        m: [s.value for s in make_verifier({"name": "by_row", "mode": m}).score(rows)] for m in ("strict", "lenient")
    }
    assert values == {"strict": [0.0, 0.5], "lenient": [1.0, 1.0]}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (row(8, "geometry", "7"), "column 'dataset' is 'geometry', and no verifier of that name is installed"),
        (row(8, "gsm8k", json.dumps(BULLETS)), "there is no reference answer, and verifier 'gsm8k'"),
        (row(8, "gsm8k", "about seven"), "is not a number alone"),
        (row(8, "ifeval", "7"), "no 'instruction_id_list'"),
        (row(8, "ifeval", json.dumps({"func_name": "verify_bullets"})), "did you mean 'rlvr:verify_bullet_points'"),
        ({**row(8, "gsm8k", "7"), "dataset": None}, "no text in column 'dataset'"),
    ],
)
def test_a_row_that_cannot_be_judged_is_refused_with_its_line(
    named: bool, extra: dict[str, Any], why: str, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    file = write(tmp_path / "rows.jsonl", extra)
    dataset = ("--set", f"dataset={{name: rlvr, path: {file}}}") if named else ("--dataset", file)
    more = ("--set", "dataset.heldout_fraction=0.0", "--set", "trainer.rollout_batch_size=8", "--dry-run")
    code, output = command("train", "--algo", "grpo", "--reward", "by_row", *dataset, *more)
    assert code == 2
    assert "rows.jsonl, line 9" in output
    assert why in output


def test_a_mixture_is_in_order_and_the_verifier_keeps_its_contract(
    tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    file = write(tmp_path / "rows.jsonl")
    more = ("--set", "dataset.heldout_fraction=0.0", "--set", "trainer.rollout_batch_size=8", "--dry-run")
    code, output = command("train", "--algo", "grpo", "--reward", "by_row", "--dataset", file, *more)
    assert code == 0, output
    config = Registry().config("verifier", "by_row")
    samples = [replace(s, prompt=replace(s.prompt, meta={"dataset": "gsm8k"})) for s in make_samples()]
    check_verifier(config, samples=samples)
