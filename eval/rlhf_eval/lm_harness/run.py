"""`rlhf eval lm_eval:TASK`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.cli import load_sampler
from rlhf_core.config import BuildContext, ConfigError, merge_settings, parse_settings
from rlhf_core.data import write_json
from rlhf_core.models import ModelConfig, resolve_model, weights_digest
from rlhf_eval.store import ResultFolder

OPTIONS = {"path": "path", "shots_data": "shots_path", "shots": "shots", "limit": "limit", "max_tokens": "max_tokens"}
"""Option of the command -> setting of the task; the others are the task's own business."""


def run_task(
    task: str,
    model: ModelConfig,
    ctx: BuildContext,
    out: Path | None,
    options: Mapping[str, Any],
) -> tuple[Path, dict[str, float]]:
    """Run one task anew and write ``settings.json``, ``rows.jsonl`` and ``report.json``; returns folder and metrics."""
    options_set = [k for k, v in options.items() if v is not None and v is not False and v != ()]
    refused = [k for k in options_set if k not in ("settings", *OPTIONS)]
    if refused:
        names = ", ".join(f"--{'n' if k == 'samples' else k.replace('_', '-')}" for k in refused)
        raise ConfigError(
            f"lm_eval:{task} does not take {names}",
            why="prompts and metrics are part of the task",
            fix="leave it out; what can be set: rlhf plugins info lm_eval",
        )
    chosen = {to: options[k] for k, to in OPTIONS.items() if options.get(k) is not None}
    settings = merge_settings({"task": task, **chosen}, parse_settings(options.get("settings", ())))
    config: Any = ctx.registry.config("benchmark", "lm_eval", settings)
    config.preflight(ctx)
    resolve_model(model.path)
    settings = {
        "suite": config.model_dump(mode="json"),
        "seed": ctx.seed,
        "model": {**model.model_dump(mode="json"), "weights": weights_digest(model.path)},
    }
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"lm_eval-{task}-{Path(model.path).stem}")
    folder = ResultFolder(out or Path("evals") / name, settings)
    folder.check()
    policy, engine = load_sampler(ctx.registry, model)
    metrics, rows = config.build(ctx.with_(policy=policy)).run(engine)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_json(folder.path / "settings.json", folder.settings)
    folder.write("rows.jsonl", rows)
    write_json(folder.path / "report.json", metrics)
    return folder.path, metrics
