"""What `rlhf memory plan` says against live tensor bytes of the same run, phase by phase.

Each row is a training run of two updates in processes of its own. Completions get all their tokens, as the plan
assumes, and rows of SFT and DPO are equally long: the plan is for the heaviest of 200 micro-batches, of which so short
a run sees a few. The 135M model has smaller batches and needs RLHF_SMOLLM2_GGUF.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from scripts.bench._memory_run import plan_and_measure
from scripts.bench._sides import as_folder, smollm2

PHASES = ("load", "rollout", "update", "checkpoint")
OFFLINE = (
    "trainer.max_steps=2",
    "trainer.batch_size=32",
    "trainer.micro_batch_size=8",
    "trainer.eval_samples=8",
    "trainer.sample_prompts=0",
)
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
SAMPLED = ("trainer.sample_prompts=16", "trainer.sampling.max_tokens=32", "trainer.sampling.min_tokens=32")
"""Held-out samples while a DPO run trains, with their KL: a reference is kept."""
SMALLER = ("trainer.batch_size=8", "trainer.micro_batch_size=2")
SMALLER_ONLINE = ("trainer.rollout_batch_size=16", "trainer.train_batch_size=16", "trainer.micro_batch_size=8")
"""Of the 135M model, instead."""
TASK = {"dataset": "pocket/arithmetic", "reward": "exact"}
LORA, CHECKPOINTING = ("model.lora.r=16",), ("model.gradient_checkpointing=true",)
FSDP = ("strategy=fsdp", "strategy.device=cpu")
SIXTEEN_BITS = ("trainer.precision=bf16", "strategy.param_dtype=bfloat16")


class Layout(NamedTuple):
    """How a row's run is laid out."""

    ranks: int
    settings: tuple[str, ...]
    reference: str
    """Where an on-policy run keeps its reference, by the letters of docs/memory.md."""


WHOLE, SHARDED, ADAPTER_OFF, PRECOMPUTED = "A, whole", "B, sharded", "D, adapter off", "E, precomputed"
LAYOUTS = {
    "one process": Layout(1, (), WHOLE),
    "DDP": Layout(2, (), WHOLE),
    "FSDP": Layout(2, FSDP, SHARDED),
    "FSDP, checkpointing": Layout(2, (*FSDP, *CHECKPOINTING), SHARDED),
    "FSDP, 16 bits": Layout(2, (*FSDP, *SIXTEEN_BITS), SHARDED),
    "LoRA": Layout(1, LORA, ADAPTER_OFF),
}
ALGORITHMS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "sft": ({"dataset": "DEMONSTRATIONS"}, OFFLINE),
    "dpo": ({"dataset": "PAIRS"}, OFFLINE),
    "grpo": (TASK, ONLINE),
    "ppo": (TASK, ONLINE),
}
MODELS = ("pocket", "135M")


class Row(NamedTuple):
    algo: str
    layout: Layout
    more: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        if self.algo == "dpo" and not self.more:
            return PRECOMPUTED
        return self.layout.reference if self.algo in ("dpo", "grpo", "ppo") else ""


def rows() -> dict[str, Row]:
    """Of one model."""
    rows_by_name = {f"{algo}, {name}": Row(algo, layout) for algo in ALGORITHMS for name, layout in LAYOUTS.items()}
    for name in ("one process", "FSDP"):
        rows_by_name[f"dpo with samples, {name}"] = Row("dpo", LAYOUTS[name], SAMPLED)
    return rows_by_name


def cases() -> dict[str, Callable[[], Any]]:
    models = MODELS if os.environ.get("RLHF_SMOLLM2_GGUF") else MODELS[:1]
    return {f"{model}: {name}": partial(run, model, row) for model in models for name, row in rows().items()}


def settings_of(model: str, row: Row) -> tuple[str, ...]:
    """As ``--set`` takes them; of the same key the last counts."""
    settings = ALGORITHMS[row.algo][1]
    smaller = SMALLER if settings is OFFLINE else SMALLER_ONLINE
    return (*settings, *(smaller if model == "135M" else ()), *row.layout.settings, *row.more)


@cache
def equal_rows() -> dict[str, str]:
    folder = Path(tempfile.mkdtemp(prefix="memory-plan-rows-"))
    prompts = [f"what is {a} plus {b} ?" for a in range(11, 30) for b in range(11, 30)][:200]
    chosen, rejected = ("the answer is a number and " * 2 + end for end in ("it is right .", "it is wrong ."))
    rows = {
        "DEMONSTRATIONS": [{"prompt": prompt, "completion": chosen} for prompt in prompts],
        "PAIRS": [{"prompt": prompt, "chosen": chosen, "rejected": rejected} for prompt in prompts],
    }
    files = {name: folder / f"{name.lower()}.jsonl" for name in rows}
    for name, file in files.items():
        file.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
    return {name: str(file) for name, file in files.items()}


def names_of(model: str, row: Row) -> dict[str, str]:
    path = str(as_folder(smollm2())) if model == "135M" else model
    given = ALGORITHMS[row.algo][0]
    return {"algo": row.algo, "model": path, **{key: equal_rows().get(name, name) for key, name in given.items()}}


def run(model: str, row: Row) -> dict[str, Any]:
    result = plan_and_measure(names_of(model, row), settings_of(model, row), row.layout.ranks)
    return {**result, "reference": row.reference, **errors(result)}


def errors(results: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    planned, measured = results["plan"], results["measured"]
    both = [name for name in PHASES[1:] if name in planned and name in measured]
    phases = {name: _error(planned[name], measured[name]) for name in both}
    return {"peak_error": _error(max(planned.values()), max(measured.values())), "phase_errors": phases}


def _error(planned: int, measured: int) -> float:
    return round(planned / measured - 1, 4) if measured else 0.0
