"""Rows of the data set `lookup`, generated on the fly."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_plugin_episodes.lookup.config import LookupDataConfig
from rlhf_plugin_episodes.lookup.questions import TOOLS, Question, demonstration, draw_question
from rlhf_plugin_episodes.lookup.world import Split, world


class LookupSource:
    def __init__(self, config: LookupDataConfig) -> None:
        self.config = config

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "id": name,
                "prompt": question.text,
                "answer": question.answer,
                "calls": len(question.plan),
                "plan": [list(call) for call in question.plan],
            }
            for name, question in self._questions(split)
        ]

    def demonstrations(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Conversations by the plan, with the tools that they use."""
        return [
            {"id": f"sft-{name}", "messages": demonstration(question), "tools": list(TOOLS)}
            for name, question in self._questions(split)
        ]

    def _questions(self, split: str) -> list[tuple[str, Question]]:
        which: Split = "train" if split == "train" else "heldout"
        count = self.config.prompts if which == "train" else max(1, self.config.prompts // 5)
        return draw_questions(self.config.world_seed, which, self.config.calls, count)


@functools.lru_cache(maxsize=8)
def draw_questions(seed: int, split: Split, calls: tuple[int, ...], count: int) -> list[tuple[str, Question]]:
    """(id, question), none twice."""
    rng, facts = random.Random(f"lookup/questions/{seed}/{split}"), world(seed, split)
    questions: dict[str, Question] = {}
    while len(questions) < count:
        question = draw_question(facts, calls[len(questions) % len(calls)], rng)
        questions.setdefault(question.text, question)
    return [(f"{split}/{n:05d}", question) for n, question in enumerate(questions.values())]
