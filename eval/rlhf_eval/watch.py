"""Evaluates the checkpoints of a run, one by one as they come, all with the same settings."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext, ConfigError, RlhfError
from rlhf_core.data import write_json
from rlhf_core.models import ModelConfig, weights_digest
from rlhf_core.runs import StoredRun
from rlhf_eval.harness import Job, Sampler, evaluate, loaded_once
from rlhf_eval.selectors import Say
from rlhf_eval.store import ResultFolder
from rlhf_eval.suites import SuiteConfig

ENDED = ("completed", "stopped", "interrupted", "failed")
DRIFT = 0.1
"""Growth of the gap between lenient and strict, from the first checkpoint on, that is called drift."""


def models(run: StoredRun) -> dict[str, Path]:
    """Name -> folder of every model that a run has on disk now, oldest first: checkpoints, then ``final``."""
    folders = {f"step-{step:06d}": run.path / "checkpoints" / f"step-{step:06d}" / "model" for step in run.checkpoints}
    if (run.path / "final").is_dir():
        folders["final"] = run.path / "final"
    return {name: path for name, path in folders.items() if path.is_dir()}


@contextmanager
def linked_copy(folder: Path, beside: Path) -> Generator[Path | None, None, None]:
    """Hard links (else copies) of a model's files, so that the run may remove it; None if it is gone already."""
    copies = Path(tempfile.mkdtemp(prefix=".held-", dir=beside))
    try:
        yield _link_files(folder, copies / folder.name)
    finally:
        shutil.rmtree(copies, ignore_errors=True)


def _link_files(folder: Path, target: Path) -> Path | None:
    """Link a folder's files into ``target``, which is returned; None if some vanish meanwhile or there are none."""
    try:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            link = target / file.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, link)
            except FileNotFoundError:
                raise
            except OSError:
                shutil.copy2(file, link)
    except FileNotFoundError:
        return None
    return target if target.is_dir() else None


def adapter_print(model: Path) -> str:
    """Hash of a LoRA adapter's weights, in a checkpoint or beside the merged weights of ``final``; "" without one."""
    files = (model / "adapter_model.safetensors", model / "adapter" / "adapter_model.safetensors")
    return next((weights_digest(str(file)) for file in files if file.is_file()), "")


class Record:
    """What is known of a run's checkpoints on one suite, in ``OUT/watch.json``."""

    def __init__(self, run: StoredRun, job: Job, ctx: BuildContext, out: Path) -> None:
        self.run, self.job, self.ctx, self.out = run, job, ctx, out
        self.rows: list[dict[str, Any]] = []
        self.missed: list[str] = []
        self.prints = set[str]()
        """Hashes of the weights of the checkpoints that were evaluated."""

    def take_over(self) -> None:
        """Take over what an earlier watcher evaluated and missed."""
        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / "watch.json"
        earlier = json.loads(file.read_text()) if file.is_file() else {"missed": [], "checkpoints": []}
        self.missed = [name for name in earlier["missed"] if name not in models(self.run)]
        settings: dict[str, Any] = {}
        if earlier["checkpoints"]:
            settings = self.job.suite_settings(self.ctx) | self.job.engine_name
        for row in earlier["checkpoints"]:
            evaluated = self.out / row["checkpoint"]
            if row["checkpoint"] != "start" and (evaluated / "settings.json").is_file():
                model = json.loads((evaluated / "settings.json").read_text())["model"]
                ResultFolder(evaluated, {**settings, "model": model}).check()
                self.prints.add(row.get("adapter") or model["weights"])
                self.rows.append(row)

    def miss(self, name: str) -> None:
        """Note a checkpoint that is gone."""
        self.missed.append(name)
        write_json(self.out / "watch.json", self.summary())

    def evaluate(self, name: str, model: ModelConfig, sampler: Sampler, say: Say, adapter: str = "") -> None:
        job = replace(self.job, model=model, called=f"{self.run.path.name}/{name}")
        folder, result = evaluate(job, self.ctx, self.out / name, say, sampler=sampler)
        modes = {m: v["value"] for m, v in result.get("modes", {}).items()}
        ends = result["endings"]
        row = {
            "checkpoint": name,
            **result["pass_at"]["1"],
            **modes,
            "truncated": ends["truncated"],
            "tokens": ends["tokens"]["mean"],
            "folder": str(folder),
            **({"adapter": adapter} if adapter else {}),
        }
        self.rows = sorted([row, *(r for r in self.rows if r["checkpoint"] != name)], key=age)
        write_json(self.out / "watch.json", self.summary())
        say(f"{name}: {row['value']:.3f} right")

    def summary(self) -> dict[str, Any]:
        return {
            "run": str(self.run.path),
            "suite": self.job.suite.name,
            "checkpoints": self.rows,
            "missed": self.missed,
            "best": best(self.rows),
            "drift": drift(self.rows),
        }


class Watcher:
    """Evaluates every model of a run on each suite into ``RUN/evals/SUITE`` (``out``; of several suites ``out/SUITE``);
    ``base`` adds step 0."""

    def __init__(
        self,
        run: str,
        suites: Sequence[SuiteConfig],
        ctx: BuildContext,
        out: Path | None = None,
        *,
        base: bool = True,
        by: Sequence[str] = (),
        engine: str = "native",
        engine_settings: Sequence[str] = (),
    ) -> None:
        self.run, self.ctx, self.base = StoredRun.find(run), ctx, base
        model = self.run.plan.config["model"]
        inherited = ("max_context", "trust_remote_code", "dtype", "attention")
        self.model = {k: model[k] for k in inherited if k in model}
        of_base = ("path", "revision", "chat_template", "chat_template_kwargs", "assistant_prefix")
        self.start = {k: model[k] for k in of_base if k in model}  # checkpoints have theirs in the saved template
        root = self.run.path / "evals" if out is None else out
        alone = out is not None and len(suites) == 1
        job = Job(suites[0], ModelConfig(), ctx.seed, (), "", engine, tuple(engine_settings), tuple(by))
        self.records = [Record(self.run, replace(job, suite=s), ctx, root if alone else root / s.name) for s in suites]

    def follow(self, *, once: bool, poll_s: float, patience_s: float, say: Say) -> list[dict[str, Any]]:
        """Evaluate until the run has ended, or ``once``; ``patience_s`` is the longest wait for a checkpoint."""
        visited = set[str]()
        for record in self.records:
            record.take_over()
        if self.base:
            self._on_each("start", ModelConfig(**self.start, **self.model), self.records, say)
        last = time.monotonic()
        while True:
            run = StoredRun.find(str(self.run.path))  # before looking, so that nothing is missed between the two
            new = [(name, path) for name, path in models(run).items() if name not in visited]
            for name, path in new:
                visited.add(name)
                self._visit(name, path, say)
                last = time.monotonic()
            if not new and (once or run.status in ENDED):
                break
            if not new and time.monotonic() - last > patience_s:
                raise RlhfError(
                    f"no new checkpoint in {patience_s:g} s, and the run has not ended",
                    where=str(self.run.path),
                    fix="--once does not wait; --patience waits longer",
                )
            if not new:
                time.sleep(poll_s)
        if not visited and not any(record.prints for record in self.records):
            raise ConfigError(f"run '{self.run.path}' has no checkpoints yet", fix="leave out --once to wait for them")
        return [record.summary() for record in self.records]

    def _visit(self, name: str, path: Path, say: Say) -> None:
        """Evaluate a checkpoint on the suites that do not have its weights yet."""
        with linked_copy(path, self.records[0].out) as copied:
            if copied is None:
                for record in self.records:
                    record.miss(name)
                say(f"{name} was removed by the run before it could be evaluated")
                return
            adapter = adapter_print(copied)
            weights = adapter or weights_digest(str(copied))
            open_records = [r for r in self.records if weights not in r.prints]  # `final` is the last one once more
            for record in open_records:
                record.prints.add(weights)
            self._on_each(name, ModelConfig(path=str(copied), **self.model), open_records, say, adapter)

    def _on_each(self, name: str, model: ModelConfig, records: Sequence[Record], say: Say, adapter: str = "") -> None:
        """Evaluate a model, which is loaded once, on several suites."""
        with loaded_once(lambda: replace(self.records[0].job, model=model).load(self.ctx)) as sampler:
            for record in records:
                if len(self.records) > 1:
                    say(record.job.suite.name)
                record.evaluate(name, model, sampler, say, adapter)


def age(row: Mapping[str, Any]) -> tuple[int, str]:
    """Sorts rows by checkpoint: ``start``, ``step-000001``, ..., ``final``."""
    name = row["checkpoint"]
    return ("start", "step", "final").index(name.partition("-")[0]), name


def best(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Checkpoint with the highest value; the earliest of equals."""
    return max(rows, key=lambda r: r["value"])["checkpoint"] if rows else None


def drift(rows: Sequence[Mapping[str, Any]]) -> str:
    """What happened to the form: did answers that only the lenient reading finds become more? "" without modes."""
    rows = [r for r in rows if "strict" in r]
    if not rows:
        return ""
    gaps = [r["lenient"] - r["strict"] for r in rows]
    at = max(range(len(gaps)), key=lambda i: gaps[i])
    if gaps[at] - gaps[0] > DRIFT:
        return (
            f"the form drifts away: at {rows[at]['checkpoint']} lenient {rows[at]['lenient']:.3f}, strict "
            f"{rows[at]['strict']:.3f} (gap {gaps[at]:.3f}, {gaps[0]:.3f} at first). Reward the strict form, or "
            "judge by the lenient one"
        )
    if gaps[0] - gaps[-1] > DRIFT:
        return f"the form was learned: the gap between lenient and strict fell from {gaps[0]:.3f} to {gaps[-1]:.3f}"
    return f"no drift: the gap between lenient and strict stays between {min(gaps):.3f} and {max(gaps):.3f}"
