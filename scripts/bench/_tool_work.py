"""The episodes that both sides of a comparison play: turns of given lengths, and a tool that answers all but the last.

A policy that writes what it likes would do other work on either side. So the case's table decides how many tokens each
turn has, and a turn of an even number of tokens is a call, whatever it says; both sides read it with their own parser
first. What the tool answers is the same text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from scripts.bench._grpo_work import PROBLEMS

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
    """One case, the same on both sides."""

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
        """Episodes of a step."""
        return len(self.prompts) * self.group

    def lengths(self) -> list[list[int]]:
        """Tokens of each turn of each episode, drawn once and for all: even for a call, odd for the last turn."""
        rng, (low, high) = random.Random(0), self.tokens
        counts = [rng.randint(*self.turns) for _ in range(self.rows)]
        return [[2 * rng.randint(low // 2, high // 2) + (k == n - 1) for k in range(n)] for n in counts]


CASES = {
    "a": ToolWork("4 prompts x 4 episodes of 2 to 4 turns of 16 to 33 tokens, results of about 40"),
    "b": ToolWork("4 prompts x 8 episodes of 4 turns of 16 to 33 tokens, results of about 40", group=8, turns=(4, 4)),
    "small": ToolWork(
        "2 prompts x 2 episodes of 2 to 3 turns of 6 to 13 tokens",
        PROBLEMS[:2], group=2, turns=(2, 3), tokens=(6, 12),
    ),
}  # fmt: skip


def is_call(tokens: int) -> bool:
    """Whether a turn of so many tokens is a call."""
    return tokens % 2 == 0


def with_template(model: Path, folder: Path) -> Path:
    """The model's files with Qwen 2.5's chat template, which both sides know: TRL reads calls of known ones only."""
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
