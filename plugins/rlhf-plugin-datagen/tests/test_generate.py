"""What each kind of data makes of prompts: the pocket model or a rule writes, a rule judges."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import Registry, RlhfError
from rlhf_core.data import read_jsonl
from rlhf_plugin_datagen.outside import open_datasets
from rlhf_plugin_datagen.report import require_rows
from rlhf_plugin_judge.local import misfit

Command = Callable[..., tuple[int, str]]
pytestmark = pytest.mark.usefixtures("rule_judge")
RULES = "--judge", "rule", "--generator", "rule"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))


def left_out(path: Path) -> list[dict[str, Any]]:
    return rows(path.with_name(path.name + ".left_out.jsonl"))


RUBRIC = (
    "- {name: short, question: 'Is it short?', scale: [1, 5], weight: 3}\n"
    "- {name: kind, question: 'Is it kind?', scale: [1, 5]}\n"
)


@pytest.mark.slow
def test_preferences_of_the_pocket_model_are_pairs_to_train_on(tmp_path: Path, command: Command) -> None:
    out = tmp_path / "generated.jsonl"
    code, err = command(
        "data",
        "generate",
        "preferences",
        "--model",
        "pocket",
        "--judge",
        "rule",
        "--count",
        12,
        "--max-tokens",
        48,
        "--output",
        out,
    )
    assert code == 0, err
    pair_rows, left_out_rows = rows(out), left_out(out)
    assert len(pair_rows) + len(left_out_rows) == 12
    assert {r["left_out"] for r in left_out_rows} <= {"identical_responses", "tie", "empty_response", "cut_off"}
    assert len(pair_rows) > 4
    assert all(len(r["chosen"]) < len(r["rejected"]) and r["why"] == "principle 6" for r in pair_rows)
    pairs = open_datasets(Registry(), str(out), heldout_fraction=0.0).pairs("train")
    assert {p.id.removeprefix("generated/"): p.chosen for p in pairs} == {r["id"]: r["chosen"] for r in pair_rows}


def test_demonstrations_are_the_revision_of_the_draft(prompts: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "sft.jsonl"
    code, err = command("data", "generate", "sft", "--judge", "rule", "--dataset", prompts, "--output", out)
    assert code == 0, err
    demonstration_rows = rows(out)
    assert len(demonstration_rows) == 12
    assert all(r["completion"] == r["draft"].upper() and r["critique"] == "Louder." for r in demonstration_rows)
    assert demonstration_rows[0]["usage"] == {
        "requests": 3,
        "cached": 0,
        "input_tokens": 300,
        "output_tokens": 30,
        "cost_usd": pytest.approx(0.00045),
    }


def test_grades_of_given_responses(tmp_path: Path, command: Command) -> None:
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    source = write(
        tmp_path / "responses.jsonl", [{"prompt": "Hi?", "completion": text} for text in ("Hi.", "a b c d e")]
    )
    out = tmp_path / "graded.jsonl"
    arguments = ("data", "generate", "grades", "--judge", "rule", "--dataset", source, "--output", out)
    code, err = command(*arguments, "--rubric", tmp_path / "rubric.yaml")
    assert code == 0, err
    assert [(r["completion"], r["grades"], r["score"]) for r in rows(out)] == [
        ("Hi.", {"short": 5, "kind": 3}, pytest.approx((3 * 1 + 0.5) / 4)),
        ("a b c d e", {"short": 1, "kind": 3}, pytest.approx(0.5 / 4)),
    ]
    settings = json.loads((tmp_path / "graded.jsonl.settings.json").read_text())
    assert settings["generator"] == settings["judge"]  # the pocket model, which has nothing to write, is not loaded
    code, err = command(*arguments)
    assert code == 2
    assert "other settings" in err
    assert "rubric" in err


@pytest.mark.parametrize("use", ["rule", "prose"])
def test_grades_of_other_responses_under_the_same_ids_are_not_gone_on_with(
    use: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    out, source = tmp_path / "graded.jsonl", tmp_path / "responses.jsonl"
    arguments = (
        "data",
        "generate",
        "grades",
        "--judge",
        "rule",
        "--set",
        f"manner={use}",
        "--dataset",
        source,
        "--rubric",
        tmp_path / "rubric.yaml",
        "--output",
        out,
    )
    write(source, [{"prompt": "Hi?", "completion": text} for text in ("Hi.", "a b c d e")])
    ends = 0 if use == "rule" else 2
    assert command(*arguments)[0] == ends
    before = (rows(out), left_out(out))
    assert command(*arguments)[0] == ends
    write(source, [{"prompt": "Hi?", "completion": text} for text in ("Hi.", "of a newer policy")])
    code, err = command(*arguments)
    assert (code, "another response for id" in err) == (2, True), err
    assert (rows(out), left_out(out)) == before


def test_given_responses_are_not_written_anew_because_the_first_row_has_none(tmp_path: Path, command: Command) -> None:
    source = write(tmp_path / "responses.jsonl", [{"prompt": "Hi?"}, {"prompt": "Ho?", "completion": "Hi."}])
    code, err = command("data", "generate", "grades", *RULES, "--dataset", source, "--output", tmp_path / "out.jsonl")
    assert code == 2
    assert "responses.jsonl" in err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_grades_are_rows_for_the_rubric_model(tmp_path: Path, command: Command) -> None:
    from rlhf_plugin_rubric.graded import read_rows
    from rlhf_plugin_rubric.rubric import load_rubric

    rubric, out = tmp_path / "rubric.yaml", tmp_path / "graded.jsonl"
    rubric.write_text(RUBRIC)
    source = write(
        tmp_path / "responses.jsonl", [{"prompt": "Hi?", "completion": text} for text in ("Hi.", "a b c d e")]
    )
    code, err = command(
        "data", "generate", "grades", "--judge", "rule", "--dataset", source, "--rubric", rubric, "--output", out
    )
    assert code == 0, err
    datasets = open_datasets(Registry(), str(out), heldout_fraction=0.0)
    learned = read_rows(datasets, "train", load_rubric(str(rubric)), Counter())
    assert {g.completion: g.grades_K for g in learned} == {"Hi.": (1.0, 0.5), "a b c d e": (0.0, 0.5)}


@pytest.mark.parametrize(
    ("kind", "manner", "reason", "words"),
    [
        ("preferences", "first", "order_decides", "swapped"),
        ("preferences", "prose", "judge_unusable", "no JSON object"),
        ("grades", "prose", "judge_unusable", "no JSON object"),
        ("grades", "rule", "judge_unusable", "no grade for helpfulness"),
    ],
)
def test_verdicts_of_no_use_are_left_out_once_and_for_all(
    kind: str, manner: str, reason: str, words: str, prompts: Path, tmp_path: Path, command: Command
) -> None:
    log, out = tmp_path / "log", tmp_path / "out.jsonl"
    for _ in range(2):
        code, err = command(
            "data",
            "generate",
            kind,
            "--dataset",
            prompts,
            "--count",
            4,
            *RULES,
            "--set",
            f"manner={manner}",
            "--set",
            f"log={log}",
            "--output",
            out,
        )
        assert code == 2, "all was answered, and nothing can be used"
        assert f"no row of {kind} was made of 4 prompts" in err
        assert reason in err
        assert not rows(out)
        unusable_rows = [r for r in left_out(out) if r["left_out"] != "identical_responses"]
        assert unusable_rows
        assert {r["left_out"] for r in unusable_rows} == {reason}
        assert all(words in r["detail"] for r in unusable_rows)
    request_ids = log.read_text().splitlines()
    assert len(request_ids) == len(set(request_ids))  # the second call asked nothing again


@pytest.mark.parametrize("kind", ["preferences", "sft", "grades"])
def test_a_text_that_ends_at_the_token_limit_is_no_example(
    kind: str, prompts: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out.jsonl"
    code, err = command(
        "data", "generate", kind, "--dataset", prompts, "--count", 4, *RULES, "--output", out, "--max-tokens", 10
    )  # as long as every answer of the rule
    assert (code, "--max-tokens" in err) == (2, True), err
    assert not rows(out)
    assert {r["left_out"] for r in left_out(out)} - {"identical_responses"} == {"cut_off"}


def test_off_the_scale_is_refused_and_prose_is_asked_again(prompts: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    shared = ("--dataset", prompts, "--generator", "rule", "--judge", "rule")
    out = tmp_path / "grades.jsonl"
    command(
        "data",
        "generate",
        "grades",
        *shared,
        "--set",
        "manner=off_scale",
        "--rubric",
        tmp_path / "rubric.yaml",
        "--output",
        out,
    )
    assert any("outside its scale from 1 to 5" in r["detail"] for r in left_out(out))
    assert all(r["grades"]["short"] == 1 for r in rows(out))
    repaired = tmp_path / "repaired.jsonl"
    code, err = command("data", "generate", "preferences", *shared, "--set", "manner=repairs", "--output", repaired)
    assert code == 0, err
    assert rows(repaired)
    assert rows(repaired)[0]["usage"]["requests"] == 6  # two responses, two questions, each asked again


@pytest.mark.parametrize(
    ("question", "answer", "advice"),
    [
        (282, 64, "take shorter prompts, or a model with a longer context (--model, --judge)"),
        (256, 1, "take shorter prompts, or a model with a longer context (--model, --judge)"),
        (200, 64, "lower --max-tokens or --judge-tokens"),
    ],
)
def test_what_to_do_where_no_question_fits_the_context(question: int, answer: int, advice: str) -> None:
    result = {"kind": "sft", "prompts": 1, "rows": 0, "left_out": 0, "left_out_reasons": {}, "unanswered": 1}
    with pytest.raises(RlhfError) as raised:
        require_rows({**result, "output": "made.jsonl", "first_unanswered": f"error: {misfit(question, answer, 256)}"})
    assert raised.value.fix == advice


def test_the_pocket_model_is_too_short_for_a_constitution(tmp_path: Path, command: Command) -> None:
    code, err = command(
        "data", "generate", "sft", "--model", "pocket", "--count", 2, "--output", tmp_path / "made.jsonl"
    )
    assert code == 2
    assert "the question alone has" in err
    assert "fix: take shorter prompts, or a model with a longer context" in err
