"""The work that both sides of a comparison do, and how a side talks to the process that times it.

A policy that writes what it likes would do other work on either side. So a case's table decides how many tokens each
completion has. Of episodes it decides the tokens of each turn: a turn of an even number of tokens is a call, whatever
it says; both sides read it with their own parser first, and the tool answers with the same text.
"""

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


RESULT = (
    "Found one entry: the store sold forty eight clips in the first month, half as many in the next one, and it asks "
    "everybody who reads this line to add both numbers before they give the final answer to the question."
)
"""About 40 tokens."""
BUDGET = 512
"""Tokens of an episode, results included."""
WARM_UP = (8, 9)
"""Tokens of the two turns of every episode of the first step, which is not counted."""


def search(query: str) -> str:
    """
    Searches a book of facts.

    Args:
        query: What to look for.

    Returns:
        The line of the book that fits best.
    """
    return RESULT


@dataclass(frozen=True)
class ToolWork:
    what: str
    prompts: tuple[str, ...] = PROBLEMS
    group: int = 4
    turns: tuple[int, int] = (2, 4)
    """Fewest and most turns of an episode."""
    tokens: tuple[int, int] = (16, 32)
    """Fewest and most tokens of a turn."""
    micro_batch: int = 4
    """Episodes of a forward: with eight, the other side alone needs 16 GB for SmolLM2-135M."""

    @property
    def rows(self) -> int:
        return len(self.prompts) * self.group

    def lengths(self) -> list[list[int]]:
        """Tokens of each turn of each episode, drawn once and for all: even for a call, odd for the last turn."""
        rng, (low, high) = random.Random(0), self.tokens
        counts = [rng.randint(*self.turns) for _ in range(self.rows)]
        return [[2 * rng.randint(low // 2, high // 2) + (k == n - 1) for k in range(n)] for n in counts]


TOOL_CASES = {
    "a": ToolWork("4 prompts x 4 episodes of 2 to 4 turns of 16 to 33 tokens, results of about 40"),
    "b": ToolWork("4 prompts x 8 episodes of 4 turns of 16 to 33 tokens, results of about 40", group=8, turns=(4, 4)),
    "small": ToolWork(
        "2 prompts x 2 episodes of 2 to 3 turns of 6 to 13 tokens",
        PROBLEMS[:2], group=2, turns=(2, 3), tokens=(6, 12),
    ),
}  # fmt: skip


def find(case: str) -> Work:
    """A case by name, or ``PROMPTSxGROUPxLENGTH`` with completions of one length."""
    if case in CASES:
        return CASES[case]
    prompts, group, length = map(int, case.split("x"))
    what = f"{prompts} prompts x {group} completions of {length} tokens"
    return Work(what, numbered(prompts), group, length, length, micro_batch=min(8, prompts * group))


def work_of(case: str) -> Work | ToolWork:
    """As :func:`find`, or ``tool NAME`` of episodes."""
    name = case.removeprefix("tool ")
    return find(case) if name == case else TOOL_CASES[name]


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
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    return path


def is_call(tokens: int) -> bool:
    """Whether a turn of so many tokens is a call."""
    return tokens % 2 == 0


def with_template(model: Path, folder: Path) -> Path:
    from transformers import AutoTokenizer
    from trl.chat_template_utils import qwen2_5_chat_template

    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = qwen2_5_chat_template
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)
    return folder
