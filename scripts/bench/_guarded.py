"""One side of ``regression``: three kinds of work of whichever tree PYTHONPATH names, a turn for each line "go".

``python -P scripts/bench/_guarded.py MODEL FOLDER``. Every line that it writes is the processor seconds of a turn; the
first of each kind warms up. "next" ends a kind of work.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

QUESTION = "Question: Natalia sold clips to {} of her friends in April, and then she sold half as many in May."
ANSWER = " In May she sold half as many as in April, so we halve that number and add both of them to find the total."
STEPS = 100
"""More than there are turns."""


def question(n: int) -> str:
    return f"{QUESTION.format(n)} How many clips did she sell altogether?\nAnswer:"


class Enough(BaseException):
    """No more turns of this kind are wanted."""


class Turns:
    """Reports each turn and waits for the next."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever else is printed goes to standard error
        self.began = time.process_time()

    def over(self) -> None:
        """A turn is over: report it, and return when the next begins."""
        print(json.dumps(time.process_time() - self.began), file=self.out, flush=True)
        if sys.stdin.readline().strip() != "go":
            raise Enough
        self.began = time.process_time()


def train(model: str, folder: Path, turns: Turns, name: str, rows: Sequence[dict[str, str]], **more: Any) -> None:
    """A trainer's steps, a turn each."""
    from rlhf_core.config.load import resolve
    from rlhf_core.plugins.hooks import load_hooks
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.runs.launch.run import plan_run, preflight, run_plan
    from rlhf_core.runs.work import Display

    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"trainer.name": name, "model.path": model, "model.prompt_format": "raw", **more}
    source = f"dataset={{name: jsonl, path: {json.dumps(str(data))}, heldout_fraction: 0}}"
    registry, hooks = Registry(), load_hooks()
    config = resolve(registry, settings=[source, *(f"{key}={json.dumps(value)}" for key, value in given.items())])
    plan = plan_run(registry, hooks, config, 1)
    preflight(registry, config, 1)
    display = Display(progress=lambda step, total, row: turns.over())
    run_plan(plan, config, registry, hooks, folder / name, resume=False, display=display)


def grpo(model: str, folder: Path, turns: Turns) -> None:
    """2 prompts x 4 completions of exactly 16 tokens."""
    settings = {
        "reward.name": "random",
        "trainer.steps": STEPS,
        "trainer.rollout_batch_size": 8,
        "trainer.group_size": 4,
        "trainer.micro_batch_size": 8,
        "trainer.sampling": {"max_tokens": 16, "min_tokens": 16},
        "trainer.kl": {"coefficient": 0.0, "track": False},
        "trainer.eval_every": 0,
        "trainer.eval_samples": 0,
        "trainer.checkpoint_every": 0,
    }
    train(model, folder, turns, "grpo", [{"prompt": question(n)} for n in range(2)], **settings)


def sft(model: str, folder: Path, turns: Turns) -> None:
    """4 demonstrations of about 60 tokens; all steps are of one epoch."""
    rows = [{"prompt": question(n), "completion": ANSWER} for n in range(4 * STEPS)]
    settings = {
        "trainer.max_steps": STEPS,
        "trainer.batch_size": 4,
        "trainer.eval_every": 0,
        "trainer.checkpoint_every": 0,
    }
    train(model, folder, turns, "sft", rows, **settings)


def decode(model: str, folder: Path, turns: Turns) -> None:
    """8 prompts x 8 completions of exactly 8 tokens."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlhf_core.types.rollouts import RolloutRequest, SamplingParams
    from rlhf_plugin_native.engine import NativeEngine

    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    engine = NativeEngine(loaded, tokenizer, 8192, 256)
    ids = [tuple(tokenizer(question(n))["input_ids"]) for n in range(8)]
    requests = [RolloutRequest(str(n // 8), ids[n // 8], n % 8, n, 8) for n in range(64)]
    for _ in range(STEPS):
        engine.generate(requests, SamplingParams(max_tokens=8, min_tokens=8), 0)
        turns.over()


KINDS: dict[str, Callable[[str, Path, Turns], None]] = {"GRPO step": grpo, "SFT step": sft, "decoding 8 x 8": decode}


def main() -> None:
    import rlhf_core

    model, folder, turns = sys.argv[1], Path(sys.argv[2]), Turns()
    print(json.dumps(str(Path(str(rlhf_core.__file__)).parents[1])), file=turns.out, flush=True)
    for work in KINDS.values():
        turns.began = time.process_time()
        try:
            work(model, folder, turns)
        except Enough:
            continue


if __name__ == "__main__":
    main()
