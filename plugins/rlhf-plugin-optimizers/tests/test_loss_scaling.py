"""float16: the loss is scaled so that small gradients stay, and a step that overflows is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rlhf_core
from rlhf_core.data import read_jsonl
from rlhf_core.plugins.strategy_protocols import NormPart
from rlhf_plugin_optimizers.loss_scaling import GROWTH_INTERVAL, ScaledOptimizer
from tests.resume.runs import cut_back


class Sgd:
    """Steps by the gradient as it is, unless that is not finite."""

    def __init__(self, module: torch.nn.Linear) -> None:
        self.inner = torch.optim.SGD(module.parameters(), lr=1.0)

    def set_rates(self, factor: float, critic_factor: float) -> None: ...

    def step(self, parts: list[NormPart], max_norm: float) -> dict[str, float]:
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in parts[0].module.parameters()]))
        if torch.tensor(norm).isfinite():
            self.inner.step()
        self.discard()
        return {"grad_norm": norm}

    def discard(self) -> None:
        self.inner.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"sgd": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {"sgd": 1}


def test_the_step_is_that_of_the_unscaled_gradient_and_an_overflow_halves_the_scale() -> None:
    module = torch.nn.Linear(1, 1, bias=False)
    module.weight.data.zero_()
    optimizer, parts = ScaledOptimizer(Sgd(module)), [NormPart("grad_norm", module)]
    (module(torch.tensor([[3.0]])).sum() * optimizer.loss_scale).backward()
    assert optimizer.step(parts, 1.0) == {"grad_norm": 3.0, "updates_skipped": 0.0, "loss_scale": 65536.0}
    assert module.weight.item() == -3.0
    module.weight.grad = torch.full((1, 1), torch.inf)
    assert optimizer.step(parts, 1.0) == {"updates_skipped": 1.0, "loss_scale": 65536.0}
    assert (module.weight.item(), optimizer.loss_scale) == (-3.0, 32768.0)
    again = ScaledOptimizer(Sgd(module))
    again.load_state_dict(optimizer.state_dict())
    assert (again.loss_scale, again.steps) == (32768.0, 0)
    again.steps = GROWTH_INTERVAL - 1
    module.weight.grad = torch.zeros(1, 1)
    again.step(parts, 1.0)
    assert (again.loss_scale, again.steps) == (65536.0, 0)
    again.loss_scale = 1.0
    module.weight.grad = torch.full((1, 1), torch.nan)
    assert not torch.tensor(again.step(parts, 1.0)["grad_norm"]).isfinite(), "scaling is not the cause"


def train(folder: Path, algorithm: str, **trainer: Any) -> list[dict[str, Any]]:
    sampled = {"rollout_batch_size": 16, "group_size": 4, "sampling": {"max_tokens": 6, "temperature": 1.5}, "steps": 3}
    sizes = sampled if algorithm == "grpo" else {"max_steps": 3, "batch_size": 8, "sample_prompts": 0}
    rlhf_core.train(
        algorithm,
        dataset="pocket/assistant",
        **({"reward": "random"} if algorithm == "grpo" else {}),
        settings={"trainer": {**sizes, "eval_samples": 0, "checkpoint_every": 1, **trainer}, "threads": 1},
        run_dir=folder,
        progress=False,
    )
    return rows(folder)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if k != "time"} for row in read_jsonl(folder / "metrics.jsonl") if "loss" in row
    ]


@pytest.mark.slow
def test_a_run_in_float16_learns_as_one_in_float32(tmp_path: Path) -> None:
    half, whole = (train(tmp_path / name, "sft", precision=name) for name in ("fp16", "fp32"))
    assert [row["loss_scale"] for row in half] == [65536.0] * 3
    for one, other in zip(half, whole, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=0.02)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.05)
    assert half[0]["loss"] != whole[0]["loss"]


def test_a_run_samples_and_learns_in_float16(tmp_path: Path) -> None:
    for row in train(tmp_path / "run", "grpo", precision="fp16"):
        assert 1e-6 < row["drift/mean_abs"] < 0.01
        assert row["grad_norm"] > 0


@pytest.mark.slow
def test_an_overflow_is_counted_and_a_resumed_run_has_the_same_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ScaledOptimizer.__init__

    def too_large(self: ScaledOptimizer, optimizer: Any) -> None:
        made(self, optimizer)
        self.loss_scale = 2.0**40

    monkeypatch.setattr(ScaledOptimizer, "__init__", too_large)
    whole = train(tmp_path / "whole", "sft", precision="fp16", keep_checkpoints=9)
    assert [row["updates_skipped"] for row in whole] == [1.0] * 3
    assert [row["loss_scale"] for row in whole] == [2.0**40, 2.0**39, 2.0**38]
    cut_back(tmp_path / "whole", 2, tmp_path / "cut")
    rlhf_core.load_run(tmp_path / "cut").resume(progress=False)
    assert rows(tmp_path / "cut") == whole


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("model.dtype=bfloat16",), "trainer.precision fp16 cannot be combined with model.dtype bfloat16"),
        (("strategy=fsdp",), "strategy fsdp with trainer.precision=fp16"),
        (("strategy=deepspeed",), "strategy deepspeed with trainer.precision=fp16"),
    ],
)
def test_what_cannot_be_scaled_is_refused(settings: tuple[str, ...], says: str, call: Callable[..., Any]) -> None:
    sets = [word for one in ("trainer.precision=fp16", *settings) for word in ("--set", one)]
    ran = call("train", "--algo", "sft", "--dataset", "pocket/assistant", "--dry-run", *sets)
    assert ran.code == 2
    assert says in ran.err
