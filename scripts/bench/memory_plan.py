"""What `rlhf memory plan` says against live tensor bytes of the same run, phase by phase.

    RLHF_SMOLLM2_GGUF=SmolLM2-135M-Instruct.Q4_1.gguf python -m scripts.bench memory_plan

Each row is a training run of a few steps in a process of its own, its tensors counted by
:class:`rlhf_core.memory.live.LiveBytes` (not resident memory, of which libraries and the allocator are a part), and the
plan of its configuration, made before. Completions get all their tokens (``min_tokens``), as the plan assumes; what a
micro-batch holds of the data is as it comes. Writes ``docs/bench/memory_plan.md`` besides the record. Rows of the 135M
model need RLHF_SMOLLM2_GGUF and are left out without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_core.launch.memory import readable

PHASES = ("load", "rollout", "update", "checkpoint")
OFFLINE = (
    "trainer.max_steps=3",
    "trainer.batch_size=32",
    "trainer.micro_batch_size=8",
    "trainer.eval_samples=8",
    "dataset.limit=400",
)
SILENT = ("trainer.sample_prompts=0",)
ONLINE = (
    "trainer.steps=2",
    "trainer.eval_samples=8",
    "trainer.gold_samples=0",
    "trainer.rollout_batch_size=32",
    "trainer.train_batch_size=32",
    "trainer.epochs_per_rollout_batch=1",
    "trainer.micro_batch_size=16",
    "trainer.sampling.max_tokens=32",
    "trainer.sampling.min_tokens=32",
    "trainer.drop_constant_groups=false",
)
TASK = {"dataset": "pocket/arithmetic", "reward": "exact"}
LORA, CHECKPOINTING = ("model.lora.r=16",), ("model.gradient_checkpointing=true",)
Run = tuple[dict[str, str], tuple[str, ...]]
RUNS: dict[str, Run] = {
    "sft": ({"algo": "sft"}, (*OFFLINE, *SILENT)),
    "sft, LoRA": ({"algo": "sft"}, (*OFFLINE, *SILENT, *LORA)),
    "sft, checkpointing": ({"algo": "sft"}, (*OFFLINE, *SILENT, *CHECKPOINTING)),
    "reward_model": ({"algo": "reward_model"}, OFFLINE),
    "dpo, reference precomputed": ({"algo": "dpo"}, (*OFFLINE, *SILENT)),
    "dpo, reference off": ({"algo": "dpo"}, (*OFFLINE, *SILENT, "trainer.reference_free=true")),
    "dpo, reference on": (
        {"algo": "dpo"},
        (*OFFLINE, "trainer.sample_prompts=16", "trainer.sampling.max_tokens=32", "trainer.sampling.min_tokens=32"),
    ),
    "dpo, LoRA": ({"algo": "dpo"}, (*OFFLINE, *SILENT, *LORA)),
    "dpo, checkpointing": ({"algo": "dpo"}, (*OFFLINE, *SILENT, *CHECKPOINTING)),
    "grpo, reference on": ({"algo": "grpo", **TASK}, ONLINE),
    "grpo, reference off": ({"algo": "grpo", **TASK}, (*ONLINE, "trainer.kl.track=false", "trainer.kl.coefficient=0")),
    "grpo, LoRA": ({"algo": "grpo", **TASK}, (*ONLINE, *LORA)),
    "grpo, checkpointing": ({"algo": "grpo", **TASK}, (*ONLINE, *CHECKPOINTING)),
    "grpo, bf16": ({"algo": "grpo", **TASK}, (*ONLINE, "trainer.precision=bf16")),
    "ppo": ({"algo": "ppo", **TASK}, ONLINE),
    "ppo, LoRA": ({"algo": "ppo", **TASK}, (*ONLINE, *LORA)),
    "ppo, checkpointing": ({"algo": "ppo", **TASK}, (*ONLINE, *CHECKPOINTING)),
    "ppo, shared critic": ({"algo": "ppo", **TASK}, (*ONLINE, "advantage.critic.kind=shared")),
}
TWO_RANKS = ("sft", "dpo, reference precomputed", "grpo, reference on", "ppo")
FIRST = ("sft", "grpo, reference on", "dpo, reference precomputed", "ppo")
"""Measured before the others."""
SMALLER = ("trainer.max_steps=2", "trainer.batch_size=8", "trainer.micro_batch_size=4")
SMALLER_ONLINE = ("trainer.rollout_batch_size=16", "trainer.train_batch_size=16", "trainer.micro_batch_size=8")


def cases() -> dict[str, Callable[[], Any]]:
    """Every row."""
    rows: dict[str, Callable[[], Any]] = {}
    for name, (names, settings) in RUNS.items():
        rows[f"pocket: {name}"] = partial(run, {**names, "model": "pocket"}, settings)
    for name in TWO_RANKS:
        names, settings = RUNS[name]
        rows[f"pocket: {name}, DDP"] = partial(run, {**names, "model": "pocket"}, settings, 2)
    if model := os.environ.get("RLHF_SMOLLM2_GGUF"):
        for name, (names, settings) in RUNS.items():
            smaller = SMALLER_ONLINE if "rollout_batch" in "".join(settings) else SMALLER
            rows[f"135M: {name}"] = partial(run, {**names, "model": model}, (*settings, *smaller))
    return {name: rows[name] for name in sorted(rows, key=lambda name: name.split(": ")[1] not in FIRST)}


def run(names: Mapping[str, str], settings: tuple[str, ...], ranks: int = 1) -> dict[str, Any]:
    """Plan and measurement of one run, and the relative error of the plan's peak."""
    command = [sys.executable, "-m", "scripts.bench._memory_run", json.dumps(dict(names)), str(ranks), *settings]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    planned, measured = max(found["plan"].values()), max(found["measured"].values())
    phases = {
        name: _error(found["plan"][name], found["measured"][name]) for name in PHASES[1:] if name in found["plan"]
    }
    return {**found, "peak_error": _error(planned, measured), "phase_errors": phases}


def _error(planned: int, measured: int) -> float:
    return round(planned / measured - 1, 4) if measured else 0.0


def finish(results: Mapping[str, Any], folder: Path) -> None:
    """Write the table."""
    lines = [
        "Plan and measurement of live tensor bytes, by `python -m scripts.bench memory_plan`; raw numbers and the",
        "machine are in [memory_plan.json](memory_plan.json).",
        "",
        "| run | plan, peak | measured, peak | error | error of rollout | of update | of checkpoint |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        planned, measured = max(row["plan"].values()), max(row["measured"].values())
        errors = [f"{row['phase_errors'][p]:+.1%}" if p in row["phase_errors"] else "" for p in PHASES[1:]]
        cells = [name, readable(planned), readable(measured), f"{row['peak_error']:+.1%}", *errors]
        lines.append("| " + " | ".join(cells) + " |")
    (folder / "memory_plan.md").write_text("\n".join(lines) + "\n")
