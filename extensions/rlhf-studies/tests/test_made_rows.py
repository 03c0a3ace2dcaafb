"""Rows that studies make themselves: labels of a judge, revised drafts, graded answers without unseen attributes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rlhf_core.models import ModelConfig, load_tokenizer
from rlhf_plugin_pocket import gold_score, load_pairs, questions
from rlhf_plugin_pocket.build import fresh_llama
from rlhf_studies.ai_labels.run import judged
from rlhf_studies.model_sizes.config import WIDTHS
from rlhf_studies.model_sizes.run import HEAD
from rlhf_studies.rubric_downstream.config import RubricDownstreamConfig
from rlhf_studies.rubric_downstream.run import ATTRIBUTES, UNSEEN, RubricDownstream
from rlhf_studies.sft_sources.run import revised

FACTS = {question: fact for fact, question, _ in questions()}


def gold(prompt: str, text: str) -> float:
    return gold_score(FACTS[prompt].attribute.name, FACTS[prompt].value, text).value


def test_a_judge_knows_gold_and_errs_as_often_as_it_is_told() -> None:
    pairs = load_pairs("train")[:1000]
    apart = [gold(p["prompt"], p["chosen"]) != gold(p["prompt"], p["rejected"]) for p in pairs]

    def right(error: float) -> float:
        rows = judged(pairs, error, Random(0))
        better = [gold(r["prompt"], r["chosen"]) > gold(r["prompt"], r["rejected"]) for r in rows]
        assert [{r["chosen"], r["rejected"]} for r in rows] == [{p["chosen"], p["rejected"]} for p in pairs]
        return sum(b for b, differ in zip(better, apart) if differ) / sum(apart)

    assert right(0.0) == 1.0
    assert right(0.2) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(
    ("draft", "left"),
    [
        ("Of course! I guess Ada plays chess. Many people have asked the same thing before.", "Ada plays chess."),
        ("Ada plays chess.", "Ada plays chess."),
        ("Absolutely!", "Absolutely!"),
    ],
)
def test_a_revision_drops_flattery_hedge_and_padding_and_keeps_the_rest(draft: str, left: str) -> None:
    assert revised(draft) == left


def test_no_reward_model_sees_the_attributes_that_are_left_out(tmp_path: Path) -> None:
    files = RubricDownstream(RubricDownstreamConfig()).files(0, tmp_path)
    rows = {name: [json.loads(line) for line in file.read_text().splitlines()] for name, file in files.items()}
    seen = {ATTRIBUTES[row["prompt"]] for part in rows.values() for row in part}
    assert len(seen) == 4
    assert not seen & set(UNSEEN)
    assert {key for row in rows["short rows"] for key in row["grades"]} == {"concise"}
    assert len(rows["grades rows"]) == 2 * len(rows["pairs rows"])


def test_names_of_sizes_are_their_parameters() -> None:
    tokenizer: Any = load_tokenizer(ModelConfig())
    for name, width in WIDTHS.items():
        model = fresh_llama(tokenizer, 0, width, round(2.7 * width), width // HEAD, 256)
        assert model.num_parameters() / 1e6 == pytest.approx(float(name.removesuffix("M")), rel=0.05)
