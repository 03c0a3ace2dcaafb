"""Conformance of trainers: the recipe resolves, and two steps run."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config import ComponentConfig, Registry, RlhfError, RunConfig, merge_settings
from rlhf_core.config.load import validate
from rlhf_core.training import LoopSettings
from rlhf_testing.config import check_config
from rlhf_testing.report import require

SMALL: Mapping[str, Any] = {
    "steps": 2,
    "max_steps": 2,
    "eval_every": 0,
    "eval_samples": 4,
    "gold_samples": 4,
    "sample_prompts": 4,
    "checkpoint_every": 0,
    "batch_size": 8,
    "micro_batch_size": 8,
}


def check_trainer(config: ComponentConfig, *, settings: Mapping[str, Any] | None = None) -> None:
    """Check a trainer: its companions are installed and fit it, and two small steps on the built-in world finish with
    finite metrics, a summary and a final model. Takes several seconds.

    Args:
        settings: further keys of the run, for example ``{"reward": {...}}``; they win over the trainer's companions.
    """
    check_config(config, "trainer")
    registry = Registry(disabled=())
    try:
        validate(registry, {"trainer": config.model_dump(mode="json"), "dataset": "pocket", **(settings or {})})
        run, problem = small_run(registry, config, settings or {}), ""
    except RlhfError as error:
        run, problem = None, str(error)
    rule = "the trainer and its companions resolve"
    require(run is not None, config, rule, problem, "check companions, and pip install what they name")
    assert run is not None
    with tempfile.TemporaryDirectory() as folder:
        check_run(config, registry, run, Path(folder) / "run")


def small_run(registry: Registry, config: ComponentConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The trainer with its companions, cut down to two steps; on its own dataset if that is not the pocket's."""
    group = int(getattr(config, "group_size", 1))
    sizes = {**SMALL, "rollout_batch_size": 2 * group, "train_batch_size": None}
    trainer = {**config.model_dump(mode="json"), **{k: v for k, v in sizes.items() if k in type(config).model_fields}}
    feeds = getattr(config, "feeds", None)
    compares = feeds in ("pairs", "unpaired")
    base: dict[str, Any] = {"seed": 0, "dataset": "pocket/assistant" if compares else "pocket/arithmetic"}
    if feeds == "token_advantages":
        base["reward"] = {"name": "verifier", "workers": 1}
    own_dataset = config.companions.get("dataset") if isinstance(config, LoopSettings) else None
    pocket = {"name": "pocket", "subset": base["dataset"].split("/")[1]}
    named = isinstance(own_dataset, str) and not own_dataset.startswith("pocket")
    base["dataset"] = {**({"name": own_dataset} if named else pocket), "limit": 64}
    return validate(registry, merge_settings({**base, "trainer": trainer}, settings))


def check_run(config: ComponentConfig, registry: Registry, run: RunConfig, folder: Path) -> None:
    """Run it in this process and read what it left."""
    from rlhf_core.data import read_jsonl
    from rlhf_core.plugins.hooks import load_hooks
    from rlhf_core.runs.launch.run import plan_run, preflight, run_plan

    hooks, run = load_hooks(enabled=False), run.with_precision()
    plan = plan_run(registry, hooks, run, 1)
    preflight(registry, run, 1)
    summary = run_plan(plan, run, registry, hooks, folder, resume=False)
    rule = "run() completes and returns its summary"
    require(isinstance(summary, Mapping) and summary.get("status") == "completed", config, rule, repr(summary)[:300])
    json.dumps(summary)
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    bad = {k: v for r in rows for k, v in r.items() if isinstance(v, float) and not math.isfinite(v)}
    require(bool(rows) and not bad, config, "metrics are written, and finite", f"{len(rows)} rows, not finite: {bad}")
    require((folder / "final").is_dir(), config, "the final model is written", "RUN/final is not there")
