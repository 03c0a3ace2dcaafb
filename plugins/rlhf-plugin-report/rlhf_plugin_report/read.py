"""What the page shows, read from run directories."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.runs import StoredRun
from rlhf_plugin_report.completions import cut, read_completions
from rlhf_plugin_report.listening import Pair, pairs_of
from rlhf_plugin_report.media import MOST, MediaReader
from rlhf_plugin_report.monitor_status import MonitorStatus, monitor_statuses, thresholds
from rlhf_plugin_report.plays import plays_of
from rlhf_plugin_report.rows import is_count
from rlhf_plugin_report.stored import lines_of, mapping
from rlhf_plugin_report.trace_index import TraceIndex
from rlhf_plugin_report.words import known

LIMIT = 10_000
"""Most completions of a run on a page, unless another number is asked for."""
CLIPPING = ("clip_range", "clip_range_high", "importance_level", "dual_clip")
"""Settings of a loss that say which ratio it has and when it clips; with all of the first and third the page can."""


@dataclass(frozen=True)
class RunView:
    name: str
    """Its folder's name; made distinct by a number where two runs share it."""
    status: str
    facts: Mapping[str, str]
    """What it is in a few words: algorithm, model, data, steps, time."""
    warnings: Sequence[str]
    """How it ended if not well, what is damaged, what monitors said, and what was dropped."""
    steps: Sequence[Mapping[str, Any]]
    """Rows of its metrics by step, evaluations merged into their step."""
    rollouts: Sequence[Mapping[str, Any]]
    """Completions that the trace kept, evenly thinned to the limit."""
    notes: Sequence[str]
    """What of the trace is not on the page, and by which rule."""
    examples: Sequence[Mapping[str, Any]]
    """Held-out prompts with the completion at the first and the last evaluation."""
    environment: Mapping[str, str]
    statuses: Sequence[MonitorStatus] = ()
    thresholds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values of a metric at which a monitor speaks."""
    quantity: str = "score"
    """What ``distribution`` and ``points`` show: score, margin or loss."""
    distribution: Sequence[Mapping[str, float]] = ()
    points: Sequence[tuple[int, float, int]] = ()
    """(Length in tokens, quantity, step) of completions."""
    plugins: Sequence[Mapping[str, str]] = ()
    """Kind, name, distribution and version of every component."""
    sources: Mapping[str, Any] | None = None
    """Where a token's numbers come from: names of reward, advantage and loss, and the clip range."""
    files: Mapping[str, dict[str, str]] = field(default_factory=dict)
    """Path of an image, sound or video -> its content or its place, and the file."""
    pairs: Sequence[Mapping[str, Any]] = ()
    """Sounds to be listened to side by side."""
    heldout: Sequence[Mapping[str, Any]] = ()
    """Completions of held-out prompts at each evaluation."""


@dataclass(frozen=True)
class PageView:
    runs: Sequence[RunView]
    differences: Sequence[tuple[str, Sequence[str]]]
    """Setting and its value in each run, where they differ; of a single run every setting."""


def sampled_trace(config: Mapping[str, Any]) -> str:
    """That a run's trace has some of its completions; "" where it has all."""
    trainer = config.get("trainer")
    settings = trainer if isinstance(trainer, Mapping) else {}
    every, most = settings.get("trace_every", 1), settings.get("trace_completions")
    if every == 1 and most is None:
        return ""
    steps = f"those of steps that {every} divides" if every else "none"
    groups = "" if most is None else f", of each step the first groups, {most} completions at most"
    return f"of this run's completions the trace has {steps}{groups}; metrics are of all"


def read_page(runs: Sequence[StoredRun], limit: int) -> PageView:
    names = [run.path.resolve().name for run in runs]
    distinct = [name if names.count(name) == 1 else f"{name} ({n + 1})" for n, name in enumerate(names)]
    views = [read_run(run, name, limit, MOST // len(runs)) for run, name in zip(runs, distinct)]
    settings = [dict(_flat(run.plan.config)) for run in runs]
    keys = sorted({key for config in settings for key in config})
    rows = [(key, [config.get(key, "") for config in settings]) for key in keys]
    return PageView(views, [row for row in rows if len(runs) == 1 or len(set(row[1])) > 1])


def read_run(run: StoredRun, name: str, limit: int, most_media: int = MOST) -> RunView:
    """One run for the page, with at most so many bytes of images and sounds."""
    summary = run.summary or {}
    rows: dict[int, dict[str, Any]] = {}
    for row in run.metrics:
        rows.setdefault(int(row["step"]), {}).update(row)
    steps = [rows[step] for step in sorted(rows)]
    trace = TraceIndex(run.path / "trace.jsonl")
    samples, broken_samples = lines_of(run.path / "samples.jsonl")
    lines, broken_plays = lines_of(run.path / "plays.jsonl")
    plays, other_plays = plays_of(lines)
    media = MediaReader(run.path, most_media)
    pairs = pairs_of(run.path, trace.with_media, samples)
    media.fill([[side.media for side in pair.sides] for pair in pairs])
    view = read_completions(run, trace, limit, media)
    damage = [
        *getattr(run, "problems", ()),
        *_damaged("trace.jsonl", trace.broken + view.unread),
        *_damaged("samples.jsonl", broken_samples),
        *_damaged("plays.jsonl", broken_plays),
    ]
    return RunView(
        name,
        run.status,
        _facts(run, summary),
        [
            *_ending(run),
            *damage,
            *_warnings(summary, trace.warnings),
            *([] if rows else ["no step and no evaluation was logged"]),
        ],
        steps,
        [*view.rollouts, *plays],
        [*filter(None, (sampled_trace(run.plan.config), view.left_out, other_plays)), *_linked(media)],
        _examples(samples),
        _environment(run),
        monitor_statuses(run.plan.config, run.steps, trace.warnings, run.metrics),
        thresholds(run.plan.config),
        view.quantity,
        view.distribution,
        view.points,
        [dict(c) for c in getattr(run.plan, "components", ()) if isinstance(c, Mapping)],
        _sources(run),
        media.files,
        [_pair(pair, media) for pair in pairs],
        _heldout(samples),
    )


def _pair(pair: Pair, media: MediaReader) -> Mapping[str, Any]:
    sides = [{**media(side.media), "label": side.label, "text": side.text} for side in pair.sides]
    shown = {"id": pair.id, "kind": pair.kind, "prompt": pair.prompt, "voice": pair.voice, "sides": sides}
    return {**shown, "messages": [dict(m) for m in pair.messages]} if pair.messages else shown


def _linked(media: MediaReader) -> list[str]:
    if not media.linked:
        return []
    return [
        f"{media.linked} images, sounds or videos are links to files of the run, which open on this machine only: a "
        f"page holds {MOST / 1e6:g} MB of them, and none above half a megabyte"
    ]


def _facts(run: StoredRun, summary: Mapping[str, Any]) -> dict[str, str]:
    facts = {
        "algorithm": run.name_of("trainer"),
        "reward": run.name_of("reward"),
        "model": str(run.plan.config.get("model", {}).get("path", "")),
        "data": _datasets(run),
        "steps": str(run.steps),
        "seconds": f"{summary['seconds']:.0f}" if isinstance(summary.get("seconds"), int | float) else "",
        "seed": str(run.plan.config.get("seed", "")),
        "best checkpoint": _best(summary),
        "folder": str(run.path),
        "repeatable": _not_exactly(run),
    }
    return {key: value for key, value in facts.items() if value}


def _best(summary: Mapping[str, Any]) -> str:
    """Of which step the checkpoint in ``best/`` is; "" in a run that keeps none."""
    best = mapping(mapping(summary.get("reports")).get("best"))
    return f"best/ is of step {best['step']}: {best.get('metric')} {best['value']:.4g}" if "value" in best else ""


def _not_exactly(run: StoredRun) -> str:
    """What keeps the run from being repeated bit for bit; "" if nothing does, or its plan is damaged."""
    conditions: Any = getattr(run.plan, "conditions", {})
    parts = conditions.values() if isinstance(conditions, Mapping) else ()
    facts = [str(fact) for part in parts if isinstance(part, Mapping) for fact in part.values()]
    return "; ".join(fact for fact in facts if "not exactly" in fact)


def _datasets(run: StoredRun) -> str:
    try:
        return run.datasets
    except (KeyError, TypeError, AttributeError):  # of a plan that is damaged
        return ""


def _ending(run: StoredRun) -> list[str]:
    summary = run.summary or {}
    if run.failure and not summary:
        return [f"{run.status}: {run.failure.get('error', '')}"]
    if summary.get("stop_reason"):
        return [f"stopped: {summary['stop_reason']}"]
    if summary:
        return []
    files = [p for p in (run.path / "metrics.jsonl", run.path / "trace.jsonl", run.path / "plan.json") if p.is_file()]
    written = max((p.stat().st_mtime for p in files), default=0.0)
    ago, when = time.time() - written, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(written))
    if run.status == "interrupted":
        state = f"killed: no process works on it any more. Go on with: rlhf train --resume {run.path}"
    else:
        state = f"not over: {'it is running' if ago < 600 else 'it is in a long step, it hangs, or it was killed'}"
    return [f"{state}; the last line was written at {when}. This page shows what there was"]


def _damaged(file: str, lines: int) -> list[str]:
    return [f"{file}: {lines} damaged line{'s are' if lines > 1 else ' is'} left out"] if lines else []


def _warnings(summary: Mapping[str, Any], trace: Sequence[Mapping[str, Any]]) -> list[str]:
    warnings = [row for row in trace if row.get("event") == "warning" and not row.get("stops")]
    spoken = [f"step {row.get('step')}: {line}" for row in warnings for line in str(row.get("text", "")).splitlines()]
    dropped = mapping(summary.get("dropped"))
    counted = [
        f"{key.replace('_', ' ')}: {n}" + (f" ({meaning})" if (meaning := known()["counts"].get(key)) else "")
        for key, n in dropped.items()
        if n and key not in ("scores_ok", "monitor_warnings" if spoken else "")
    ]
    hooks = [f"hook {name} failed {n} times" for name, n in mapping(summary.get("hook_errors")).items() if n]
    listed = summary.get("warnings")
    warned = [str(w) for w in listed] if isinstance(listed, list) else []
    return [*spoken, *warned, *counted, *hooks]


def _heldout(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows as those of training, without what an evaluation does not keep."""
    return [
        {
            "step": row["step"],
            "id": str(row.get("prompt_id")),
            "prompt": cut(str(row.get("prompt", ""))),
            "text": cut(str(row.get("completion", ""))),
            "place": 0,
            "heldout": True,
        }
        for row in samples
        if is_count(row.get("step")) and not row.get("media")  # those have players
    ]


def _examples(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    first: dict[str, Mapping[str, Any]] = {}
    last: dict[str, Mapping[str, Any]] = {}
    for row in samples:
        name = str(row.get("prompt_id"))
        first.setdefault(name, row)
        last[name] = row
    return [
        {
            "prompt": one.get("prompt", ""),
            "before": one.get("completion", ""),
            "after": last[name].get("completion", ""),
            "steps": [one.get("step", 0), last[name].get("step", 0)],
        }
        for name, one in first.items()
        if last[name].get("step") != one.get("step") and not one.get("media")  # those have players
    ]


def _environment(run: StoredRun) -> dict[str, str]:
    file = run.path / "environment.json"
    try:
        facts = json.loads(file.read_text()) if file.is_file() else {}
    except ValueError:
        facts = {"environment.json": "damaged and left out"}
    return {**{k: str(v) for k, v in _flat(facts)}, **{f"versions.{k}": v for k, v in run.plan.versions.items()}}


def _sources(run: StoredRun) -> dict[str, Any]:
    config = run.plan.config
    loss = config.get("loss")
    settings = loss if isinstance(loss, Mapping) else {}
    clip = {key: settings[key] for key in CLIPPING if settings.get(key) is not None}
    names = {slot: run.name_of(slot) for slot in ("reward", "advantage", "loss", "rollout")}
    return {**{slot: name for slot, name in names.items() if name}, **clip}


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
