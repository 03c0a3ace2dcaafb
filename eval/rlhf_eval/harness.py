"""Evaluates one model on one suite: chunk by chunk into a folder, and on from there after a kill."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from rlhf_core.cli import context_of, load_sampler
from rlhf_core.config import BuildContext, ConfigError, parse_settings
from rlhf_core.data import Prompt, write_json
from rlhf_core.models import ModelConfig, resolve_model, weights_digest
from rlhf_eval import prompt_form
from rlhf_eval.benchmark import SuiteBenchmark, check_rows
from rlhf_eval.breakdown import breakdown, check_columns
from rlhf_eval.items import rows, section, worked_examples
from rlhf_eval.plot import draw
from rlhf_eval.report import pass_rates, report
from rlhf_eval.selectors import Say, Selector, score
from rlhf_eval.store import ResultFolder, named_folder
from rlhf_eval.suites import SuiteConfig

Sampler = Callable[[], tuple[Any, Any]]


@contextmanager
def loaded_once(load: Sampler) -> Generator[Sampler, None, None]:
    """Load a model when it is first needed, and close its engine at the end."""
    sampler = cache(load)
    try:
        yield sampler
    finally:
        if sampler.cache_info().currsize:
            getattr(sampler()[1], "close", lambda: None)()


class Concluded(Protocol):
    """What a report needs to know of an evaluation."""

    @property
    def selectors(self) -> Sequence[Selector]: ...

    def seen_in_training(self, ctx: BuildContext) -> dict[str, Any]:
        """``{"rows": n, "warning": text}`` if the model was trained on its rows."""
        ...


@dataclass(frozen=True)
class Job:
    """What is evaluated, of which model, with which seed."""

    suite: SuiteConfig
    model: ModelConfig
    seed: int = 0
    selectors: tuple[Selector, ...] = ()
    called: str = ""
    """The model's name in the settings where its path is a passing one."""
    engine: str = "native"
    """The rollout engine, or a vLLM server's address."""
    engine_settings: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    """Columns whose values the report lists with their accuracy; see :mod:`rlhf_eval.breakdown`."""

    def settings(self, ctx: BuildContext) -> dict[str, Any]:
        """Everything that decides the rows; a result folder belongs to one of these."""
        suite_settings = self.suite_settings(ctx)
        resolve_model(self.model.path)
        return {
            **suite_settings,
            **self.engine_name,
            "model": {
                **self.model.model_dump(mode="json"),
                "path": self.called or self.model.path,
                "weights": weights_digest(self.model.path),
            },
        }

    @property
    def engine_name(self) -> dict[str, str]:
        """The engine in the settings; the native one goes without saying."""
        return {} if self.engine == "native" else {"engine": "vllm" if "://" in self.engine else self.engine}

    def load(self, ctx: BuildContext) -> tuple[Any, Any]:
        """The policy, and the engine that samples from it."""
        return load_sampler(ctx.registry, self.model, self.engine, **parse_settings(self.engine_settings))

    def seen_in_training(self, ctx: BuildContext) -> dict[str, Any]:
        """``{"rows": n, "warning": text}`` if the runs that the model comes from trained on rows of the suite."""
        suite = self.suite.resolved(ctx)
        datasets = context_of(ctx.registry, dataset=section(suite, suite.path)).datasets
        count, warning = datasets.seen_in_training(self.model.path, [p.id for p in rows(suite, datasets)])
        return {"rows": count, "warning": warning} if count else {}

    def suite_settings(self, ctx: BuildContext) -> dict[str, Any]:
        suite = self.suite.resolved(ctx)
        ready = check_rows(suite, ctx)
        prompts = rows(suite, ready.datasets)
        check_columns(self.by, prompts, suite.samples)
        shots = worked_examples(suite, ctx, prompts)
        entry = ctx.registry.find("verifier", str(getattr(suite.verifier, "name", "")))
        return {
            "suite": {k: v for k, v in suite.model_dump(mode="json").items() if k not in ("workers", "path")},
            "rows": {"count": len(prompts), "hash": _hash(prompts)},
            "shots": [s.id for s in shots],
            "verifier": f"{entry.distribution} {entry.version}",
            "seed": self.seed,
            "prompts_per_chunk": max(1, suite.chunk // suite.samples),
        }


def folder_of(job: Job, settings: Mapping[str, Any], root: Path = Path("evals")) -> Path:
    return named_folder(root, [job.suite.name, settings["suite"]["style"]], job.model.path, settings)


def evaluate(
    job: Job,
    ctx: BuildContext,
    out: Path | None = None,
    say: Say = lambda text: None,
    budget_s: float | None = None,
    sampler: Sampler | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Evaluate, or go on with the folder's rows; returns the folder and the report. After ``budget_s`` seconds no chunk
    is begun (0: none); ``sampler`` returns the loaded policy and its engine."""
    settings = job.settings(ctx)
    folder = ResultFolder(out or folder_of(job, settings), settings)
    samples, size = int(settings["suite"]["samples"]), int(settings["prompts_per_chunk"])
    done = folder.open(size * samples)
    if form := prompt_form.warning(job.model.path, job.suite.resolved(ctx)):
        say(f"warning: {form}")
    total = int(settings["rows"]["count"])
    try:
        if done * size < total and budget_s != 0:
            policy, engine = sampler() if sampler else job.load(ctx)
            _sample(job, ctx.with_(policy=policy), engine, folder, range(done * size, total), size, say, budget_s)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {folder.path}", file=sys.stderr)
        raise
    finally:
        folder.close()
    more = {"prompt_form": form} if form else {}
    return folder.path, conclude(job, ctx, folder, say, job.suite.pass_from, job.by, more)


def _sample(
    job: Job,
    ctx: BuildContext,
    engine: Any,
    folder: ResultFolder,
    which: Sequence[int],
    size: int,
    say: Say,
    budget_s: float | None,
) -> None:
    """Sample and judge the prompts ``which``, chunk by chunk, until the budget is spent."""
    built = SuiteBenchmark(job.suite.resolved(ctx), ctx)
    total = which[-1] + 1
    progress = Progress(len(which) * built.suite.samples, say)

    def took(rows: Sequence[Mapping[str, Any]], tokens: int) -> None:
        folder.show(rows)
        progress.tell(rows, tokens)

    try:
        for first in range(which[0], total, size):
            start = time.monotonic()
            new_rows = built.stream(range(first, min(first + size, total)), engine, took)
            seconds = time.monotonic() - start
            new_tokens = sum(r["tokens"] for r in new_rows)
            progress.end_chunk(new_tokens)
            times = {"first": first, "completions": len(new_rows), "seconds": seconds, "tokens": new_tokens}
            folder.append(new_rows, times)
            if budget_s is not None and progress.seconds > budget_s:
                say("stopped by --budget; the same command goes on")
                break
    finally:
        built.close()


class Progress:
    """Says how far an evaluation is."""

    def __init__(self, total: int, say: Say) -> None:
        self.total, self.say, self.began = total, say, time.monotonic()
        self.count = self.judged = self.correct = self.tokens = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def tell(self, rows: Sequence[Mapping[str, Any]], tokens: int) -> None:
        """Count rows, and say where it is; ``tokens`` are those of this chunk so far."""
        self.count += len(rows)
        values = [r["value"] for r in rows if r["value"] is not None]
        self.judged, self.correct = self.judged + len(values), self.correct + sum(v >= 1 for v in values)
        share = f"{self.correct / self.judged:.3f} right, " if self.judged else ""
        self.say(
            f"{self.count} of {self.total} completions, {share}"
            f"{(self.tokens + tokens) / max(self.seconds, 1e-9):.0f} tokens/s, {self.seconds:.0f} s"
        )

    def end_chunk(self, tokens: int) -> None:
        self.tokens += tokens


def conclude(
    job: Concluded,
    ctx: BuildContext,
    folder: ResultFolder,
    say: Say,
    least: float = 1.0,
    by: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Score by the selectors, write report, pass rates and curve, and return the report. Verdicts of ``least`` or more
    are right; ``more`` goes into the report as it is."""
    from rlhf_core.data import read_jsonl

    all_rows = folder.rows()
    names = [s.name for s in job.selectors]
    if len(set(names)) < len(names) or "logprob" in names:
        raise ConfigError(f"two ways to choose have one name: {', '.join(names)}", fix="give the folders other names")
    chosen = {s.name: score(s, folder, all_rows, ctx, say) for s in job.selectors}
    times = list(read_jsonl(folder.times_path))
    result = report(all_rows, chosen, least) | {"seconds": sum(t["seconds"] for t in times), **(more or {})}
    if by:
        result["by"] = breakdown(all_rows, by, least)
    if seen := job.seen_in_training(ctx):
        result["seen_in_training"] = seen
        say(f"warning: {seen['warning']}")
    write_json(folder.path / "report.json", result)
    folder.write("pass_rates.jsonl", pass_rates(all_rows, least))
    if "best_at" in result and not draw(result, folder.path / "curve.png"):
        say("no curve.png: matplotlib is not installed (pip install 'rlhf-eval[plot]')")
    return result


def _hash(prompts: Sequence[Prompt]) -> str:
    rows = "\n".join(json.dumps(asdict(p), sort_keys=True, default=str) for p in prompts)
    return hashlib.sha256(rows.encode()).hexdigest()[:16]
