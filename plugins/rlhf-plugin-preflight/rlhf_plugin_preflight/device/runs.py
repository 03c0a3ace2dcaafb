"""Short trainings under every strategy that is installed, and one that is resumed, against one process's."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rlhf_plugin_preflight.device.report import Comparison, failure, guarded

if TYPE_CHECKING:
    import torch

STEPS = 2


class Limits(NamedTuple):
    one_s: float
    all_s: float


EMBEDDED, OTHERS = Limits(120.0, 240.0), Limits(300.0, math.inf)
"""Of models that come with the toolkit, whose whole check is to end within minutes, and of all others."""
RESUMED = "checkpoint, resumed"
SAME_AS_SINGLE = ("ddp",)
"""Strategies that run the same code as ``single`` on one process."""
FAR = 1e-4
"""Norm of the difference of two trainings' changes over the norm of one that is no longer rounding; AdamW divides by
the gradient's own size, so that a rounding of a small gradient is a rounding of the change."""


def compare_runs(
    model: str, device: torch.device, ranks: int, folder: Path, rollout: Sequence[str] = ()
) -> Iterator[Comparison]:
    """Two steps of SFT: a checkpoint resumed, then each strategy on ``ranks``, and resumed by one process; GRPO."""
    yield from _supervised(train := _Trainings(model, device, folder), ranks)
    if rollout:
        yield train.engine(rollout)


def _supervised(train: _Trainings, ranks: int) -> Iterator[Comparison]:
    what, names = "training in one process", strategies()
    try:
        plain = train("single", "single", 1)
    except Exception as error:
        yield failure(what, error)
        for other in (RESUMED, *(_title(name, ranks) for name in names)):
            yield Comparison(other, "not run", f"needs the {what}")
        return
    yield Comparison(what, "measured", f"{STEPS} steps of sft in float32", plain.seconds)
    yield train.resumed(RESUMED, plain, plain, "bit for bit")
    if train.device.type == "cuda":
        yield from train.rounded(plain)
    for name in names:
        yield from train.compared(name, ranks, plain)


def _title(strategy: str, ranks: int) -> str:
    return f"strategy {strategy}, {ranks} process" + ("es" if ranks > 1 else "")


def _last_lines(text: str | bytes | None) -> str:
    text = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
    return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-3:])


def strategies() -> list[str]:
    """Every strategy that is installed and not disabled, but ``auto`` and ``single``."""
    from rlhf_core.config import Registry

    return sorted({entry.name for entry in Registry().entries("strategy")} - {"auto", "single"})


def has_device(strategy: str) -> bool:
    """Whether a strategy's configuration says on which device it is."""
    from rlhf_core.config import Registry

    return "device" in Registry().load("strategy", strategy).model_fields


def lacks(strategy: str) -> str:
    """What a strategy says is not installed here; "" if nothing is missing."""
    from rlhf_core.config import Registry

    says = getattr(Registry().load("strategy", strategy), "lacks", None)
    return says() if says else ""


class _Run:
    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds

    def weights(self) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        files = sorted((self.folder / "final").glob("*.safetensors"))
        return {name: tensor for file in files for name, tensor in load_file(file).items()}

    def after_one_step(self, folder: Path) -> None:
        """Copy it as it would be if it had been killed in its second step."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("final", "summary.json", _checkpoint(STEPS)))

    @property
    def is_sharded(self) -> bool:
        """Whether its checkpoints are of parts that another strategy can read."""
        from rlhf_core.types.tree import SHARDED

        return (self.folder / "checkpoints" / _checkpoint(1) / SHARDED).exists()


def _checkpoint(step: int) -> str:
    return f"step-{step:06d}"


class _Trainings:
    """Runs of `rlhf train`, each in processes of its own."""

    def __init__(self, model: str, device: torch.device, folder: Path) -> None:
        from rlhf_core.models.modality import embedded_names

        self.model, self.device, self.folder = model, device, folder
        self.limits = EMBEDDED if model in embedded_names() else OTHERS
        self.ends = time.monotonic() + self.limits.all_s
        self.rows = folder / "rows.jsonl"
        rows = [
            {"prompt": f"Count to {n % 9 + 1}.", "completion": " ".join(map(str, range(1, n % 9 + 2)))}
            for n in range(32)
        ]
        self.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def __call__(self, name: str, strategy: str, ranks: int, precision: str = "fp32") -> _Run:
        """In float32: AdamW makes a whole step of bfloat16's rounding, which would hide what is looked for."""
        settings = {
            "precision": precision,
            "max_steps": STEPS,
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
        words += self._strategy(strategy)
        if self.limits is EMBEDDED and self.device.type == "cpu":
            words += ["--set", "threads=1"]  # several wait for each other longer than they compute
        return self._run(name, [*words, *(["--nproc", str(ranks)] if ranks > 1 else [])])

    def _strategy(self, name: str) -> list[str]:
        words = ["--set", f"strategy={name}"]
        return [*words, "--set", f"strategy.device={self.device.type}"] if has_device(name) else words

    def _run(self, name: str, words: Sequence[str]) -> _Run:
        from rlhf_core.config import RlhfError

        environment = {**os.environ, "RLHF_REPORT": "0"}
        began = time.perf_counter()
        limit_s = min(self.limits.one_s, self.ends - time.monotonic())
        if limit_s <= 0:
            raise RlhfError(f"no time left: all trainings together may take {self.limits.all_s:.0f} s")
        try:
            done = subprocess.run(
                [sys.executable, "-m", "rlhf_core.cli.main", "train", *words],
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            why = _last_lines(error.stderr) or "rlhf train " + " ".join(words)
            raise RlhfError(f"no end after {limit_s:.0f} s", why=why) from error
        if done.returncode:
            raise RlhfError(f"rlhf train ended with code {done.returncode}", why=_last_lines(done.stderr))
        return _Run(self.folder / name, time.perf_counter() - began)

    def resumed(self, what: str, run: _Run, plain: _Run, exactly: str) -> Comparison:
        """The second step of a training made anew, in one process, from the checkpoint of the first."""
        name = f"{run.folder.name}-resumed"
        try:
            run.after_one_step(self.folder / name)
            other = [] if run is plain else ["--nproc", "1", *self._strategy("single")]
            return self._compared(what, plain, self._run(name, ["--resume", str(self.folder / name), *other]), exactly)
        except Exception as error:
            return failure(what, error)
        finally:
            self._remove(name)

    def rounded(self, plain: _Run) -> Iterator[Comparison]:
        """The same training in bfloat16, a run's default on CUDA, which changes weights otherwise by its rounding."""
        what, name = "training in bfloat16", "bf16"
        try:
            run = self(name, "single", 1, name)
            gap = difference(plain.weights(), run.weights(), self._start())
            text = "other weights by name or by shape" if gap is None else f"float32's change to {gap:.1g} of its norm"
            yield Comparison(what, "differs" if gap is None else "measured", text, run.seconds)
        except Exception as error:
            yield failure(what, error)
        finally:
            self._remove(name)

    def engine(self, rollout: Sequence[str]) -> Comparison:
        """Two steps of GRPO with a rollout engine: the second samples from weights that it was sent."""
        what = "rollout engine"
        words = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--model", self.model]
        words += ["--run-dir", str(self.folder / "engine"), *self._strategy("single")]
        sizes = ("steps=2", "group_size=4", "rollout_batch_size=8", "sampling.max_tokens=16", "eval_samples=0")
        try:
            more = [f"trainer.{size}" for size in sizes] + [*rollout, "reward.workers=1"]
            return _judged(what, self._run("engine", words + [w for each in more for w in ("--set", each)]))
        except Exception as error:
            return failure(what, error)
        finally:
            self._remove("engine")

    def compared(self, name: str, ranks: int, plain: _Run) -> Iterator[Comparison]:
        """The same training under another strategy; where checkpoints are by parts, one of them read by one process."""
        what = _title(name, ranks)
        if ranks == 1 and name in SAME_AS_SINGLE:
            yield Comparison(what, "not run", "needs two processes: on one it is the training in one process")
        elif missing := lacks(name):
            yield Comparison(what, "not run", missing)
        else:
            yield from guarded(what, partial(self._both, what, name, ranks, plain))
            self._remove(name)

    def _both(self, what: str, name: str, ranks: int, plain: _Run) -> Iterator[Comparison]:
        run = self(name, name, ranks)
        yield self._compared(what, plain, run, "exactly")
        if run.is_sharded:
            yield self.resumed(f"checkpoint of {name}, resumed by one process", run, plain, "exactly")

    def _remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def _compared(self, what: str, plain: _Run, run: _Run, exactly: str) -> Comparison:
        gap = difference(plain.weights(), run.weights(), self._start())
        if gap is None:
            return Comparison(what, "differs", "other weights by name or by shape", run.seconds)
        if gap == float("inf"):
            return Comparison(what, "failed", "the training in one process changed no weight", run.seconds)
        detail = f"equal {exactly}" if gap == 0 else f"the change of the weights to {gap:.1g} of its norm"
        return Comparison(what, "agrees" if gap <= FAR else "differs", detail, run.seconds)

    def _start(self) -> dict[str, torch.Tensor]:
        from rlhf_core.models import ModelConfig, load_policy

        return dict(load_policy(ModelConfig(path=self.model)).model.state_dict())


def _judged(what: str, run: _Run) -> Comparison:
    """Of a run of GRPO, whose second step says how far the engine's logprobs are from the trainer's."""
    from rlhf_core.training.weight_sync import TOLERANCE

    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    reports: dict[str, Any] = json.loads((run.folder / "summary.json").read_text())["reports"]
    lines = [
        f"{report['syncs']} weight syncs, canary to {report['canary_largest']:.1g} nats"
        for report in reports.values()
        if isinstance(report, dict) and {"syncs", "canary_largest"} <= set(cast("dict[str, Any]", report))
    ]
    drift = next((row["drift/mean_abs"] for row in rows if row["step"] == STEPS and "drift/mean_abs" in row), None)
    if drift is None:
        return Comparison(what, "measured", ", ".join(["its logprobs were not compared", *lines]), run.seconds)
    detail = ", ".join([f"logprobs after an update to {drift:.1g} nats", *lines])
    return Comparison(what, "agrees" if drift <= TOLERANCE else "differs", detail, run.seconds)


def difference(
    plain: dict[str, torch.Tensor], other: dict[str, torch.Tensor], start: dict[str, torch.Tensor]
) -> float | None:
    """``|other - plain| / |plain - start|``, infinite where the latter is 0; None where names or shapes differ."""
    if {n: t.shape for n, t in plain.items()} != {n: t.shape for n, t in other.items()}:
        return None
    changed: Any = sum(float((t.double() - start[n].double()).square().sum()) for n, t in plain.items() if n in start)
    apart: Any = sum(float((t.double() - other[n].double()).square().sum()) for n, t in plain.items())
    return (apart / changed) ** 0.5 if changed else float("inf")
