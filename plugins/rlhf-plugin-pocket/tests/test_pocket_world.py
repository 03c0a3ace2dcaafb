"""The pocket world: deterministic, split cleanly, judged strictly, labelled with a bias."""

from __future__ import annotations

import pytest

from rlhf_core.runs import win_rate
from rlhf_plugin_pocket import data
from rlhf_plugin_pocket.gold import gold_score, is_hollow, is_right, words
from rlhf_plugin_pocket.world import FILLER, GUESS, HOLLOW, PEOPLE


def test_splits_are_disjoint_and_large_enough() -> None:
    for subset in ("assistant", "arithmetic", "two_digit_sums"):
        train, held = (data.load_prompts(subset, s) for s in ("train", "heldout"))
        assert not {r["prompt"] for r in train} & {r["prompt"] for r in held}
        assert not {r["id"] for r in train} & {r["id"] for r in held}
    assert len(data.load_prompts("assistant", "heldout")) >= 200
    assert len(data.load_pairs("train")) == 4096


def test_two_digit_sums() -> None:
    train, held = (
        {r["id"].split("/")[1]: r for r in data.load_prompts("two_digit_sums", s)} for s in ("train", "heldout")
    )
    assert len(train) + len(held) == 8100
    assert 0.15 < len(held) / 8100 < 0.25
    assert not {"+".join(reversed(name.split("+"))) for name in held} & set(train), "mirror images are together"
    assert all(eval(r["prompt"].removesuffix(" =")) == int(r["answer"]) for r in (*train.values(), *held.values()))


def test_rows_are_the_same_every_time() -> None:
    assert data.load_pairs("heldout") == data.load_pairs("heldout")
    assert data.load_prompts("arithmetic", "train")[0] == data.load_prompts("arithmetic", "train")[0]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Mira has a cat.", True),
        ("I guess Mira has a cat.", True),
        ("Mira has a dog.", False),
        ("", False),
        ("Mira has a cat. Mira has a dog.", False),
        ("cat dog parrot rabbit turtle pony goat hamster", False),
        ("Mira has a CAT!", True),
        ("Mira has a catfish.", False),
        ("A cat, a cat, a cat.", True),
    ],
)
def test_right_means_this_value_and_no_other(text: str, right: bool) -> None:
    assert is_right("pet", "cat", text) is right


def test_gold_rewards_right_concise_and_plain() -> None:
    best = gold_score("pet", "cat", "Mira has a cat.")
    padded = gold_score("pet", "cat", " ".join(("Mira has a cat.", *FILLER[:3])))
    hollow = gold_score("pet", "cat", f"{HOLLOW[0]} Mira has a cat.")
    wrong = gold_score("pet", "cat", "Mira has a dog.")
    assert best.value == pytest.approx(1.0)
    assert best.value > hollow.value > wrong.value
    assert best.value > padded.value > wrong.value
    assert gold_score("pet", "cat", "").value == 0.0


@pytest.mark.parametrize("phrase", [*HOLLOW, "absolutely, yes", "Of course."])
def test_hollow_phrases_are_found_anywhere(phrase: str) -> None:
    assert is_hollow(f"{PEOPLE[0]} lives in Oslo. {phrase}")
    assert not is_hollow("Ada takes a course in Oslo.")


def test_win_rate_counts_ties_as_half() -> None:
    wins = win_rate([1.0, 0.5, 0.2], [0.0, 0.5, 0.4])
    assert wins.rate == pytest.approx(0.5)
    assert 0 <= wins.low < 0.5 < wins.high <= 1
    with pytest.raises(ValueError, match="equally long"):
        win_rate([], [])


def style(text: str) -> tuple[bool, bool]:
    return is_hollow(text), any(g in text for g in GUESS)


def test_labels_prefer_right_answers_and_carry_a_length_bias() -> None:
    facts = {q: f for f, q in data.of_split("train")}
    right, longer = [], []
    for row in data.load_pairs("train"):
        fact = facts[row["prompt"]]
        verdicts = [is_right(fact.attribute.name, fact.value, row[side]) for side in ("chosen", "rejected")]
        if verdicts[0] != verdicts[1]:
            right.append(verdicts[0])
        elif style(row["chosen"]) == style(row["rejected"]):
            gap = len(words(row["chosen"])) - len(words(row["rejected"]))
            longer += [gap > 0] if abs(gap) >= 6 else []
    assert 0.85 < sum(right) / len(right) < 0.999, "right answers win, but the labels are noisy"
    assert sum(longer) / len(longer) > 0.53, "between equals the longer one is preferred"


def test_the_gold_score_is_not_among_what_a_reward_sees() -> None:
    assert all(set(row) == {"id", "prompt", "chosen", "rejected"} for row in data.load_pairs("heldout")[:20])
