"""Short on-policy runs of the pocket model: what a step reports, charges, counts and leaves out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.rl.advantages import apply_kl_penalty, measure_kl
from rlhf_core.rl.settings import KLSettings
from rlhf_core.training.functional import kl_value
from rlhf_core.training.learner import Learner, MetricSums
from rlhf_core.types.rollouts import FinishReason, Rollout, Sample, Score, ScoreStatus
from rlhf_plugin_pocket import weights_path
from rlhf_plugin_verifiers.reward import VerifierReward

Train = Callable[..., "Ran"]


class Ran:
    """What a run left."""

    def __init__(self, folder: Path) -> None:
        rows = list(read_jsonl(folder / "metrics.jsonl"))
        self.folder, self.summary = folder, json.loads((folder / "summary.json").read_text())
        self.steps = [r for r in rows if "tokens_generated" in r]
        self.evals = [r for r in rows if "eval/tokens_generated" in r]
        self.prompts = [r for r in read_jsonl(folder / "trace.jsonl") if r["event"] == "prompt"]

    def completions(self, step: int | None = None) -> list[dict[str, Any]]:
        """Traced completions of one step, or of all."""
        return [c for p in self.prompts if step in (None, p["step"]) for c in p["completions"]]


@pytest.fixture
def train(rlhf: Callable[..., Any], quick: tuple[str, ...], tmp_path: Path) -> Train:
    """``train("trainer.steps=2")``: a quick run with these settings."""

    def run(*settings: str, arguments: Sequence[str] = quick) -> Ran:
        out = rlhf(*arguments, "--run-dir", tmp_path / "run", *(word for s in settings for word in ("--set", s)))
        assert out.code == 0, out.err
        return Ran(tmp_path / "run")

    return run


@pytest.mark.slow
def test_metrics_cover_every_update_of_a_step(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = Learner.update_sums, list[MetricSums]()

    def remember(self: Learner, *args: Any, **kwargs: Any) -> MetricSums:
        seen.append(real(self, *args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(Learner, "update_sums", remember)
    run = train(
        "trainer.rollout_batch_size=32",
        "trainer.train_batch_size=16",
        "trainer.epochs_per_rollout_batch=2",
        "trainer.steps=2",
        "trainer.drop_constant_groups=false",
        "trainer.optimizer.learning_rate=0.003",
    )
    assert len(seen) == 8
    assert run.summary["updates"] == 8
    for step, row in enumerate(run.steps):
        rows = seen[4 * step : 4 * step + 4]
        for name in ("loss", "entropy", "clip_fraction", "importance_ratio", "grad_norm"):
            total, weight = (sum(r[name][i] for r in rows) for i in (0, 1))
            assert row[name] == pytest.approx(total / weight), name
        assert len({r["entropy"][0] / r["entropy"][1] for r in rows}) == 4
        assert row["train/tokens"] == 2 * row["tokens_generated"]
        assert row["drift/mean_abs"] < 1e-4, "measured before the weights moved"
    assert max(row["clip_fraction"] for row in run.steps) > 0


def test_kl_covers_groups_that_are_not_run(train: Train) -> None:
    run = train(
        "trainer.sampling.max_tokens=1", "trainer.kl.coefficient=0"
    )  # no answer in one token: every reward is 0
    for row in run.steps:
        assert row["constant_groups"] == 2
        assert row["updates_skipped"] == 1
        assert row["kl"] == pytest.approx(0, abs=1e-6)
        assert "loss" not in row
    assert run.summary["dropped"]["constant_groups"] == 6
    before, after = load_file(weights_path() / "model.safetensors"), load_file(run.folder / "final/model.safetensors")
    assert all(after[k].equal(before[k].to(after[k].dtype)) for k in after)


def rollout(mask_T: Sequence[bool] | None) -> Rollout:
    logprobs = np.array([-0.5, -1.0, -2.0], np.float32)
    mask = None if mask_T is None else np.array(mask_T)
    return Rollout("p", 0, (1,), (5, 6, 2), logprobs, 0, FinishReason.EOS, "x", 1, mask)


def test_kl_of_tokens_that_the_policy_did_not_choose_is_not_charged() -> None:
    reference = np.array([-0.7, -9.0, -1.5], np.float32)
    settings = KLSettings(coefficient=0.1, estimator="k1", where="reward")
    whole = apply_kl_penalty(Score(1.0), rollout(None), reference, settings)
    chosen = apply_kl_penalty(Score(1.0), rollout([True, False, True]), reference, settings)
    assert (whole.parts["kl"], whole.value) == (pytest.approx(7.7), pytest.approx(1 - 0.77))
    assert (chosen.parts["kl"], chosen.value) == (pytest.approx(-0.3), pytest.approx(1.03))
    total, tokens, largest = measure_kl([rollout(None), rollout([True, False, True])], [reference, reference])
    each = kl_value(rollout(None).logprobs_T, reference, "k3")
    assert (total, tokens) == (pytest.approx(float(2 * each.sum() - each[1])), 5)
    assert largest == pytest.approx(float(each.max()))
    missing = Score.failed(ScoreStatus.TIMEOUT, "slow")
    assert apply_kl_penalty(missing, rollout(None), reference, settings) is missing


def test_groups_without_scores_are_not_called_constant(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    real = VerifierReward.score

    def gate_the_second_group(self: VerifierReward, samples: Sequence[Sample]) -> list[Score]:
        second = samples[-1].prompt.id
        gone = Score.failed(ScoreStatus.GATED, "members disagree")
        return [gone if s.prompt.id == second else score for s, score in zip(samples, real(self, samples))]

    monkeypatch.setattr(VerifierReward, "score", gate_the_second_group)
    run = train("trainer.rollout_batch_size=32", "trainer.sampling.max_tokens=1", "trainer.eval_samples=0")
    assert [(r["constant_groups"], r["unscored_groups"], r["reward/gated"]) for r in run.steps] == [(3, 1, 8)] * 3
    dropped = run.summary["dropped"]
    assert (dropped["constant_groups"], dropped["unscored_groups"], dropped["score_gated"]) == (9, 3, 24)


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_missing_scores_of_an_evaluation_are_counted(train: Train, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    real = VerifierReward.score

    def late(self: VerifierReward, samples: Sequence[Sample]) -> list[Score]:
        held = [i for i, s in enumerate(samples) if "/heldout/" in s.prompt.id][left:]
        return [
            Score.failed(ScoreStatus.TIMEOUT, "slow") if i in held else score
            for i, score in enumerate(real(self, samples))
        ]

    monkeypatch.setattr(VerifierReward, "score", late)
    run = train()
    assert len(run.evals) == 2
    for row in run.evals:
        assert row["eval/reward/timeout"] == 4 - left
        assert ("eval/reward/mean" in row) is bool(left), "a mean of nothing is left out"
    assert run.summary["dropped"]["eval_score_timeout"] == 2 * (4 - left)
    assert run.summary["evaluation_after"]["eval/reward/timeout"] == 4 - left


@pytest.mark.slow
def test_kl_in_the_reward(train: Train) -> None:
    run = train(
        "trainer.kl.where=reward",
        "trainer.kl.coefficient=0.1",
        "trainer.kl.estimator=k1",
        "trainer.optimizer.learning_rate=0.002",
    )
    for done in run.completions():
        assert done["score"] == pytest.approx(done["parts"]["answer"] - 0.1 * done["parts"]["kl"])
    assert max(abs(c["parts"]["kl"]) for c in run.completions(step=1)) < 1e-4, "policy and reference are still equal"
    assert max(abs(c["parts"]["kl"]) for c in run.completions(step=3)) > 1e-2
    last = run.completions(step=3)[:8]
    scores = np.array([c["score"] for c in last])
    assert [c["advantage"] for c in last] == pytest.approx((scores - scores.mean()) / (scores.std(ddof=1) + 1e-6))
    assert run.steps[-1]["reward/part/kl"] == pytest.approx(np.mean([c["parts"]["kl"] for c in run.completions(3)]))


def test_truncated_completions_are_left_out_of_the_loss(train: Train) -> None:
    run = train("trainer.mask_truncated=true", "trainer.sampling.max_tokens=9", "trainer.drop_constant_groups=false")
    for row in run.steps:
        whole = [c["tokens"] for c in run.completions(row["step"]) if c["finish_reason"] != "length"]
        assert row["train/tokens"] == sum(whole)
        assert row["truncated_fraction"] == 1 - len(whole) / 16
        assert row.get("truncated_masked", 0) == 16 - len(whole)
    assert max(r["train/tokens"] for r in run.steps) > 0
    assert max(r["truncated_fraction"] for r in run.steps) > 0
    assert run.summary["dropped"]["truncated_masked"] == sum(r["truncated_masked"] for r in run.steps)


@pytest.mark.slow
def test_stop_strings_end_completions(train: Train) -> None:
    run = train("trainer.sampling.stop=['1']", "trainer.rollout_batch_size=64")
    done = run.completions()
    assert {c["finish_reason"] for c in done} == {"stop", "eos"}
    for c in done:
        assert (c["finish_reason"] == "stop") is ("1" in c["text"])
        assert c["finish_reason"] == "eos" or c["text"].index("1") == len(c["text"]) - 1
    for row in run.steps:
        assert row["tokens_generated"] == sum(c["tokens"] for c in run.completions(row["step"]))
        assert row["drift/mean_abs"] < 1e-4
    assert all(len(c["completion_ids"]) == len(c["logprobs"]) == c["tokens"] for c in run.completions(1))


def without_dataset(arguments: Sequence[str]) -> list[str]:
    at = arguments.index("--dataset")
    return [*arguments[:at], *arguments[at + 2 :]]


@pytest.mark.slow
def test_every_source_of_a_mixture_has_its_own_reward(train: Train, quick: tuple[str, ...], tmp_path: Path) -> None:
    rows = [json.dumps({"id": str(n), "prompt": f"What is {n} + 2?", "answer": str(n + 2)}) for n in range(40)]
    (tmp_path / "sums.jsonl").write_text("\n".join(rows))
    own = "{name: verifier, workers: 1, verifier: {name: numeric, format_weight: 0.5}}"
    run = train(
        f"dataset={{sources: [{{name: pocket/arithmetic, label: plain}}, "
        f"{{name: jsonl, path: {tmp_path / 'sums.jsonl'}, label: shaped, weight: 2, reward: {own}}}]}}",
        "trainer.rollout_batch_size=48",
        arguments=without_dataset(quick),
    )
    sources = [p["source"] for p in run.prompts]
    assert (sources.count("plain"), sources.count("shaped")) == (6, 12)
    for prompt in run.prompts:
        assert prompt["prompt_id"].startswith(prompt["source"] + "/")
        for c in prompt["completions"]:
            answer, form = c["parts"]["answer"], c["parts"]["format"]
            assert c["score"] == (answer if prompt["source"] == "plain" else 0.5 * answer + 0.5 * form)
    assert {c["score"] for c in run.completions()} > {0.0, 0.5}


def test_base_model_gets_the_prompt_as_it_is(train: Train, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "base"
    shutil.copytree(weights_path(), folder)
    (folder / "chat_template.jinja").unlink()
    run = train(
        f"model.path={folder}",
        "dataset={name: pocket/arithmetic, prompt_template: 'Q: {prompt} A:'}",
        "trainer.rollout_batch_size=16",
        "trainer.sampling.max_tokens=12",
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for prompt in run.prompts:
        assert prompt["prompt"].startswith("Q: What is")
        assert prompt["prompt_ids"] == tokenizer.encode(prompt["prompt"])
    assert not (run.folder / "final" / "chat_template.jinja").exists()
    assert all(r["drift/mean_abs"] < 1e-4 for r in run.steps if "drift/mean_abs" in r)


def test_evaluation_has_its_own_sampling(train: Train) -> None:
    run = train(
        "trainer.eval_sampling={temperature: 0, max_tokens: 3, top_k: 5}",
        "trainer.steps=1",
        "trainer.optimizer.learning_rate=1e-12",
    )
    assert run.steps[0]["completion_length/min"] > 3
    first, last = run.evals
    assert first["eval/completion_length/max"] == 3
    assert first["eval/truncated_fraction"] == 1
    samples = list(read_jsonl(run.folder / "samples.jsonl"))
    assert [s["completion"] for s in samples[:4]] == [s["completion"] for s in samples[4:]], "greedy"
    assert last["eval/completion_length/mean"] == first["eval/completion_length/mean"]


def test_truncated_completions_that_are_learned_from_are_not_counted_as_left_out(train: Train) -> None:
    ran = train("trainer.sampling.max_tokens=3", "trainer.mask_truncated=false", "trainer.steps=1")
    assert "length" in {c["finish_reason"] for c in ran.completions(1)}
    assert "truncated_masked" not in ran.steps[0]
    assert "truncated_masked" not in ran.summary["dropped"]
