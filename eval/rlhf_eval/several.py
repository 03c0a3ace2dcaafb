"""Several suites in one command: which option is for which suite, and one model for all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_eval.harness import Job
    from rlhf_eval.selectors import Say

ROWS = {"path": "--data", "dataset": "--dataset", "shots_data": "--shots-data"}
"""Options that name rows: with several suites each is for one of them."""
TEXTS = {**ROWS, "style": "--style", "template": "--template", "verifier": "--verifier"}


def options_of(suites: Sequence[str], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each suite's share of the command's options: ``--set gsm8k.limit=20`` is that suite's, ``--set limit=20``
    all's."""
    twice = [name for i, name in enumerate(suites) if name in suites[:i]]
    if twice:
        raise ConfigError(f"suite '{twice[0]}' is named twice", fix="one command for each of its forms")
    return [_of_one(name, suites, options) for name in suites]


def _of_one(suite: str, suites: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    share = dict(options)
    for key, flag in TEXTS.items():
        texts = options.get(key) or ()
        values = [_text(suite, suites, flag, v, key in ROWS) for v in ((texts,) if isinstance(texts, str) else texts)]
        share[key] = next((v for v in reversed(values) if v is not None), None)
    others = tuple(f"{name}." for name in suites if name != suite)
    settings = [s for s in options.get("settings", ()) if not s.startswith(others)]
    share["settings"] = tuple(s.removeprefix(f"{suite}.") for s in settings)
    return share


def _text(suite: str, suites: Sequence[str], flag: str, value: str, needs_suite: bool) -> str | None:
    name, is_given, rest = value.partition("=")
    if is_given and name in suites:
        return rest if name == suite else None
    if needs_suite and len(suites) > 1:
        raise ConfigError(
            f"{flag} {value} does not say for which suite it is",
            why=f"the suites are {', '.join(suites)}",
            fix=f"{flag} SUITE=FILE, for example {flag} {suites[0]}={rest or value}",
        )
    return value


def evaluate_all(
    jobs: Sequence[Job], ctx: BuildContext, out: Path | None, say: Say, budget_s: float | None
) -> list[tuple[Path, dict[str, Any]]]:
    """Evaluate one after the other with one loaded model, each in its own folder, within ``budget_s`` for all."""
    from rlhf_eval.harness import evaluate, folder_of, loaded_once
    from rlhf_eval.store import ResultFolder

    folders = [out if out is None or len(jobs) == 1 else out / job.suite.name for job in jobs]
    if len(jobs) > 1:
        for job, folder in zip(jobs, folders):
            settings = job.settings(ctx)
            ResultFolder(folder or folder_of(job, settings), settings).check()
    began, results = time.monotonic(), list[tuple[Path, dict[str, Any]]]()
    with loaded_once(lambda: jobs[0].load(ctx)) as sampler:
        for job, folder in zip(jobs, folders):
            left = None if budget_s is None else max(0.0, budget_s - (time.monotonic() - began))
            if left == 0 and results:
                say(f"{job.suite.name}: no time left; the same command goes on")
                continue
            if len(jobs) > 1:
                say(job.suite.name)
            results.append(evaluate(job, ctx, folder, say, left, sampler))
    return results
