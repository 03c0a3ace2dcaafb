"""Rows of the built-in data sets, generated on the fly."""

from __future__ import annotations

import functools
import math
import random
from typing import Any, Literal

from rlhf_plugin_pocket.gold import is_hollow, words
from rlhf_plugin_pocket.world import Fact, Style, draw_style, facts, render

Split = Literal["train", "heldout"]
Row = dict[str, Any]

LABEL_WEIGHTS = {"right": 2.5, "hollow": -1.2, "words": 0.01, "guess": -1.2}
"""Utility of the simulated annotator: mostly right answers, but longer ones please, word by word."""
LABEL_TEMPERATURE = 0.5
PAIRS = {"train": 4096, "heldout": 640}


@functools.cache
def _is_heldout(key: str) -> bool:
    return random.Random(f"split/{key}").random() < 0.2


@functools.cache
def questions() -> tuple[tuple[Fact, str, Split], ...]:
    """Every (fact, question, split); a question about a fact is in exactly one split."""
    rows: list[tuple[Fact, str, Split]] = []
    for fact in facts():
        for template in fact.attribute.questions:
            split: Split = "heldout" if _is_heldout(f"{fact.person}/{template}") else "train"
            rows.append((fact, template.format(p=fact.person), split))
    random.Random("order").shuffle(rows)
    return tuple(rows)


def of_split(split: Split) -> list[tuple[Fact, str]]:
    return [(f, q) for f, q, s in questions() if s == split]


def load_prompts(subset: str, split: Split) -> list[Row]:
    """Prompts of ``assistant``, ``arithmetic`` or ``two_digit_sums``: id, prompt, answer, attribute."""
    if subset in SUMS:
        return SUMS[subset](split)
    return [
        {"id": f"{split}/{i:06d}", "prompt": q, "answer": f.value, "attribute": f.attribute.name}
        for i, (f, q) in enumerate(of_split(split))
    ]


def utility(fact: Fact, style: Style, text: str) -> float:
    """What the simulated annotator feels about an answer, before noise. Unbounded."""
    w = LABEL_WEIGHTS
    return (
        w["right"] * style.right
        + w["hollow"] * is_hollow(text)
        + w["words"] * len(words(text))
        + w["guess"] * bool(style.guess)
    )


def load_pairs(split: Split) -> list[Row]:
    """Preference pairs with the annotator's length bias and noise: id, prompt, chosen, rejected."""
    return [dict(row) for row in _pairs(split)]


@functools.cache
def _pairs(split: Split) -> tuple[Row, ...]:
    rng, pool = random.Random(f"pairs/{split}"), of_split(split)
    rows: list[Row] = []
    while len(rows) < PAIRS[split]:
        fact, question = rng.choice(pool)
        options = [candidate(fact, rng), candidate(fact, rng)]
        if options[0][1] == options[1][1]:
            continue
        gap = utility(fact, *options[0]) - utility(fact, *options[1])
        first = rng.random() < 1 / (1 + math.exp(-gap / LABEL_TEMPERATURE))
        chosen, rejected = options if first else options[::-1]
        rows.append(
            {"id": f"{split}/pair-{len(rows):06d}", "prompt": question, "chosen": chosen[1], "rejected": rejected[1]}
        )
    return tuple(rows)


def candidate(fact: Fact, rng: random.Random) -> tuple[Style, str]:
    """Half like the assistant, half with right and guess independent, so that a reward can tell them apart."""
    style = draw_style(rng)
    if rng.random() < 0.5:
        style = Style(rng.random() < 0.5, style.hollow, style.guess, style.filler)
    return style, render(fact, style, rng)


def load_sft(subset: str, split: Split) -> list[Row]:
    """Demonstrations of good answers (right, plain, concise): id, prompt, completion."""
    if subset in SUMS:
        form = " {}" if subset == "two_digit_sums" else "The answer is {}."
        return [
            {"id": r["id"], "prompt": r["prompt"], "completion": form.format(r["answer"])} for r in SUMS[subset](split)
        ]
    return [
        {"id": f"{split}/sft-{i:06d}", "prompt": q, "completion": f.statement()}
        for i, (f, q) in enumerate(of_split(split))
    ]


def arithmetic_prompts(split: Split) -> list[Row]:
    """Sums and differences with numbers up to 20."""
    rows: list[Row] = []
    for a in range(21):
        for b in range(21):
            for op in "+-":
                if (op == "-" and b > a) or _is_heldout(f"{a}{op}{b}") != (split == "heldout"):
                    continue
                answer = a + b if op == "+" else a - b
                rows.append({"id": f"{split}/{a}{op}{b}", "prompt": f"What is {a} {op} {b}?", "answer": str(answer)})
    random.Random("arithmetic").shuffle(rows)
    return rows


def two_digit_sums(split: Split) -> list[Row]:
    """Every sum of two numbers from 10 to 99: ``47 + 35 =``; a pair and its mirror image are in the same split."""
    pairs = [
        (a, b)
        for a in range(10, 100)
        for b in range(10, 100)
        if _is_heldout(f"{min(a, b)}+{max(a, b)}") == (split == "heldout")
    ]
    random.Random("two_digit_sums").shuffle(pairs)
    return [{"id": f"{split}/{a}+{b}", "prompt": f"{a} + {b} =", "answer": str(a + b)} for a, b in pairs]


SUMS = {"arithmetic": arithmetic_prompts, "two_digit_sums": two_digit_sums}
"""Subsets whose prompts have reference answers."""


def arithmetic_answer(prompt: str, answer: str, rng: random.Random, right: float) -> str:
    """A worked answer as the assistant writes it; off by a little when wrong."""
    value = int(answer)
    if rng.random() >= right:
        value = max(0, value + rng.choice((-10, -2, -1, 1, 2, 10)))
    return f"The answer is {value}."
