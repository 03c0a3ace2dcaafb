"""The work that both sides of a comparison do, and how a side talks to the process that times it."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBLEMS = (
    "Question: Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did she sell altogether in April and May?\nAnswer:",
    "Question: Weng earns 12 dollars an hour for babysitting. Yesterday she did just 50 minutes of babysitting. "
    "How many dollars did she earn, and how did you find out?\nAnswer:",
    "Question: A garden is 15 metres long and 8 metres wide, and a fence around it costs 6 dollars a metre. "
    "What does the whole fence cost?\nAnswer:",
    "Question: James writes a letter of 3 pages to 2 different friends twice a week, all the year round. "
    "How many pages of letters does he write in a year?\nAnswer:",
)
HINTS = (("", ""), ("Write one short sentence for every step.\n", " It takes some thought."))
LONGER = tuple(
    f"{hint}{first}{thought}\n{second}"
    for hint, thought in HINTS
    for first, second in zip(PROBLEMS, PROBLEMS[1:] + PROBLEMS[:1])
)
"""8 prompts of 78 to 104 tokens (SmolLM2's tokenizer)."""
SUMS = tuple(f"{a} plus {b} =" for a in range(2, 10) for b in range(11, 19))
"""64 prompts of the pocket world."""
WARM_UP_TOKENS = 8
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Work:
    """One case: what is sampled and trained in a step, the same on both sides."""

    what: str
    prompts: tuple[str, ...]
    group: int
    shortest: int
    longest: int
    micro_batch: int = 8
    lora_r: int = 0
    dtype: str = "float32"
    """Of the transformer's products; weights, moments and losses are float32 always (mixed precision by autocast)."""
    checkpointed: tuple[str, ...] = ()
    """Sides that compute activations again in the backward pass instead of keeping them: "ours", "trl"."""

    def lengths(self) -> list[int]:
        """Tokens of each completion, row by row: evenly drawn once and for all, so that both sides do the same work."""
        rng = random.Random(0)
        return [rng.randint(self.shortest, self.longest) for _ in range(self.rows)]

    @property
    def rows(self) -> int:
        """Completions of a step."""
        return len(self.prompts) * self.group


CASES = {
    "a": Work("4 prompts x 8 completions of exactly 64 tokens", PROBLEMS, 8, 64, 64),
    "b": Work("8 prompts of 60 to 120 tokens x 8 completions of 32 to 256 tokens", LONGER, 8, 32, 256),
    "c": Work("as a, LoRA r=16", PROBLEMS, 8, 64, 64, lora_r=16),
    "d": Work("as a, bfloat16 autocast", PROBLEMS, 8, 64, 64, dtype="bfloat16"),
    "e": Work("as a, ours with activation checkpointing, TRL without", PROBLEMS, 8, 64, 64, checkpointed=("ours",)),
    "f": Work("as a, activation checkpointing on both sides", PROBLEMS, 8, 64, 64, checkpointed=("ours", "trl")),
    "pocket": Work("pocket model, 64 prompts x 8 completions of 8 to 48 tokens", SUMS, 8, 8, 48, micro_batch=64),
}


def find(case: str) -> Work:
    """A case by name, or ``PROMPTSxGROUPxLENGTH`` of SmolLM2 with completions of one length."""
    if case in CASES:
        return CASES[case]
    prompts, group, length = map(int, case.split("x"))
    return Work(
        f"{prompts} prompts x {group} completions of {length} tokens",
        numbered(prompts),
        group,
        length,
        length,
        micro_batch=min(8, prompts * group),
    )


def numbered(count: int) -> tuple[str, ...]:
    """So many prompts: the problems, then the same with a number before them."""
    more = tuple(f"Problem {n}. {PROBLEMS[n % len(PROBLEMS)]}" for n in range(len(PROBLEMS), count))
    return (*PROBLEMS[:count], *more)


def variety(text: str) -> float:
    """The reward: distinct characters per character. Cheap, and different for almost any two texts."""
    return len(set(text)) / len(text) if text else 0.0


class Gate:
    """Lets the timing process start each step, and tells it how long the step took.

    Whatever else the side prints goes to standard error.
    """

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.started, self.cpu_started = time.perf_counter(), time.process_time()

    def step_done(self, **row: Any) -> None:
        """Report the step that just ended and wait for the next "go"; anything else ends the process."""
        row["seconds"] = time.perf_counter() - self.started
        row["cpu_seconds"] = time.process_time() - self.cpu_started
        row["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(row), file=self.out, flush=True)
        if sys.stdin.readline().strip() != "go":
            os._exit(0)
        self.started, self.cpu_started = time.perf_counter(), time.process_time()


def write_prompts(folder: Path, prompts: tuple[str, ...]) -> Path:
    """The prompts as JSON lines."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    return path
