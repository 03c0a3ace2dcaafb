"""Short trainings under every strategy that is installed, and one that is resumed, against one process's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.device_check.report import Comparison, failure

if TYPE_CHECKING:
    import torch

STEPS = 2
DEADLINE_S = 300.0
RESUMED = "checkpoint, resumed"
SAME_AS_SINGLE = ("ddp",)
"""Strategies that run the same code as ``single`` on one process."""
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
    what, train, names = "training in one process", _Trainings(model, device, folder), strategies()
    try:
        plain = train("single", "single", 1)
    except Exception as error:
        yield failure(what, error)
        for other in (RESUMED, *(_title(name, ranks) for name in names)):
            yield Comparison(other, "not run", f"needs the {what}")
        return
    yield Comparison(what, "measured", f"{STEPS} steps of sft", plain.seconds)
    yield train.resumed(plain)
    for name in names:
        yield train.compared(name, ranks, plain)


def _title(strategy: str, ranks: int) -> str:
    return f"strategy {strategy}, {ranks} process" + ("es" if ranks > 1 else "")


def _last_lines(text: str | bytes | None) -> str:
    text = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
    return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-3:])


def strategies() -> list[str]:
    """Every strategy that is installed and not disabled, but ``auto`` and ``single``."""
    from rlhf_core.registry import Registry

    return sorted({entry.name for entry in Registry().entries("strategy")} - {"auto", "single"})


def has_device(strategy: str) -> bool:
    """Whether a strategy's configuration says on which device it is."""
    from rlhf_core.registry import Registry

    return "device" in Registry().load("strategy", strategy).model_fields


def lacks(strategy: str) -> str:
    """What a strategy says is not installed here; "" if nothing is missing."""
    from rlhf_core.registry import Registry

    says = getattr(Registry().load("strategy", strategy), "lacks", None)
    return says() if says else ""


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
            "checkpoint_every": 0,  # the last step's alone
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
        words += ["--set", f"strategy={strategy}"]
        if has_device(strategy):
            words += ["--set", f"strategy.device={self.device.type}"]
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
            why = _last_lines(error.stderr) or "rlhf train " + " ".join(words)
            raise RlhfError(f"no end after {DEADLINE_S:.0f} s", why=why) from error
        if done.returncode:
            raise RlhfError(f"rlhf train ended with code {done.returncode}", why=_last_lines(done.stderr))
        return _Run(self.folder / name, time.perf_counter() - began)

    def resumed(self, plain: _Run) -> Comparison:
        """One step, then one more from its checkpoint."""
        try:
            first = self("resumed", "single", 1, steps=1)
            run = self._run("resumed", ["--resume", str(first.folder), "--set", f"trainer.max_steps={STEPS}"])
            return self._compared(RESUMED, plain, run, "bit for bit")
        except Exception as error:
            return failure(RESUMED, error)
        finally:
            self._remove("resumed")

    def compared(self, name: str, ranks: int, plain: _Run) -> Comparison:
        """The same training under another strategy."""
        what = _title(name, ranks)
        if ranks == 1 and name in SAME_AS_SINGLE:
            return Comparison(what, "not run", "needs two processes: on one it is the training in one process")
        if missing := lacks(name):
            return Comparison(what, "not run", missing)
        try:
            return self._compared(what, plain, self(name, name, ranks), "exactly")
        except Exception as error:
            return failure(what, error)
        finally:
            self._remove(name)

    def _remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def _compared(self, what: str, plain: _Run, run: _Run, exactly: str) -> Comparison:
        gap = difference(plain.weights(), run.weights(), self._start())
        if gap is None:
            return Comparison(what, "differs", "other weights by name or by shape", run.seconds)
        if gap == float("inf"):
            return Comparison(what, "failed", "the training in one process changed no weight", run.seconds)
        said = f"equal {exactly}" if gap == 0 else f"the change of the weights to {gap:.1g} of its norm"
        return Comparison(what, "agrees" if gap <= FAR else "differs", said, run.seconds)

    def _start(self) -> dict[str, torch.Tensor]:
        from rlhf_core.models.config import ModelConfig
        from rlhf_core.models.load import load_policy

        return dict(load_policy(ModelConfig(path=self.model)).model.state_dict())


def difference(
    plain: dict[str, torch.Tensor], other: dict[str, torch.Tensor], start: dict[str, torch.Tensor]
) -> float | None:
    """Norm of ``other - plain`` over that of ``plain - start``, infinite where the latter is 0 (nothing was learned, so
    that nothing is compared); None where names or shapes differ."""
    if {n: t.shape for n, t in plain.items()} != {n: t.shape for n, t in other.items()}:
        return None
    changed: Any = sum(float((t.double() - start[n].double()).square().sum()) for n, t in plain.items() if n in start)
    apart: Any = sum(float((t.double() - other[n].double()).square().sum()) for n, t in plain.items())
    return (apart / changed) ** 0.5 if changed else float("inf")
