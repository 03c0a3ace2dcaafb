"""Multi-turn GRPO with a tool, ours against TRL's tool loop: the same loss and gradient, then whole steps in turns.

First both sides are given the same episodes, token by token: prompts and results must be the same tokens, and loss and
gradient agree to ``TOLERANCE``. The case's table decides how many tokens a turn has and which turns are calls.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from scripts.bench._processor import processor
from scripts.bench._sides import as_folder, compare, smollm2
from scripts.bench._work import RESULT, TOOL_CASES, ToolWork, search, with_template

RUNS = {"a": 3, "b": 2}
THREADS = 2
TOLERANCE = 1e-4
"""Of loss and gradient, relative: float32, rows padded on one side and packed on the other."""


def same_numbers(work: ToolWork, model: Path) -> dict[str, Any]:
    """Loss and gradient of both sides on the same episodes, whose turns are random tokens of the case's lengths."""
    import numpy as np
    import torch

    from scripts.bench._trl import tool_trainer

    trainer = tool_trainer(work, str(model), tempfile.mkdtemp(), 1)
    tokenizer: Any = trainer.processing_class
    result = [{"role": "tool", "name": "search", "content": RESULT}]
    suffix = trainer._get_tool_suffix_ids(result)
    trainer._batch_environments = [None] * len(work.prompts)
    conversations = [[{"role": "user", "content": p}] for p in work.prompts]
    prompts = [ids for ids in trainer._tokenize_prompts(conversations)[0] for _ in range(work.group)]
    rng, episodes, masks = np.random.default_rng(0), [], []
    for lengths in work.lengths():
        ids, mask = [], []
        for n, length in enumerate(lengths):
            turn = [*map(int, rng.integers(100, len(tokenizer) // 2, length - 1)), tokenizer.eos_token_id]
            read = suffix if n else []
            ids, mask = [*ids, *read, *turn], [*mask, *[0] * len(read), *[1] * length]
        episodes.append(ids)
        masks.append(mask)
    advantages = [float(a) for a in rng.normal(size=len(episodes))]
    trl = trl_gradient(trainer, prompts, episodes, masks, advantages)
    ours = our_gradient(model, prompts, episodes, masks, advantages)
    gap = torch.sqrt(sum((ours[1][k] - g).double().pow(2).sum() for k, g in trl[1].items()))  # pyright: ignore
    norm = torch.sqrt(sum(g.double().pow(2).sum() for g in trl[1].values()))  # pyright: ignore
    same: dict[str, Any] = {
        "prompt_tokens": sorted({len(p) for p in prompts}),
        "prompts_are_equal": our_prompts(model, work) == [prompts[n * work.group] for n in range(len(work.prompts))],
        "results_are_equal": our_result(model, work, prompts[0], episodes[0][: work.lengths()[0][0]]) == suffix,
        "loss_gap": abs(ours[0] - trl[0]) / abs(trl[0]),
        "gradient_gap": float(gap / norm),
        "gradient_norm": float(norm),
    }
    if not (same["prompts_are_equal"] and same["results_are_equal"]):
        raise SystemExit(f"the two sides do not read the same tokens: {same}")
    if max(same["loss_gap"], same["gradient_gap"]) > TOLERANCE:
        raise SystemExit(f"the two sides do not compute the same: {same}")
    return same


def trl_gradient(
    trainer: Any, prompts: Any, episodes: Any, masks: Any, advantages: Any
) -> tuple[float, dict[str, Any]]:
    """Value and gradient of TRL's own ``_compute_loss``."""
    import torch
    from trl.trainer.utils import pad

    def grid(rows: Any, side: str, value: int = 0) -> Any:
        return pad([torch.tensor(r) for r in rows], padding_value=value, padding_side=side)

    tool_mask, ones = grid(masks, "right", 1), [[1] * len(e) for e in episodes]
    inputs = {
        "prompt_ids": grid(prompts, "left", trainer._tokenizer.pad_token_id),
        "prompt_mask": grid([[1] * len(p) for p in prompts], "left"),
        "completion_ids": grid(episodes, "right", trainer._tokenizer.pad_token_id),
        "completion_mask": grid(ones, "right"),
        "tool_mask": tool_mask,
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(sum(map(sum, masks))),
    }
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation  # the episodes are one window
    model = trainer.model.train()
    loss = trainer._compute_loss(model, inputs)
    loss.backward()
    return float(loss), {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}


def our_gradient(model: Path, prompts: Any, episodes: Any, masks: Any, advantages: Any) -> tuple[float, dict[str, Any]]:
    """Value and gradient of the loss ``grpo_clip``, its mean over the policy's tokens."""
    import numpy as np

    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_policy
    from rlhf_core.training.policy_module import PolicyModule
    from rlhf_core.training.rollout_batch import TrainingSample
    from rlhf_plugin_grpo.loss import GrpoClip

    module = PolicyModule(load_policy(ModelConfig(path=str(model))).model)
    samples = [
        TrainingSample(str(n), tuple(p), tuple(e), np.array(m, bool), np.full(len(e), a, np.float32))
        for n, (p, e, m, a) in enumerate(zip(prompts, episodes, masks, advantages, strict=True))
    ]
    batch = module(samples)
    loss = (GrpoClip(0.2, 0.2)(batch).loss * batch.mask_BT).sum() / batch.mask_BT.sum()
    loss.backward()
    return float(loss), {k: p.grad for k, p in module.model.named_parameters() if p.grad is not None}


def formatter_of(model: Path) -> Any:
    """Ours, with the model's own chat template."""
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_tokenizer
    from rlhf_core.models.prompt_format import Formatter

    return Formatter(load_tokenizer(ModelConfig(path=str(model))), "auto")


def our_prompts(model: Path, work: ToolWork) -> list[list[int]]:
    from transformers.utils.chat_template_utils import get_json_schema

    formatter, tools = formatter_of(model), (get_json_schema(search),)
    return [list(formatter.encode([{"role": "user", "content": p}], tools)) for p in work.prompts]


def our_result(model: Path, work: ToolWork, prompt: Any, turn: Any) -> list[int]:
    """What our side reads of a result after a turn of the policy."""
    from transformers.utils.chat_template_utils import get_json_schema

    call = {"id": "call00000", "type": "function", "function": {"name": "search", "arguments": {"query": "clips"}}}
    messages = [
        {"role": "user", "content": work.prompts[0]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": RESULT, "name": "search", "tool_call_id": "call00000"},
    ]
    bridge = formatter_of(model).bridge((*prompt, *turn), messages, (get_json_schema(search),))
    return list(bridge.ids)


def measure(case: str, model: Path | str, runs: int, threads: int = THREADS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        prepared = with_template(as_folder(model), Path(folder) / "model")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:  # its memory goes with it
            numbers = apart.submit(same_numbers, TOOL_CASES[case], prepared).result()
        timed = compare(f"tool {case}", prepared, runs, threads)
    return {**numbers, **timed, "processor": processor(), "trl_version": metadata.version("trl")}


def cases(model: Path | None = None, runs: int | None = None) -> dict[str, Callable[[], dict[str, Any]]]:
    return {
        case: lambda case=case, usual=usual: measure(case, model or smollm2(), runs or usual)
        for case, usual in RUNS.items()
    }
