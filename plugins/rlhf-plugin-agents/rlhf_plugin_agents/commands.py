"""From the options of `rlhf eval SUITE --agent A` to the evaluations, and to what compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import BuildContext, ConfigError, parse_settings
from rlhf_core.data import read_jsonl, write_json
from rlhf_eval.statistics import mcnemar, paired_difference
from rlhf_plugin_agents.backends.config import BackendConfig, ReplayConfig
from rlhf_plugin_agents.backends.known import backend_of
from rlhf_plugin_agents.folder import AgentFolder
from rlhf_plugin_agents.harness import Job, Say, carry_out, prepare
from rlhf_plugin_agents.page import write_page
from rlhf_plugin_agents.report import report
from rlhf_plugin_agents.suites.config import AgentSuiteConfig, TauBench, folder_of
from rlhf_plugin_agents.suites.tau_replay import is_published, replayed


def evaluate_all(suites: Sequence[str], options: Mapping[str, Any], say: Say) -> dict[str, Any]:
    twice = [s for i, s in enumerate(suites) if s in suites[:i]]
    if twice:
        raise ConfigError(f"suite '{twice[0]}' is named twice", fix="name it once")
    ctx = context_of(open_registry(), seed=options["seed"])
    settings = parse_settings(options["settings"])
    backend = _backend(options, dict(settings.pop("backend", None) or {}))
    jobs = [job for name in suites for job in _jobs(name, suites, options, settings, backend, ctx)]
    evaluations: list[dict[str, Any]] = []
    recordings = [_published(job, options) for job in jobs]
    out = options["out"]
    folders = [out if out is None or len(jobs) == 1 else out / f"{j.suite.name}-{j.agent.name}" for j in jobs]
    prepared = [None if r else prepare(job, ctx, target) for job, r, target in zip(jobs, recordings, folders)]
    todo = [job for job, ready in zip(jobs, prepared) if ready is not None and ready.todo]
    checks = {id(job.backend): job.backend.check for job in todo} | {job.suite.name: job.suite.check for job in todo}
    for remark in filter(None, [check(ctx) for check in checks.values()]):
        say(remark)
    for job, recording, target, ready in zip(jobs, recordings, folders, prepared):
        if len(jobs) > 1:
            say(f"{job.suite.name}, {job.agent.name}")
        if recording is not None:
            folder, result = recording(target)
        else:
            assert ready is not None
            folder, result = carry_out(ready, ctx, options["workers"], say)
        evaluations.append({"suite": job.suite.name, "agent": job.agent.name, "folder": str(folder), **result})
    return {"evaluations": evaluations, "comparisons": _comparisons(evaluations)}


def _published(job: Job, options: Mapping[str, Any]) -> Callable[[Path | None], tuple[Path, dict[str, Any]]] | None:
    """For a recording in the form that tau-bench publishes: what judges it, instead of an agent."""
    suite, path = job.suite, Path(options["replay"] or "").expanduser()
    if not isinstance(suite, TauBench) or not is_published(path):
        return None
    rows = replayed(path, folder_of(suite), suite.split, suite.domain)

    def judge(out: Path | None) -> tuple[Path, dict[str, Any]]:
        folder = AgentFolder(out, job.settings([]))
        folder.keep(rows)
        agree = sum(r["value"] == r["published"] for r in rows)
        result = report(rows, max(r["trial"] for r in rows) + 1)
        result["recording"] = {
            "trajectories": len(rows),
            "same_reward": agree,
            "other_rewards": [
                {k: r[k] for k in ("task", "trial", "value", "published", "detail")}
                for r in rows
                if r["value"] != r["published"]
            ],
            "differing_results": sum(len(r["differing"]) for r in rows),
            "examples": [{"task": r["task"], "trial": r["trial"], **d} for r in rows for d in r["differing"]],
            "other_task": sum(bool(r["other_task"]) for r in rows),
        }
        write_json(folder.path / "report.json", result)
        write_page(folder.path, folder.settings, result, rows)
        return folder.path, result

    return judge


def _comparisons(evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each two agents on a suite, over all tasks and by category."""
    pairs = [(a, b) for a, b in combinations(evaluations, 2) if a["suite"] == b["suite"]]
    comparisons: list[dict[str, Any]] = []
    for a, b in pairs:
        first, second = (list(read_jsonl(Path(e["folder"]) / "rows.jsonl")) for e in (a, b))
        by_category = {c: compare(*([r for r in rows if r["category"] == c] for rows in (first, second)))
                       for c in a["categories"]}  # fmt: skip
        names = {"suite": a["suite"], "first": a["agent"], "second": b["agent"]}
        comparisons.append({**names, **compare(first, second), "categories": by_category})
    return comparisons


def _backend(options: Mapping[str, Any], settings: dict[str, Any]) -> BackendConfig:
    implied = {"script": "scripted", "replay": "replay"}
    backends = [b for o, b in implied.items() if options[o]]
    name = options["backend"] or (backends[0] if backends else "native")
    for option, owner in implied.items():
        if options[option] and owner != name:
            raise ConfigError(
                f"--{option} is for the backend {owner}, and the backend is {name}", fix=f"--backend {owner}"
            )
    if options["script"]:
        settings["script"] = options["script"]
    if options["replay"]:
        settings["path"] = options["replay"]
    if options["model"]:
        if name in ("scripted", "replay"):
            raise ConfigError(f"backend '{name}' has no model", fix="leave --model out, or --backend native")
        settings["model"] = {"path": options["model"]} if name == "native" else options["model"]
    return backend_of(name, settings)


def _jobs(
    name: str,
    suites: Sequence[str],
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    backend: BackendConfig,
    ctx: BuildContext,
) -> list[Job]:
    chosen = {k: v for k, v in settings.items() if k not in suites} | dict(settings.get(name) or {})
    options_set = {
        "path": _data(name, suites, options["data"]),
        "category": list(options["category"]) or None,
        "levels": _levels(options["levels"]),
        "max_per_category": options["max_per_category"],
        "trials": options["trials"],
    }
    fields = {**{k: v for k, v in options_set.items() if v is not None}, **chosen}
    suite = ctx.registry.config("benchmark", name, fields)
    if not isinstance(suite, AgentSuiteConfig):
        raise ConfigError(f"benchmark '{name}' is not a suite for agents", fix=f"rlhf eval {name} without --agent")
    names = options["agents"] or (suite.agent,)
    twice = [a for i, a in enumerate(names) if a in names[:i]]
    if twice:
        raise ConfigError(f"agent '{twice[0]}' is named twice", fix="name it once; --trials N plays each task N times")
    agents = [suite.agent_config(a) for a in names]
    return [Job(suite, agent, _recorded(backend, name, agent.name), options["seed"]) for agent in agents]


def _recorded(backend: BackendConfig, suite: str, agent: str) -> BackendConfig:
    """Of a recording of several evaluations, ``--out`` of such a command, this suite's with this agent."""
    if not isinstance(backend, ReplayConfig) or not backend.path:
        return backend
    recording = Path(backend.path).expanduser() / f"{suite}-{agent}"
    return backend.model_copy(update={"path": str(recording)}) if recording.is_dir() else backend


def _data(name: str, suites: Sequence[str], values: Sequence[str]) -> str | None:
    paths: list[str] = []
    for value in values:
        suite, is_named, rest = value.partition("=")
        if is_named and suite in suites:
            paths += [rest] if suite == name else []
        elif len(suites) > 1:
            raise ConfigError(f"--data {value} does not say for which suite it is", fix=f"--data {suites[0]}={value}")
        else:
            paths.append(value)
    if len(paths) > 1:
        raise ConfigError(f"--data names {len(paths)} places for suite '{name}'", fix=f"one of {', '.join(paths)}")
    return paths[0] if paths else None


def _levels(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--levels {text}: levels are numbers", fix="--levels 1,2") from error


Row = Mapping[str, Any]
DRAWS = 5000


def compare(first: Sequence[Row], second: Sequence[Row]) -> dict[str, Any]:
    """Second minus first over the tasks that both have a verdict on: :func:`paired_difference`, a bootstrap over tasks
    (5000 resamples, seed 0), McNemar's exact test on first trials, Wilcoxon's signed-rank test or None."""
    a, b = _by_task(first), _by_task(second)
    shared = [t for t in a if t in b]
    result: dict[str, Any] = {
        "tasks": len(shared),
        "only_first": len(a) - len(shared),
        "only_second": len(b) - len(shared),
    }
    if not shared:
        return result
    right = [np.array([np.mean([bool(r["right"]) for r in g[t]]) for t in shared]) for g in (a, b)]
    value = [np.array([np.mean([r["value"] for r in g[t]]) for t in shared]) for g in (a, b)]
    trials = [{t: next((bool(r["right"]) for r in g[t] if r["trial"] == 0), None) for t in shared} for g in (a, b)]
    pairs = [(x, y) for t in shared if (x := trials[0][t]) is not None and (y := trials[1][t]) is not None]
    lost, gained = sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)
    return {
        **result,
        "difference": paired_difference(list(right[0]), list(right[1]))._asdict(),
        "bootstrap": bootstrap(right[1] - right[0]),
        "mcnemar": {"lost": lost, "gained": gained, "p": mcnemar(lost, gained)},
        "wilcoxon_p": wilcoxon(value[1] - value[0]),
    }


def bootstrap(difference_P: np.ndarray[Any, Any], draws: int = DRAWS) -> dict[str, float]:
    """95 % percentile interval of the mean over tasks, by resampling tasks (Efron 1979)."""
    rng = np.random.default_rng(0)
    means = difference_P[rng.integers(0, len(difference_P), (draws, len(difference_P)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"low": float(low), "high": float(high)}


def wilcoxon(difference_P: np.ndarray[Any, Any]) -> float | None:
    """Two-sided p-value of Wilcoxon's signed-rank test (1945); tasks without a difference are left out."""
    from scipy import stats

    changed = difference_P[np.abs(difference_P) > 1e-12]
    result: Any = stats.wilcoxon(changed) if len(changed) else None
    return None if result is None else float(result.pvalue)


def _by_task(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["value"] is not None:
            groups.setdefault(row["task"], []).append(row)
    return groups
