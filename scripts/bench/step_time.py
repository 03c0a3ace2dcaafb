"""One whole GRPO step (rollout, reward, advantage, update), ours against TRL's GRPOTrainer on the same work.

No KL term, AdamW, one thread and two. Completions have the same lengths on both sides: in ours a request has its own
``max_tokens`` and the end of the text is banned, in TRL's the end is impossible before and certain at the row's last
token. Ours decodes with ``rollout.compile=true``. The ratio depends on the processor, whose name and speed stand beside
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from scripts.bench._processor import peaks, processor
from scripts.bench._sides import as_folder, compare, smollm2
from scripts.bench._work import Work, find

RUNS = {"a": 3, "b": 1, "c": 2, "d": 2, "e": 3, "f": 2}
"""Counted steps of each side: a step of case b takes TRL minutes."""
THREADS = (1, 2)
ONE_THREAD = "abcd"
"""Cases that are measured with one thread, too."""


def measure(case: str, model: Path | str, runs: int, threads: int) -> dict[str, Any]:
    """Compare; products are measured before and after, and the better counts."""
    dtype, folder = find(case).dtype, as_folder(model)
    before = peaks(dtype, threads)
    result = compare(case, folder, runs, threads)
    after = peaks(dtype, threads)
    best = {kind: max(before[kind], after[kind]) for kind in before}
    facts = {"processor": processor(), "product_gflops": best, "trl_version": metadata.version("trl")}
    if case == "pocket":
        return {**result, **facts}
    least = {part: done / max(best.values()) for part, done in operations(find(case), folder).items()}
    taken = result["ours"]["parts_median_seconds"]
    return {**result, **facts, "share_of_floor": {part: round(least[part] / taken[part], 3) for part in least}}


def operations(work: Work, folder: Path) -> dict[str, float]:
    """10^9 operations of a step's products, attention's left out: each prompt is read once, and the head sees what
    completions are predicted from. A backward pass has two products for each of the forward's, one where weights are
    frozen.
    """
    config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    heads = config.num_attention_heads + config.num_key_value_heads
    of_layer = 2 * heads * config.hidden_size // config.num_attention_heads + 3 * config.intermediate_size
    layers, head = config.num_hidden_layers * config.hidden_size * of_layer, config.hidden_size * config.vocab_size
    asked, answered = sum(len(tokenizer(p)["input_ids"]) for p in work.prompts), sum(work.lengths())
    forward = 2e-9 * (layers * (asked + answered - work.rows) + head * answered)
    return {"rollout": forward, "update": forward * (2 if work.lora_r else 3)}


def cases(runs: int | None = None, model: Path | None = None) -> dict[str, Callable[[], dict[str, Any]]]:
    """``runs`` are counted steps of each side, ``model`` a .gguf file or folder."""
    return {
        f"{case}, {threads} thread{'s' if threads > 1 else ''}": partial(
            measure, case, model or smollm2(), runs or usual, threads
        )
        for threads in THREADS
        for case, usual in RUNS.items()
        if threads > 1 or case in ONE_THREAD
    }
