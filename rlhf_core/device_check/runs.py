"""Short trainings under every strategy that is installed, and one that is resumed, against one process's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.device_check.report import Comparison

if TYPE_CHECKING:
    import torch

STEPS = 2
DEADLINE_S = 300.0
FAR = 1e-4
"""Norm of the difference of two trainings' changes over the norm of one that is no longer rounding; AdamW divides by
the gradient's own size, so that a rounding of a small gradient is a rounding of the change."""


def compare_runs(model: str, device: torch.device, ranks: int, folder: Path) -> Iterator[Comparison]:
    """Supervised fine-tuning for two steps: a checkpoint resumed, then each strategy on so many ranks.

    Args:
        model: of the run's ``--model``.
        device: where it trains.
        ranks: processes of the strategies for several.
        folder: where the runs are written.
    """
    from rlhf_core.errors import RlhfError

    train = _Trainings(model, device, folder)
    try:
        plain = train("single", "single", 1)
    except RlhfError as error:
        yield Comparison("training in one process", "not run", f"{error.what}; {error.why}")
        return
    yield Comparison("training in one process", "agrees", f"{STEPS} steps of sft", plain.seconds)
    yield train.resumed(plain)
    for name in strategies():
        yield train.compared(name, ranks, plain)


def strategies() -> list[str]:
    """Every strategy that is installed and not disabled, but ``auto`` and ``single``."""
    from rlhf_core.registry import Registry

    return sorted({entry.name for entry in Registry().entries("strategy")} - {"auto", "single"})


class _Run:
    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds

    def weights(self) -> dict[str, torch.Tensor]:
        """Of ``final/``, by name."""
        from safetensors.torch import load_file

        files = sorted((self.folder / "final").glob("*.safetensors"))
        return {name: tensor for file in files for name, tensor in load_file(file).items()}


class _Trainings:
    """Runs of `rlhf train`, each in processes of its own."""

    def __init__(self, model: str, device: torch.device, folder: Path) -> None:
        self.model, self.device, self.folder = model, device, folder
        self.rows = folder / "rows.jsonl"
        rows = [
            {"prompt": f"Count to {n % 9 + 1}.", "completion": " ".join(map(str, range(1, n % 9 + 2)))}
            for n in range(32)
        ]
        self.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def __call__(self, name: str, strategy: str, ranks: int, steps: int = STEPS) -> _Run:
        settings = {
            "max_steps": steps,
            "batch_size": 8,
            "micro_batch_size": 2,
            "checkpoint_every": 1,
            "eval_every": 0,
            "optimizer.learning_rate": 1e-4,
            "optimizer.warmup_steps": 0,
            "optimizer.schedule": "constant",
        }
        words = [
            "--algo",
            "sft",
            "--model",
            self.model,
            "--dataset",
            str(self.rows),
            "--run-dir",
            str(self.folder / name),
        ]
        words += [w for key, value in settings.items() for w in ("--set", f"trainer.{key}={value}")]
        words += ["--set", f"strategy={strategy}", "--set", f"strategy.device={self.device.type}"]
        return self._run(name, [*words, *(["--nproc", str(ranks)] if ranks > 1 else [])])

    def _run(self, name: str, words: Sequence[str]) -> _Run:
        from rlhf_core.errors import RlhfError

        environment = {**os.environ, "RLHF_REPORT": "0"}
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "rlhf_core.cli.main", "train", *words],
                env=environment,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RlhfError(f"no end after {DEADLINE_S:.0f} s", why="rlhf train " + " ".join(words)) from error
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
            raise RlhfError(f"rlhf train ended with code {done.returncode}", why=" / ".join(last))
        return _Run(self.folder / name, time.perf_counter() - began)

    def resumed(self, plain: _Run) -> Comparison:
        """One step, then one more from its checkpoint."""
        from rlhf_core.errors import RlhfError

        what = "checkpoint, resumed"
        try:
            first = self("resumed", "single", 1, steps=1)
            run = self._run("resumed", ["--resume", str(first.folder), "--set", f"trainer.max_steps={STEPS}"])
        except RlhfError as error:
            return Comparison(what, "differs", f"{error.what}; {error.why}")
        return self._compared(what, plain, run, "bit for bit")

    def compared(self, name: str, ranks: int, plain: _Run) -> Comparison:
        """The same training under another strategy."""
        from rlhf_core.errors import RlhfError

        what = f"strategy {name}, {ranks} process" + ("es" if ranks > 1 else "")
        try:
            return self._compared(what, plain, self(name, name, ranks), "exactly")
        except RlhfError as error:
            return Comparison(what, "differs", f"{error.what}; {error.why}")

    def _compared(self, what: str, plain: _Run, run: _Run, exactly: str) -> Comparison:
        gap = difference(plain.weights(), run.weights(), self._start())
        if gap is None:
            return Comparison(what, "differs", "other weights by name or by shape", run.seconds)
        said = f"equal {exactly}" if gap == 0 else f"the change of the weights to {gap:.1g} of its norm"
        return Comparison(what, "agrees" if gap <= FAR else "differs", said, run.seconds)

    def _start(self) -> dict[str, torch.Tensor]:
        from rlhf_core.models.config import ModelConfig
        from rlhf_core.models.load import load_policy

        return dict(load_policy(ModelConfig(path=self.model)).model.state_dict())


def difference(
    plain: dict[str, torch.Tensor], other: dict[str, torch.Tensor], start: dict[str, torch.Tensor]
) -> float | None:
    """Norm of ``other - plain`` over that of ``plain - start``; None where names or shapes differ."""
    if {n: t.shape for n, t in plain.items()} != {n: t.shape for n, t in other.items()}:
        return None
    changed: Any = sum(float((t.double() - start[n].double()).square().sum()) for n, t in plain.items() if n in start)
    apart: Any = sum(float((t.double() - other[n].double()).square().sum()) for n, t in plain.items())
    return 0.0 if apart == 0 else (apart / changed) ** 0.5 if changed else float("inf")
