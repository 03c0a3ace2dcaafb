"""Can the pocket model tell a true claim from a false one? Compares its logits for "true" and "false".

python scripts/studies/pocket_truth.py
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.pocket.data import of_split
from rlhf_core.pocket.world import draw_style, facts, render


def claims(policy: LoadedModel) -> Iterator[tuple[list[int], bool]]:
    """Plain statements, right and wrong."""
    rng = random.Random("claims")
    for fact in facts():
        for right in (True, False):
            text = fact.statement(None if right else rng.choice(fact.others()))
            ids = policy.tokenizer.encode(f"{text} This is", add_special_tokens=False)
            yield [policy.tokenizer.bos_token_id, *ids], right


def conversations(policy: LoadedModel) -> Iterator[tuple[list[int], bool]]:
    """Held-out questions with a right and a wrong answer of the same style."""
    rng, formatter = random.Random("conversations"), Formatter(policy.tokenizer, "chat")
    for fact, question in of_split("heldout"):
        style = draw_style(rng)
        for right in (True, False):
            answer = render(fact, replace(style, right=right), rng)
            head = formatter.encode([{"role": "user", "content": question}])
            verdict = policy.tokenizer.encode("This is", add_special_tokens=False)
            yield [*head, *formatter.encode_completion(answer), *verdict], right


@torch.inference_mode()
def accuracy(policy: LoadedModel, rows: Iterator[tuple[list[int], bool]]) -> float:
    """Share of verdicts that are right."""
    true, false = (policy.tokenizer.encode(t, add_special_tokens=False)[0] for t in (" true", " false"))
    hits: list[bool] = []
    for ids, right in rows:
        logits = policy.model(torch.tensor([ids])).logits[0, -1]
        hits.append(bool(logits[true] > logits[false]) == right)
    return sum(hits) / len(hits)


def main() -> None:
    """Measure and print."""
    policy = load_policy(ModelConfig())
    rows = {"claims": claims(policy), "conversations": conversations(policy)}
    print(json.dumps({name: accuracy(policy, each) for name, each in rows.items()}))


if __name__ == "__main__":
    main()
