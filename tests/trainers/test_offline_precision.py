"""Learning from data in bfloat16: the same losses but for rounding, float32 where it counts, exact resume."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_hook

from rlhf_core.cli.options import resolve_here
from rlhf_core.config import run as run_config
from rlhf_core.config.load import validate
from rlhf_core.config.plan import make_plan
from rlhf_core.data import PreferencePair, Prompt
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.models import Formatter, ModelConfig, load_policy
from rlhf_core.plugins.registry import Registry
from rlhf_core.rewards import Sample
from rlhf_core.runs.launch.resume import planned_resume
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.training.learner import Learner
from rlhf_core.training.offline.trainer import OfflineTrainer
from rlhf_core.types.errors import ConfigError, RunDirError
from rlhf_plugin_dpo.items import encode_pair, sides_of
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_rubric.rubric import load_rubric
from rlhf_testing import make_context

from .conftest import StopsAt, Train

SMALL: dict[str, Any] = {
    "max_steps": 4,
    "batch_size": 8,
    "micro_batch_size": 4,
    "eval_samples": 8,
    "checkpoint_every": 1,
    "optimizer": {"learning_rate": 1e-4, "warmup_steps": 0},
}
OFFLINE: dict[str, dict[str, Any]] = {
    "sft": {**SMALL, "sample_prompts": 0},
    "dpo": {**SMALL, "sample_prompts": 0},
    "reward_model": SMALL,
}
NEAR = 0.01
"""Of a loss in float32: bfloat16 has 8 bits of precision, 0.4 %."""


def settings(algo: str, chosen: str) -> dict[str, Any]:
    data = {"name": "pocket", "subset": "assistant"}
    return {"trainer": {"name": algo, "precision": chosen, **OFFLINE[algo]}, "dataset": {**data, "limit": 60}}


def losses(run: Path) -> list[float]:
    return [row[key] for row in read_jsonl(run / "metrics.jsonl") for key in ("loss", "eval/loss") if key in row]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "final" / "model.safetensors")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, set[torch.dtype]]]:
    """Number types of what decoder layers' feed-forward parts put out in updates, and of what the learner reduces."""
    found: dict[str, set[torch.dtype]] = {"layers": set(), "loss": set()}
    reduce = Learner.reduce

    def reduced(self: Learner, loss: torch.Tensor, batch: Any, *totals: float) -> torch.Tensor:
        values = [getattr(batch, name, None) for name in ("logprobs_BT", "chosen_B", "rejected_B")]
        found["loss"] |= {value.dtype for value in (loss, *values) if value is not None}
        return reduce(self, loss, batch, *totals)

    def noted(module: torch.nn.Module, inputs: Any, out: Any) -> None:
        if torch.is_grad_enabled() and type(module).__name__.endswith("MLP"):
            found["layers"].add(out.dtype)

    monkeypatch.setattr(Learner, "reduce", reduced)
    handle = register_module_forward_hook(noted)
    yield found
    handle.remove()


@pytest.mark.slow
@pytest.mark.parametrize("algo", [pytest.param(a, marks=() if a == "sft" else pytest.mark.long) for a in OFFLINE])
def test_losses_are_those_of_float32_but_for_rounding_and_a_resumed_run_is_exact(
    algo: str, train: Train, seen: dict[str, set[torch.dtype]]
) -> None:
    train(settings(algo, "fp32"), run="fp32")
    assert seen == {"layers": {torch.float32}, "loss": {torch.float32}}
    seen["layers"].clear()
    train(settings(algo, "bf16"), run="bf16")
    assert seen == {"layers": {torch.bfloat16}, "loss": {torch.float32}}
    exact, mixed = (losses(train.folder / run) for run in ("fp32", "bf16"))
    assert len(exact) == len(mixed) == 6
    assert exact != mixed
    assert mixed == pytest.approx(exact, rel=NEAR)
    one, other = (weights(train.folder / run) for run in ("fp32", "bf16"))
    assert {t.dtype for t in other.values()} == {torch.float32}
    assert any(not torch.equal(other[name], other[name].bfloat16().float()) for name in other), "no copy in bfloat16"
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 2 * 4 * 1e-4, "two steps of AdamW each"
    check_resumed(algo, train)


BEFORE, WRONG = "Let me think.", "I do not know."
TEXTS = [(f"What is the code of {name}?", f"The code is {name}.") for name in ("Ann", "Bob", "Cleo", "Dan")]


def labelled(algo: str, place: Path) -> str:
    """A file of examples, of which half are right."""
    rows: list[dict[str, Any]] = []
    for prompt, right in TEXTS * 5:
        if algo == "kto":
            rows.append({"prompt": prompt, "completion": right, "chosen": right, "rejected": WRONG})
            continue
        for text in (right, WRONG):
            graded = dict.fromkeys(load_rubric("assistant").names, float(text == right))
            steps = {"steps": [BEFORE, text], "labels": [True, text == right]}
            rows.append({"prompt": prompt, **({"completion": text, "parts": graded} if "rubric" in algo else steps)})
    file = place / f"{algo}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def gap(algo: str, final: Path) -> float:
    """How much better than wrong answers right ones are, on average, by the model that was written: in scores, for kto
    in nats more than before training."""
    if algo == "kto":
        return kto_margin(str(final)) - kto_margin("pocket")
    name = "rubric_model" if algo == "rubric_model" else "prm"
    chosen = validate(Registry(disabled=()), {"trainer": "grpo", "reward": {"name": name, "path": str(final)}}).reward
    assert chosen is not None
    prompts = [Prompt(f"p{n}", ({"role": "user", "content": prompt},)) for n, (prompt, _) in enumerate(TEXTS)]
    before = "" if name == "rubric_model" else f"{BEFORE}\n"
    right = [Sample(prompt, before + text) for prompt, (_, text) in zip(prompts, TEXTS)]
    scores = chosen.build(make_context()).score([*right, *(Sample(prompt, before + WRONG) for prompt in prompts)])
    values = [float(score.value) for score in scores]
    return (sum(values[: len(right)]) - sum(values[len(right) :])) / len(right)


def kto_margin(path: str) -> float:
    """Logprob of right answers less that of wrong ones, on average."""
    policy = load_policy(ModelConfig(path=path))
    formatter = Formatter(policy.tokenizer, "auto")
    pairs = [PreferencePair(prompt, ({"role": "user", "content": prompt},), right, WRONG) for prompt, right in TEXTS]
    sums = PairModule(policy.model, 1.0).sums(sides_of([encode_pair(pair, formatter) for pair in pairs]), 8)
    return (sum(sums[::2]) - sum(sums[1::2])) / len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algo", ["kto", "rubric_model", *(pytest.param(a, marks=pytest.mark.long) for a in ("prm", "orm"))]
)
def test_the_others_learn_in_bfloat16_too(
    algo: str, train: Train, tmp_path: Path, seen: dict[str, set[torch.dtype]]
) -> None:
    chosen = {**SMALL, "max_steps": 12, "epochs": 20, "optimizer": {"learning_rate": 1e-3, "warmup_steps": 0}}
    more = {"sample_prompts": 0} if algo == "kto" else {}
    trainer = {"name": algo, "precision": "bf16", **chosen, **more}
    train({"trainer": trainer, "dataset": {"name": "jsonl", "path": labelled(algo, tmp_path)}})
    assert seen == {"layers": {torch.bfloat16}, "loss": {torch.float32}}
    run = train.folder / "run"
    rows = [row["loss"] for row in read_jsonl(run / "metrics.jsonl") if "grad_norm" in row]
    assert all(map(math.isfinite, rows))
    assert sum(rows[-3:]) < 0.9 * sum(rows[:3])
    for file in run.rglob("*.safetensors"):
        kept = [t for t in load_file(file).values() if t.is_floating_point()]
        assert {t.dtype for t in kept} <= {torch.float32, torch.float64}, file
    written = [t for file in (run / "final").rglob("*.safetensors") for t in load_file(file).values()]
    assert any(not torch.equal(t, t.bfloat16().float()) for t in written), "no copy in bfloat16"
    assert gap(algo, run / "final") > 0.05


def check_resumed(algo: str, train: Train) -> None:
    """A paused run goes on to the weights of the one in ``bf16``, and keeps none in bfloat16."""
    train(settings(algo, "bf16"), StopsAt(2), run="paused")
    (newest,) = sorted((train.folder / "paused" / "checkpoints").glob("step-*"))[-1:]
    kept = [t for file in newest.rglob("*.safetensors") for t in load_file(file).values() if t.is_floating_point()]
    assert kept
    assert {t.dtype for t in kept} <= {torch.float32, torch.float64}
    for name in ("final", "summary.json"):
        path = train.folder / "paused" / name
        path.rename(path.with_name(f"before-{name}"))
    train({}, resume=True, run="paused")
    one, other = (weights(train.folder / run) for run in ("bf16", "paused"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert losses(train.folder / "bf16")[-1] == losses(train.folder / "paused")[-1]


def test_weights_that_are_not_float32_are_refused(train: Train) -> None:
    with pytest.raises(ConfigError, match=r"precision bf16 cannot be combined with model\.dtype bfloat16"):
        train(settings("sft", "bf16"), change={"model": {"dtype": "bfloat16"}})


def test_a_resumed_run_keeps_its_planned_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(disabled=())
    run = validate(registry, {"trainer": "sft", "dataset": "pocket"})
    with monkeypatch.context() as without_cuda:
        without_cuda.setattr(run_config, "cuda_has_bfloat16", lambda: False)
        plan = make_plan(registry, run.with_precision(), 1)
    monkeypatch.setattr(run_config, "cuda_has_bfloat16", lambda: True)
    assert run.with_precision().trainer.precision == "bf16"
    RunDir(tmp_path / "run").create(plan, {})
    (tmp_path / "run" / "checkpoints" / "step-000001").mkdir(parents=True)

    def resumed(*settings: str) -> Any:
        registry = Registry(disabled=())
        return planned_resume(tmp_path / "run", lambda base: resolve_here(registry, (), settings, {}, base), registry)

    assert resumed("trainer.epochs=9")[1].trainer.precision == "fp32"
    assert resumed("trainer.epochs=9")[0].config["trainer"]["precision"] == "fp32"
    with pytest.raises(RunDirError, match=r"trainer\.precision: 'fp32' -> 'bf16'"):
        resumed("trainer.precision=bf16")


def test_a_model_that_was_loaded_otherwise_is_said(caplog: pytest.LogCaptureFixture) -> None:
    trainer: Any = OfflineTrainer.__new__(OfflineTrainer)
    run = validate(Registry(disabled=()), {"trainer": {"name": "sft", "precision": "bf16"}, "dataset": "pocket"})
    trainer.config, trainer.ctx, trainer.strategy = run.trainer, SimpleNamespace(config=run), None
    trainer.task = SimpleNamespace(module=torch.nn.Linear(1, 1))
    with caplog.at_level(logging.WARNING), pytest.raises(AttributeError):
        trainer.start(None)  # there is no strategy
    assert "precision has no effect: 'sft' did not load its model with load_trained_policy" in caplog.text
