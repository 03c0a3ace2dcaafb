"""What the page shows, read from run directories."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.api import ModelConfig, RlhfError
from rlhf_core.sdk import StoredRun, load_tokenizer, read_jsonl

log = logging.getLogger("rlhf.report")


@dataclass(frozen=True)
class RunView:
    """One run of the page."""

    name: str
    """Its folder's name; made distinct by a number where two runs share it."""
    status: str
    facts: Mapping[str, str]
    """What it is in a few words: algorithm, model, data, steps, time."""
    warnings: Sequence[str]
    """How it ended if not well, and what was dropped."""
    steps: Sequence[Mapping[str, Any]]
    """Rows of its metrics by step, evaluations merged into their step."""
    rollouts: Sequence[Mapping[str, Any]]
    """Completions that the trace kept, evenly thinned to the limit."""
    left_out: int
    """Completions of the trace that were thinned out."""
    examples: Sequence[Mapping[str, Any]]
    """Held-out prompts with the completion at the first and the last evaluation."""
    environment: Mapping[str, str]


@dataclass(frozen=True)
class PageView:
    """Everything on one page."""

    runs: Sequence[RunView]
    differences: Sequence[tuple[str, Sequence[str]]]
    """Setting and its value in each run, where they differ; of a single run every setting."""


def read_page(runs: Sequence[StoredRun], limit: int) -> PageView:
    """Read runs for one page.

    Args:
        runs: finished or not.
        limit: most completions of each run.
    """
    names = [run.path.resolve().name for run in runs]
    distinct = [name if names.count(name) == 1 else f"{name} ({n + 1})" for n, name in enumerate(names)]
    views = [read_run(run, name, limit) for run, name in zip(runs, distinct)]
    settings = [dict(_flat(run.plan.config)) for run in runs]
    keys = sorted({key for config in settings for key in config})
    rows = [(key, [config.get(key, "") for config in settings]) for key in keys]
    return PageView(views, [row for row in rows if len(runs) == 1 or len(set(row[1])) > 1])


def read_run(run: StoredRun, name: str, limit: int) -> RunView:
    """One run for the page."""
    summary = run.summary or {}
    rows: dict[int, dict[str, Any]] = {}
    for row in run.metrics:
        rows.setdefault(int(row["step"]), {}).update(row)
    rollouts, left_out = _rollouts(run, limit)
    facts = {
        "status": run.status,
        "algorithm": run.name_of("trainer"),
        "reward": run.name_of("reward"),
        "model": str(run.plan.config.get("model", {}).get("path", "")),
        "data": run.datasets,
        "steps": str(run.steps),
        "seconds": f"{summary['seconds']:.0f}" if "seconds" in summary else "",
    }
    return RunView(
        name,
        run.status,
        {key: value for key, value in facts.items() if value},
        _warnings(run),
        [rows[step] for step in sorted(rows)],
        rollouts,
        left_out,
        _examples(run),
        _environment(run),
    )


def _warnings(run: StoredRun) -> list[str]:
    summary = run.summary or {}
    failure = f"{run.status}: {(run.failure or {}).get('error', '')}" if run.failure and not summary else ""
    stopped = f"stopped: {summary['stop_reason']}" if summary.get("stop_reason") else ""
    dropped = summary.get("dropped", {})
    counted = [f"{key.replace('_', ' ')}: {n}" for key, n in dropped.items() if n and key != "scores_ok"]
    hooks = [f"hook {name} failed {n} times" for name, n in summary.get("hook_errors", {}).items() if n]
    warned = [str(w) for w in summary.get("warnings", [])]
    return [line for line in (failure, stopped, *warned, *counted, *hooks) if line]


def _rollouts(run: StoredRun, limit: int) -> tuple[list[Mapping[str, Any]], int]:
    """Completions of the trace, one row each; with the texts of their tokens where ids were kept."""
    rows = [row for row in _stream(run, "trace") if row.get("event") == "prompt"]
    flat = [(row, completion) for row in rows for completion in row["completions"]]
    kept = flat if len(flat) <= limit else [flat[i * len(flat) // limit] for i in range(limit)]
    pieces = _pieces(run) if any("completion_ids" in c for _, c in kept) else None
    return [_rollout(row, completion, pieces) for row, completion in kept], len(flat) - len(kept)


def _rollout(row: Mapping[str, Any], completion: Mapping[str, Any], pieces: Any) -> Mapping[str, Any]:
    shown = (
        "text",
        "score",
        "status",
        "parts",
        "advantage",
        "finish_reason",
        "detail",
        "info",
        "policy_version",
        "seed",
    )
    out = {key: completion[key] for key in shown if key in completion}
    out |= {"step": row["step"], "id": row["prompt_id"], "prompt": row["prompt"], "tokens": completion["tokens"]}
    if pieces is not None and "completion_ids" in completion:
        out["pieces"] = pieces(completion["completion_ids"])
        out["logprobs"] = [round(float(x), 4) for x in completion["logprobs"]]
    return out


def _pieces(run: StoredRun) -> Any:
    """A function from token ids to the text that each adds; None if the run's tokenizer cannot be had."""
    folders = [
        run.path / "final",
        *(run.path / "checkpoints" / f"step-{n:06d}" / "model" for n in run.checkpoints[::-1]),
    ]
    for folder in folders:
        if folder.is_dir():
            try:
                tokenizer: Any = load_tokenizer(ModelConfig(path=str(folder)))
            except RlhfError as error:
                log.warning("tokens are shown as text only: %s", error)
                return None
            return lambda ids: list(_texts(tokenizer, ids))
    return None


def _texts(tokenizer: Any, ids: Sequence[int]) -> Iterator[str]:
    """What each token adds to the text: a character of several tokens appears with the last of them.

    Only the tokens since the last whole piece are decoded, after one piece of context (for blanks before words).
    """
    context, whole = 0, 0
    for n in range(1, len(ids) + 1):
        before, text = (tokenizer.decode(ids[context:end], skip_special_tokens=False) for end in (whole, n))
        if text.endswith("\ufffd") and n < len(ids):
            yield ""
            continue
        yield text[len(before) :] if text.startswith(before) else tokenizer.decode(ids[whole:n])
        context, whole = whole, n


def _examples(run: StoredRun) -> list[Mapping[str, Any]]:
    first: dict[str, Mapping[str, Any]] = {}
    last: dict[str, Mapping[str, Any]] = {}
    for row in _stream(run, "samples"):
        name = str(row.get("prompt_id"))
        first.setdefault(name, row)
        last[name] = row
    return [
        {
            "prompt": one.get("prompt", ""),
            "before": one.get("completion", ""),
            "after": last[name].get("completion", ""),
            "steps": [one["step"], last[name]["step"]],
        }
        for name, one in first.items()
        if last[name]["step"] != one["step"]
    ]


def _environment(run: StoredRun) -> dict[str, str]:
    file = run.path / "environment.json"
    facts = json.loads(file.read_text()) if file.is_file() else {}
    return {**{k: str(v) for k, v in _flat(facts)}, **{f"versions.{k}": v for k, v in run.plan.versions.items()}}


def _stream(run: StoredRun, name: str) -> list[Mapping[str, Any]]:
    file = Path(run.path) / f"{name}.jsonl"
    return list(read_jsonl(file)) if file.is_file() else []


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(Dotted key, value as text) of a nested mapping."""
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _flat(one, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for n, one in enumerate(value):
            yield from _flat(one, f"{key}.{n}")
    else:
        yield key, json.dumps(value, ensure_ascii=False, default=str)
