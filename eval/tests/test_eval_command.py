"""`rlhf eval` on the pocket model: rows, report, resume, comparison, checkpoints, training runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import context_of, open_registry
from rlhf_core.cli.main import main
from rlhf_core.data.settings import CurriculumSettings
from rlhf_core.models import ModelConfig
from rlhf_eval.cli import suite_of
from rlhf_eval.harness import Job, evaluate
from rlhf_eval.judging import BatchedJudge
from rlhf_plugin_schedule.curriculum import read_values

from .conftest import ARITHMETIC, BENCHMARK

Arithmetic = Callable[..., dict[str, Any]]
Rlhf = Callable[..., Any]


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_every_completion_is_on_disk_and_the_report_is_what_the_rows_say(arithmetic: Arithmetic, rlhf: Rlhf) -> None:
    oracle = "reward:{name: verifier, verifier: numeric}"
    result = arithmetic("--n", 4, "--limit", 24, "--best-by", oracle, "--out", "out")
    rows = jsonl(Path("out/rows.jsonl"))
    assert len(rows) == 96
    assert len({(r["id"], r["sample"], r["seed"]) for r in rows}) == 96
    assert len({r["seed"] for r in rows}) == 96
    right = [r for r in rows if r["completion"] == f"The answer is {r['answer']}."]
    assert result["pass_at"]["1"]["value"] == pytest.approx(len(right) / 96)
    assert result["pass_at"]["4"]["value"] == len({r["id"] for r in right}) / 24
    assert result["categories"] == {"format only": 96 - len(right), "format and answer": len(right)}
    for name in ("logprob", "verifier"):
        assert result["best_at"][name]["1"]["value"] == pytest.approx(len(right) / 96)
    assert result["best_at"]["verifier"]["4"]["value"] == pytest.approx(result["pass_at"]["4"]["value"])
    first = {
        i: max((r for r in rows if r["id"] == i), key=lambda r: r["logprob"] / r["tokens"])
        for i in {r["id"] for r in rows}
    }
    assert result["best_at"]["logprob"]["4"]["value"] == sum(r in right for r in first.values()) / 24
    assert result["majority_at"]["1"]["value"] == pytest.approx(len(right) / 96)
    assert result["endings"]["reasons"] == {"eos": 96}
    values = read_values(CurriculumSettings(path="out/pass_rates.jsonl"))
    assert values == {i: sum(r in right for r in rows if r["id"] == i) / 4 for i in first}
    assert Path("out/curve.png").stat().st_size > 1000
    again = rlhf("reward", "score", "--reward", "verifier", "--input", "out/rows.jsonl", "--json")
    scored = json.loads(again.out)
    assert [r["score"] for r in scored["rows"]] == [r["value"] for r in rows]
    assert (scored["prompts"], scored["count"], scored["earlier_mean"]) == (24, 96, scored["mean"])


@pytest.mark.slow
def test_a_torn_evaluation_goes_on_to_the_same_bytes(arithmetic: Arithmetic) -> None:
    options = ("--n", 2, "--limit", 12, "--set", "chunk=8")
    arithmetic(*options, "--out", "whole")
    shutil.copytree("whole", "torn")
    rows, times = Path("torn/rows.jsonl"), Path("torn/times.jsonl")
    rows.write_bytes(rows.read_bytes()[:-400])
    times.write_bytes(b"".join(times.read_bytes().splitlines(keepends=True)[:1]) + b'{"first"')
    result = arithmetic(*options, "--out", "torn")
    assert rows.read_bytes() == Path("whole/rows.jsonl").read_bytes()
    assert len(jsonl(times)) == 3
    assert result["completions"] == 24


@pytest.mark.slow
def test_rows_and_progress_come_while_a_chunk_is_sampled(
    arithmetic: Arithmetic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def put(judge: BatchedJudge, new: Any) -> list[dict[str, Any]]:
        judge._waiting += new
        return judge._collect(wait=True)  # else all may be sampled before the workers have started

    monkeypatch.setattr("rlhf_eval.benchmark.EVERY_S", 0.0)
    monkeypatch.setattr(BatchedJudge, "put", put)
    ctx = context_of(open_registry())
    suite = suite_of(
        ctx, "prompts", dataset="pocket/arithmetic", verifier="numeric", samples=4, limit=12, max_tokens=12
    ).model_copy(update={"workers": 1})
    lines, on_disk = list[str](), list[int]()

    def say(text: str) -> None:
        lines.append(text)
        on_disk.append(len((tmp_path / "out/rows.jsonl").read_text().splitlines()))

    folder, _ = evaluate(Job(suite, ModelConfig()), ctx, tmp_path / "out", say)
    assert set(on_disk) - {0, 48}, on_disk
    assert lines[0].startswith("0 of 48 completions")
    assert lines[-1].startswith("48 of 48")
    arithmetic("--n", 4, "--limit", 12, "--out", "whole", "--set", "chunk=1")
    same = [[(r["id"], r["sample"], r["completion"]) for r in jsonl(f / "rows.jsonl")] for f in (folder, Path("whole"))]
    assert same[0] == same[1]


@pytest.mark.slow
def test_several_suites_in_one_command(rlhf: Rlhf, write: Callable[..., Path]) -> None:
    gsm8k = write("test.jsonl", [{"question": "What is 2 + 3?", "answer": "So. #### 5"}])
    prompts = write(
        "sums.jsonl", [{"id": f"s{i}", "prompt": f"What is {i} + 3?", "answer": str(i + 3)} for i in range(6)]
    )
    files = ("--data", f"gsm8k={gsm8k}", "--data", f"prompts={prompts}")
    options = (*files, "--verifier", "prompts=numeric", "--max-tokens", 12, "--set", "workers=1", "--set")
    ran = rlhf("eval", "gsm8k", "prompts", *options, "prompts.limit=4", "--out", "out", "--json")
    assert ran.code == 0, ran.err
    results = json.loads(ran.out)
    assert [(r["suite"], r["prompts"]) for r in results] == [("gsm8k", 1), ("prompts", 4)]
    assert [len(jsonl(Path("out", name, "rows.jsonl"))) for name in ("gsm8k", "prompts")] == [1, 4]
    for wrong, words in (
        (("gsm8k", "gsm8k"), "'gsm8k' is named twice"),
        (("gsm8k", "prompts", "--data", "maths=x.jsonl"), "maths"),
        (("gsm8k", "prompts", "--data", str(gsm8k)), "--data SUITE=FILE"),
        (("gsm8k", "prompts", *options, "prompts.limt=4"), "limt"),
    ):
        ran = rlhf("eval", *wrong, "--out", "other")
        assert (ran.code, words in ran.err) == (2, True), ran.err
        assert not Path("other").exists()


def test_other_settings_are_refused_and_named(rlhf: Rlhf, arithmetic: Arithmetic) -> None:
    arithmetic("--limit", 4, "--out", "out")
    for changed, named in (
        (("--limit", 5), "rows.count: 4 then, 5 now"),
        (("--seed", 1, "--limit", 4), "seed: 0 then"),
        (("--temperature", 0.5, "--limit", 4), "suite.sampling.temperature: 0.0 then, 0.5 now"),
        (("--style", "qa", "--limit", 4), "suite.style: 'plain' then, 'qa' now"),
    ):
        ran = rlhf("eval", *ARITHMETIC, "--out", "out", *changed)
        assert ran.code == 2
        assert named in ran.err


@pytest.mark.slow
def test_a_report_for_people_has_categories_intervals_and_failures(rlhf: Rlhf) -> None:
    ran = rlhf("eval", *ARITHMETIC, "--limit", 24, "--set", "sampling.max_tokens=4", "--temperature", 0.7)
    assert ran.code == 0, ran.err
    assert "cut at the token limit" in ran.out
    assert "ended by: length 100.0%" in ran.out
    assert "neither" in ran.out
    assert "95 % intervals" in ran.out


def test_compare(rlhf: Rlhf, arithmetic: Arithmetic) -> None:
    for seed in (0, 1):
        arithmetic("--limit", 16, "--temperature", 1, "--seed", seed, "--out", f"s{seed}")
    same = json.loads(rlhf("eval", "compare", "s0", "s0", "--json").out)
    assert same["difference"]["value"] == 0.0
    assert (
        same["difference"]["high"] == -same["difference"]["low"] > 0.1
    )  # sixteen prompts cannot show that none differs
    assert same["mcnemar"]["p"] == 1.0
    comparison = json.loads(rlhf("eval", "compare", "s0", "s1", "--json").out)
    values = [{r["id"]: r["value"] for r in jsonl(Path(f"s{s}/rows.jsonl"))} for s in (0, 1)]
    assert comparison["mcnemar"]["gained"] == sum(values[0][i] < values[1][i] for i in values[0])
    assert comparison["mcnemar"]["lost"] == sum(values[0][i] > values[1][i] for i in values[0])
    assert comparison["difference"]["value"] == pytest.approx((sum(values[1].values()) - sum(values[0].values())) / 16)
    assert comparison["settings"] == []
    text = rlhf("eval", "compare", "s0", "s1").out
    assert all(f in text for f in ("s0", "s1", "0 only in s0", "0 only in s1"))
    assert not re.search(r"\b(first|second) (is|only)|in the (first|second)", text)
    rows = Path("s1/rows.jsonl")
    rows.write_text(rows.read_text().replace("What is", "How much is"))
    ran = rlhf("eval", "compare", "s0", "s1")
    assert ran.code == 2
    assert "not the same in both" in ran.err


@pytest.mark.slow
def test_a_training_run_is_evaluated_on_its_benchmarks(trained: Path) -> None:
    rows = [r for r in jsonl(trained / "metrics.jsonl") if "eval/prompts/value" in r]
    assert [r["step"] for r in rows] == [0, 1, 2]
    assert all("eval/reward/mean" in r for r in rows)
    plan = json.loads((trained / "plan.json").read_text())
    assert {"benchmark", "verifier"} <= {c["kind"] for c in plan["components"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "options", "measurements"),
    [
        ("grpo", (), 1),
        pytest.param("iterative_dpo", ("trainer.updates=1", "trainer.pair_batch_size=4"), 2, marks=pytest.mark.long),
    ],
)
def test_benchmarks_alone_are_measured_once_though_a_run_is_resumed(
    algorithm: str, options: tuple[str, ...], measurements: int, rlhf: Rlhf
) -> None:
    """Without held-out prompts; an iteration of iterative_dpo is a rollout batch and an update here."""
    settings = (
        "threads=1",
        f"benchmarks=[{BENCHMARK}]",
        "trainer.steps=2",
        "trainer.rollout_batch_size=16",
        "trainer.eval_samples=0",
        "trainer.eval_every=1",
        "trainer.checkpoint_every=1",
        "trainer.keep_checkpoints=9",
        "trainer.optimizer.learning_rate=1e-3",
        *options,
    )
    ran = rlhf(
        "train",
        "--algo",
        algorithm,
        "--reward",
        "verifier",
        "--dataset",
        "pocket/arithmetic",
        "--run-dir",
        "run",
        *(word for s in settings for word in ("--set", s)),
    )
    assert ran.code == 0, ran.err

    def measured() -> list[tuple[int, float]]:
        return [
            (r["step"], r["eval/prompts/value"]) for r in jsonl(Path("run/metrics.jsonl")) if "eval/prompts/value" in r
        ]

    whole = measured()
    assert [step for step, _ in whole] == [0, measurements, 2 * measurements]
    shutil.rmtree("run/final")
    Path("run/summary.json").unlink()
    for checkpoint in Path("run/checkpoints").iterdir():
        if checkpoint.name != "step-000001":
            shutil.rmtree(checkpoint)
    ran = rlhf("train", "--resume", "run")
    assert ran.code == 0, ran.err
    assert measured() == whole


@pytest.mark.slow
def test_watch_evaluates_every_checkpoint_with_the_same_settings(rlhf: Rlhf, trained: Path) -> None:
    suite = (*ARITHMETIC, "--limit", "8", "--out", "w", "--json")
    ran = rlhf("eval", "watch", trained, *suite)
    assert ran.code == 0, ran.err
    summary = json.loads(ran.out)
    assert [r["checkpoint"] for r in summary["checkpoints"]] == ["start", "step-000001", "step-000002"]
    logged = [r["eval/prompts/value"] for r in jsonl(trained / "metrics.jsonl") if "eval/prompts/value" in r]
    assert [r["value"] for r in summary["checkpoints"]] == pytest.approx(logged)  # greedy: the run measured the same
    assert summary["best"] == max(summary["checkpoints"], key=lambda r: r["value"])["checkpoint"]
    settings = [json.loads(p.read_text()) for p in sorted(Path("w").glob("*/settings.json"))]
    assert len({s["model"].pop("weights") for s in settings}) == 3
    for s in settings:
        s["model"].pop("path")
    assert settings[0] == settings[1] == settings[2]
    assert rlhf("eval", "watch", trained, *suite).code == 0  # and goes on from there
    assert not list(Path("w").glob(".held-*"))


def test_suites_are_listed(rlhf: Rlhf) -> None:
    names = {r["suite"] for r in json.loads(rlhf("eval", "suites", "--json").out)}
    assert {"gsm8k", "math", "ifeval", "mbpp", "humaneval", "prompts"} <= names
    assert "compare" in rlhf("eval", "--help").out


def test_the_help_names_every_suite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    listed = capsys.readouterr().out
    assert all(entry.name in listed for entry in open_registry().entries("benchmark"))
    assert "Suites:" in listed


def test_a_setting_of_the_model_reaches_its_template_and_is_recorded(arithmetic: Arithmetic, rlhf: Rlhf) -> None:
    greedy = ("--limit", 2, "--temperature", 0)
    arithmetic(*greedy, "--out", "plain")
    arithmetic(*greedy, "--set", "model.assistant_prefix=Of course!", "--out", "begun")
    plain, begun = ([row["completion"] for row in jsonl(Path(f"{name}/rows.jsonl"))] for name in ("plain", "begun"))
    assert plain != begun
    settings = json.loads(Path("begun/settings.json").read_text())
    assert settings["model"]["assistant_prefix"] == "Of course!"
    ran = rlhf("eval", "prompts", "--dataset", "pocket/arithmetic", "--set", "model.dtype=bfloat16")
    assert ran.code == 2
    assert "model.dtype is given by --dtype" in ran.err
