"""Accuracy by the values of a column, verdicts with partial credit, and the form of the prompts of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import context_of, open_registry
from rlhf_eval.breakdown import band, breakdown
from rlhf_eval.prompt_form import warning
from rlhf_eval.report import pass_rates, report
from rlhf_eval.statistics import pass_at_k
from rlhf_eval.suites import SuiteConfig

from .conftest import result_row


def row(i: int, value: float, sample: int = 0, **meta: Any) -> dict[str, Any]:
    return result_row(i, value, sample=sample, meta=meta)


def test_each_value_has_its_share_and_wilsons_interval() -> None:
    rows = [row(0, 1.0, level=3), row(1, 0.0, level=3), row(2, 1.0, level=10), row(3, 1.0), row(4, 1.0, level=[3, 10])]
    by_level = breakdown(rows, ("level",))["level"]
    assert {k: (v["prompts"], round(v["value"], 3)) for k, v in by_level.items()} == {
        "3": (3, 0.667),
        "10": (2, 1.0),
        "(none)": (1, 1.0),
    }
    assert list(by_level) == ["3", "10", "(none)"]
    two_of_three = breakdown([row(i, float(i < 2), level=1) for i in range(3)], ("level",))["level"]["1"]
    assert (round(two_of_three["low"], 3), round(two_of_three["high"], 3)) == (0.208, 0.939)  # Wilson, 2 of 3


def test_samples_of_a_prompt_count_as_one_prompt_and_bands_are_of_pass_rates(tmp_path: Path) -> None:
    rows = [row(i, float(j < right), j) for i, right in enumerate((0, 1, 2, 4)) for j in range(4)]
    bands = breakdown(rows, ("pass-band",))["pass-band"]
    assert {name: v["prompts"] for name, v in bands.items()} == {"0": 1, "0 to 0.25": 1, "0.25 to 0.5": 1, "1": 1}
    assert [band(r) for r in (0.0, 0.01, 0.25, 0.26, 0.99, 1.0)] == [
        "0", "0 to 0.25", "0 to 0.25", "0.25 to 0.5", "0.75 to 1", "1",
    ]  # fmt: skip
    file = tmp_path / "rates.jsonl"
    file.write_text(json.dumps({"id": "p0", "pass_rate": 0.6}) + "\n")
    by_file = breakdown(rows, (f"pass-band={file}",))[f"pass-band={file}"]
    assert {name: v["prompts"] for name, v in by_file.items()} == {"0.5 to 0.75": 1, "(none)": 3}


def test_partial_credit_counts_from_a_threshold() -> None:
    rows = [row(0, value, j) for j, value in enumerate((0.0, 0.4, 0.6, 1.0))]
    for least, right in ((1.0, 1), (0.5, 2), (0.01, 3)):
        figures = report(rows, least=least)
        assert figures["pass_at"]["2"]["value"] == pytest.approx(pass_at_k(4, right, 2))
        assert figures["value"]["value"] == pytest.approx(0.5)
        assert pass_rates(rows, least)[0]["right"] == right


def test_a_suite_is_filtered_and_split_by_a_column(rlhf: Callable[..., Any], write: Callable[..., Path]) -> None:
    problems = [{"problem": f"{i}?", "answer": "1", "level": f"Level {i % 3}"} for i in range(9)]
    file = write("math.jsonl", problems)
    words = ("eval", "math", "--data", file, "--max-tokens", 4, "--out", "e")
    ran = rlhf(*words, "--by", "level", "--set", "where=level in [1, 2]", "--json")
    assert ran.code == 0, ran.err
    assert {k: v["prompts"] for k, v in json.loads(ran.out)["by"]["level"].items()} == {"1": 3, "2": 3}
    shown = rlhf(*words, "--by", "level", "--set", "where=level in [1, 2]")
    assert "level  prompts  right" in shown.out
    other = rlhf("eval", "math", "--data", file, "--by", "levle", "--out", "f")
    assert (other.code, "no row has that column" in other.err, Path("f").exists()) == (2, True, False)
    bands = rlhf("eval", "math", "--data", file, "--by", "pass-band", "--out", "f")
    assert (bands.code, "needs several samples" in bands.err) == (2, True)
    rates = write("rates.jsonl", [{"id": "gsm8k/0", "pass_rate": 0.5}])
    others = rlhf("eval", "math", "--data", file, "--by", f"pass-band={rates}", "--out", "f")
    assert (others.code, "no pass rate of any" in others.err, Path("f").exists()) == (2, True, False), others.err


def suite(name: str, **options: Any) -> SuiteConfig:
    ctx = context_of(open_registry())
    return ctx.registry.config("benchmark", name, options).resolved(ctx)  # type: ignore[attr-defined]


def run_of(folder: Path, dataset: Any, prompt_format: str = "auto") -> str:
    model = folder / "run" / "final"
    model.mkdir(parents=True)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    (model / "tokenizer_config.json").write_text("{}")
    plan = {"config": {"dataset": dataset, "model": {"prompt_format": prompt_format}}}
    (folder / "run" / "plan.json").write_text(json.dumps(plan))
    return str(model)


R1 = {"sources": [{"source": {"name": "where", "of": {"name": "gsm8k", "path": "x", "prompt": "r1_zero"}}}]}
PLAIN = {"sources": [{"source": {"name": "gsm8k", "path": "x"}, "prompt_template": None}]}


@pytest.mark.parametrize(
    ("dataset", "prompt_format", "options", "said"),
    [
        (PLAIN, "auto", {}, ""),
        (PLAIN, "chat", {"style": "plain"}, ""),
        (R1, "raw", {"style": "r1_zero"}, ""),
        (R1, "raw", {}, "asked in the chat template"),
        (PLAIN, "raw", {}, "trained on prompts in plain text, and is asked in the chat template"),
        (PLAIN, "auto", {"style": "cot"}, "asked in plain text with 'Q: {prompt}"),
        (PLAIN, "auto", {"template": "So: {prompt}"}, "with 'So: {prompt}'"),
        ({**PLAIN, "system_prompt": "Be brief."}, "auto", {}, "the system prompt 'Be brief.'"),
        (
            {"sources": [{"source": {"name": "jsonl"}, "prompt_template": "Q: {prompt}\nA:"}]},
            "raw",
            {"style": "cot"},
            "",
        ),
        (PLAIN, "auto", {"shots": 2, "shots_path": "y"}, "after 2 worked examples"),
    ],
)
def test_another_form_than_the_run_s_is_told(
    dataset: Any, prompt_format: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    text = warning(run_of(tmp_path, dataset, prompt_format), suite("gsm8k", path="x", **options))
    assert said in text
    assert bool(text) == bool(said)
    assert warning("pocket", suite("gsm8k", path="x", **options)) == ""


@pytest.mark.slow
def test_a_run_s_own_form_is_not_warned_about(rlhf: Callable[..., Any], trained: Path) -> None:
    own: Sequence[Any] = ("prompts", "--dataset", "pocket/arithmetic", "--verifier", "numeric", "--limit", 2)
    model = ("--model", trained / "final", "--max-tokens", 4)
    assert "was trained on prompts in" not in rlhf("eval", *own, *model, "--out", "a").err
    other = rlhf("eval", *own, *model, "--style", "qa", "--out", "b")
    assert "was trained on prompts in" in other.err
    assert "prompt_form" in json.loads(Path("b/report.json").read_text())
