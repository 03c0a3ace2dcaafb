"""Rows of the three kinds, and their mixes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.config import UserError
from rlhf_plugin_episodes.lookup.questions import CALLS, TOOLS, demonstration
from rlhf_plugin_episodes.lookup.source import draw_questions
from rlhf_plugin_episodes.lookup.world import world
from rlhf_plugin_pocket import candidate, gold_score, load_pairs, of_split
from rlhf_studies.data_mixes.beginner import beginner

MIXES: Mapping[str, tuple[int, int, int]] = {
    "pure_conv": (100, 0, 0),
    "conv_synth": (50, 50, 0),
    "conv_agentic": (50, 0, 50),
    "equal_3way": (34, 33, 33),
    "agentic_heavy": (25, 25, 50),
    "pure_agentic": (0, 0, 100),
}
"""Percent conversational, synthetic, agentic."""
QUESTIONS = {"train": 2000, "heldout": 400}
Row = dict[str, Any]


def mixed(name: str, seed: int, rows: int) -> tuple[list[Row], list[Row]]:
    """Pairs, and demonstrations, of which the conversational ones are the better side of pairs."""
    first, second, third = counts(MIXES[name], rows)
    said = [*conversational(first, seed), *synthetic(second, seed)]
    questions = draw_questions(0, "train", CALLS, QUESTIONS["train"])
    plays = random.Random(f"mixes/demonstrations/{seed}").sample(questions, min(third, len(questions)))
    shown = [{"messages": spoken(r["prompt"], r["chosen"])} for r in said]
    shown += [{"messages": demonstration(q), "tools": list(TOOLS)} for _, q in plays]
    pairs = [*said, *agentic(third, seed, "train")]
    for content in (pairs, shown):
        random.Random(f"mixes/order/{seed}").shuffle(content)
    return pairs, shown


def counts(mix: tuple[int, int, int], rows: int) -> tuple[int, int, int]:
    """Rows of each kind; they sum up to ``rows``. Example: ``counts((34, 33, 33), 10)`` is ``(4, 3, 3)``."""
    first = round(rows * mix[0] / 100) if mix[1] or mix[2] else rows
    second = round(rows * mix[1] / 100) if mix[2] else rows - first
    return first, second, rows - first - second


def spoken(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def conversational(count: int, seed: int) -> list[Row]:
    rows = load_pairs("train")
    if count > len(rows):
        raise UserError(f"a mix wants {count} of the annotator's pairs, and there are {len(rows)}", fix="fewer rows")
    random.Random(f"mixes/conversational/{seed}").shuffle(rows)
    return [{k: r[k] for k in ("prompt", "chosen", "rejected")} for r in rows[:count]]


def synthetic(count: int, seed: int) -> list[Row]:
    """Pairs by the written rule: two candidates of different worth about a fact of the training split."""
    rng, pool, rows = random.Random(f"mixes/synthetic/{seed}"), of_split("train"), list[Row]()
    while len(rows) < count:
        fact, question = rng.choice(pool)
        texts = [candidate(fact, rng)[1] for _ in range(2)]
        worth = [gold_score(fact.attribute.name, fact.value, text).value for text in texts]
        if abs(worth[0] - worth[1]) > 1e-6:
            better = int(worth[1] > worth[0])
            rows.append({"prompt": question, "chosen": texts[better], "rejected": texts[1 - better]})
    return rows


def agentic(count: int, seed: int, split: Any) -> list[Row]:
    rng, people, rows = random.Random(f"mixes/agentic/{split}/{seed}"), world(0, split), list[Row]()
    questions = draw_questions(0, split, CALLS, QUESTIONS[split])
    while len(rows) < count:
        _, question = rng.choice(questions)
        calls, answer = beginner(question, people, rng)
        if answer != question.answer:
            right, wrong = as_text(question.plan, question.answer), as_text(calls, answer)
            rows.append({"prompt": question.text, "chosen": right, "rejected": wrong})
    return rows


def as_text(calls: Sequence[Any], answer: str) -> str:
    return "\n".join([*(f"{c.tool}: {c.argument} -> {c.result}" for c in calls), f"The answer is {answer}."])
