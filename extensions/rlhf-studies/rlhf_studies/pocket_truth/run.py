"""The share of true and false texts that the model calls by their name."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlhf_core.models import Formatter, LoadedModel, ModelConfig, load_policy
from rlhf_plugin_pocket import draw_style, facts, of_split, render
from rlhf_studies.pocket_truth.config import PocketTruthConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown, spread

Rows = Iterator[tuple[list[int], bool]]
"""(Token ids that a verdict follows, whether the claim is true)."""


class PocketTruth(Study[PocketTruthConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, float]:
        policy, limit = load_policy(ModelConfig()), self.config.limit
        return {
            "claims": accuracy(policy, claims(policy, seed, limit)),
            "conversations": accuracy(policy, conversations(policy, seed, limit)),
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        kinds = next(iter(results.values()))
        rows = [(kind, spread(figures[kind] for figures in results.values())) for kind in kinds]
        return markdown(("verdicts on", "right"), rows)


def claims(policy: LoadedModel, seed: int, limit: int | None) -> Rows:
    """Plain statements, right and wrong."""
    rng = random.Random(f"claims/{seed}")
    for fact in list(facts())[:limit]:
        for right in (True, False):
            text = fact.statement(None if right else rng.choice(fact.others()))
            ids = policy.tokenizer.encode(f"{text} This is", add_special_tokens=False)
            yield [policy.tokenizer.bos_token_id, *ids], right


def conversations(policy: LoadedModel, seed: int, limit: int | None) -> Rows:
    rng, formatter = random.Random(f"conversations/{seed}"), Formatter(policy.tokenizer, "chat")
    verdict = policy.tokenizer.encode("This is", add_special_tokens=False)
    for fact, question in of_split("heldout")[:limit]:
        style, head = draw_style(rng), formatter.encode([{"role": "user", "content": question}])
        for right in (True, False):
            answer = render(fact, replace(style, right=right), rng)
            yield [*head, *formatter.encode_completion(answer), *verdict], right


@torch.inference_mode()
def accuracy(policy: LoadedModel, rows: Rows) -> float:
    true, false = (policy.tokenizer.encode(word, add_special_tokens=False)[0] for word in (" true", " false"))
    hits: list[bool] = []
    for ids, right in rows:
        logits_V = policy.model(torch.tensor([ids])).logits[0, -1]
        hits.append(bool(logits_V[true] > logits_V[false]) == right)
    return sum(hits) / len(hits)
