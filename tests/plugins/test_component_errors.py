"""A component that raises, or returns something else than its contract, is named with distribution and version."""

from __future__ import annotations

import json
import re

import pytest

from .conftest import Fakes

CONFIG = """
from typing import ClassVar
from rlhf_core.config import ComponentConfig

class Config(ComponentConfig):
    name: str = "acme"
    consumes: ClassVar[str | None] = "token_advantages"
    how: str = "raises"
    def build(self, ctx):
        return Part(self.how)

class Part:
    def __init__(self, how):
        self.how = how
        if how == "build":
            raise KeyError("no such key in acme")
    def answer(self):
        if self.how == "raises":
            raise KeyError("no such key in acme")
        return 42
"""
VARIED = """
class VariedConfig(ComponentConfig):
    name: str = "varied"
    def build(self, ctx):
        return self
    def score(self, samples):
        from rlhf_core.rewards import Score
        return [Score(float(i)) for i, _ in enumerate(samples)]
"""
METHODS = {
    "loss": "def __call__(self, batch):",
    "advantage": "def estimate(self, rollouts, scores, group_ids):",
    "rollout": "def generate(self, requests, sampling, policy_version):",
    "agent": "def play(self, groups, seeds, engine, sampling, policy_version):",
    "dataset": "def rows(self, split):",
}
TRAIN = ("train", "--algo", "grpo", "--reward", "varied", "--run-dir", "run")
SMALL = (
    "--set=trainer.steps=1",
    "--set=trainer.rollout_batch_size=8",
    "--set=trainer.eval_samples=0",
    "--set=trainer.sampling.max_tokens=4",
)


def train(fakes: Fakes, kind: str, how: str, *more: str) -> tuple[int, str]:
    code = f"{CONFIG}    {METHODS[kind]}\n        return self.answer()\n{VARIED}"
    entries = f"[rlhf.{kind}]\nacme = acme_part:Config\n[rlhf.reward]\nvaried = acme_part:VariedConfig\n"
    fakes.add("acme-part", entries, code, version="2.3")
    data = () if kind == "dataset" else ("--dataset", "pocket/arithmetic")
    chosen = (f"--set={kind}.name=acme", f"--set={kind}.how={how}")
    out = fakes.rlhf(*more, *TRAIN, *data, *chosen, *SMALL)
    return out.returncode, out.stderr


@pytest.mark.parametrize("kind", sorted(METHODS))
def test_one_that_raises_is_named_with_the_place(fakes: Fakes, kind: str) -> None:
    code, said = train(fakes, kind, "raises")
    assert code == 1, said
    assert f"of {kind} 'acme' (acme-part 2.3) raised KeyError: 'no such key in acme'" in said
    assert "acme_part.py:" in said
    assert "Traceback" not in said
    failure = fakes.folder / "run" / "failure.json"
    if failure.exists():
        assert "in answer" in json.loads(failure.read_text())["traceback"]


def test_a_dataset_that_returns_no_rows_is_named(fakes: Fakes) -> None:
    code, said = train(fakes, "dataset", "returns")
    assert code == 2, said
    assert re.search(r"dataset 'acme' \(acme-part 2.3\), rows\('\w+'\), returned int 42", said)


def test_one_that_cannot_be_built_is_named(fakes: Fakes) -> None:
    code, said = train(fakes, "loss", "build")
    assert code == 1, said
    assert "build() of loss 'acme' (acme-part 2.3) raised KeyError" in said


def test_debug_shows_the_traceback_of_the_component(fakes: Fakes) -> None:
    _, said = train(fakes, "advantage", "raises", "--debug")
    assert "Traceback" in said
    assert 'raise KeyError("no such key in acme")' in said


def test_a_preflight_that_raises_is_named_before_anything_is_loaded(fakes: Fakes) -> None:
    code = CONFIG.replace(
        "    def build(", "    def preflight(self, ctx):\n        raise IndexError('no rows')\n    def build("
    )
    fakes.add("acme-part", "[rlhf.loss]\nacme = acme_part:Config\n", code, version="2.3")
    out = fakes.rlhf(
        "train", "--algo=grpo", "--reward=verifier", "--loss", "acme", "--dataset", "pocket/arithmetic", "--dry-run"
    )
    assert out.returncode == 2, out.stderr
    assert "preflight() of loss 'acme' (acme-part 2.3) raised IndexError: no rows" in out.stderr


WRONG = """
from typing import ClassVar
from rlhf_core.config import ComponentConfig
from rlhf_core.losses import *

class Config(ComponentConfig):
    name: str = "acme"
    consumes: ClassVar[str | None] = "token_advantages"
    def build(self, ctx):
        return Part()

class Part:
    def __call__(self, batch):
        return {answer}
    def estimate(self, rollouts, scores, group_ids):
        return {answer}
    def verify(self, sample):
        return {answer}
    def score(self, samples):
        return {answer}
    def observe(self, step, metrics):
        return {answer}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "answer", "code", "said"),
    [
        ("loss", "LossOutput(None)", 2, "loss 'acme' (acme-part 2.3) returned LossOutput(NoneType, dict)"),
        ("loss", "LossOutput(-batch.logprobs_BT, None)", 2, "'acme' (acme-part 2.3) returned LossOutput(Tensor, None"),
        ("loss", "LossOutput(batch.logprobs_BT * float('nan'))", 1, "loss is nan: loss 'acme' (acme-part 2.3)"),
        ("advantage", "Advantages(None)", 2, "advantage 'acme' (acme-part 2.3) returned Advantages of a NoneType"),
        ("verifier", "1.0", 1, "verifier 'acme' (acme-part 2.3) returned 1.0, expected a Score"),
        ("verifier", "1 / 0", 1, "verifier 'acme' (acme-part 2.3) raised ZeroDivisionError: division by zero"),
        ("reward", "1 / 0", 1, "where: reward 'acme' (acme-part 2.3)"),
        ("monitor", "42", 0, "observe() of monitor 'acme' (acme-part 2.3) raised TypeError: it returned 42"),
    ],
)
def test_one_that_returns_something_else_is_named(
    fakes: Fakes, kind: str, answer: str, code: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also below what the core puts around it: the KL term around a loss, the pool around a verifier."""
    own = "" if kind == "reward" else "[rlhf.reward]\n"
    entries = f"[rlhf.{kind}]\nacme = acme_part:Config\n{own}varied = acme_part:VariedConfig\n"
    # a loss's output brings torch: a worker of a verifier does without
    code_of_it = WRONG.replace("{answer}", answer)
    fakes.add("acme-part", entries, code_of_it + VARIED, version="2.3")
    slots = {
        "verifier": ("--set=reward={name: verifier, verifier: acme, workers: 1}",),
        "reward": ("--reward", "acme"),
        "monitor": ("--set=monitors=[acme]",),
    }
    chosen = slots.get(kind, (f"--set={kind}.name=acme",))
    out = fakes.rlhf(*TRAIN, "--dataset", "pocket/arithmetic", *chosen, *SMALL)
    assert out.returncode == code, out.stderr
    assert said in out.stderr + caplog.text


STRATEGY = """
from rlhf_core.config import ComponentConfig

class Config(ComponentConfig):
    name: str = "acme"
    how: str = ""
    def build(self, ctx):
        from rlhf_core.distributed.group import LocalStrategy

        class Acme(LocalStrategy):
            how = self.how
            def clip_grad_norm(self, module, max_norm):
                if self.how == "raises":
                    raise KeyError("no such key in acme")
                return "large" if self.how == "returns" else super().clip_grad_norm(module, max_norm)

        strategy = Acme()
        if self.how == "lacks":
            Acme.barrier = None
        if self.how == "world":
            strategy.world_size = 3
        return strategy
"""


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("raises", 1, "clip_grad_norm() of strategy 'acme' (acme-part 2.3) raised KeyError"),
        ("returns", 2, "clip_grad_norm() of strategy 'acme' (acme-part 2.3) returned str 'large'"),
        ("lacks", 2, "strategy 'acme' (acme-part 2.3) has no barrier()"),
        ("world", 2, "strategy 'acme' (acme-part 2.3) returned rank 0 of 3"),
    ],
)
def test_a_strategy_is_named(fakes: Fakes, how: str, code: int, said: str) -> None:
    entries = "[rlhf.strategy]\nacme = acme_part:Config\n[rlhf.reward]\nvaried = acme_part:VariedConfig\n"
    fakes.add("acme-part", entries, STRATEGY + VARIED, version="2.3")
    chosen = ("--set=strategy.name=acme", f"--set=strategy.how={how}")
    out = fakes.rlhf(*TRAIN, "--dataset", "pocket/arithmetic", *chosen, *SMALL)
    assert out.returncode == code, out.stderr
    assert said in out.stderr
