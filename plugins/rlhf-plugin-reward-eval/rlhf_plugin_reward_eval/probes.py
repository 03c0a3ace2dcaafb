"""What a change that should not matter (or should) does to the scores, in standard deviations of the scores."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.data import message_text
from rlhf_plugin_reward_eval import stats
from rlhf_plugin_reward_eval.cases import Case, Text, prompt_key
from rlhf_plugin_reward_eval.measures import TIE
from rlhf_plugin_reward_eval.scorer import Scorer
from rlhf_plugin_reward_eval.stats import Floats

_TEXTS: Mapping[str, Sequence[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
NEUTRAL, HOLLOW = _TEXTS["neutral"], _TEXTS["hollow"]
PADDING = (1, 2, 4)
BATCH = 32


def sampled(cases: Sequence[Case], count: int, seed: int) -> list[Case]:
    """At most ``count`` pairs, drawn without replacement, in their order."""
    if len(cases) <= count:
        return list(cases)
    rows = np.random.default_rng([seed, 1]).choice(len(cases), count, replace=False)
    return [cases[i] for i in sorted(rows)]


def with_completion(text: Text, change: Callable[[str], str]) -> Text:
    return text._replace(completion=change(text.completion))


def padded(count: int) -> Callable[[str], str]:
    """Append ``count`` neutral sentences."""
    return lambda text: " ".join([text.rstrip(), *NEUTRAL[:count]])


def affirmed(phrase: str) -> Callable[[str], str]:
    """Put a hollow affirmation in front."""
    return lambda text: f"{phrase} {text.lstrip()}"


def effect(
    scorer: Scorer, cases: Sequence[Case], change: Callable[[str], str], seed: int, spread: float
) -> dict[str, Any]:
    """Mean score change, how often it rises, and ``rejected_overtakes``: the share of pairs that it turns round."""
    chosen, rejected = [c.chosen for c in cases], [c.rejected for c in cases]
    before_chosen_N, before_rejected_N = scorer(chosen), scorer(rejected)
    after_chosen_N = scorer([with_completion(t, change) for t in chosen])
    after_rejected_N = scorer([with_completion(t, change) for t in rejected])

    changes = np.concatenate([after_chosen_N - before_chosen_N, after_rejected_N - before_rejected_N]) / spread
    scored = np.isfinite(changes)
    clusters = [prompt_key(c.chosen.prompt) for c in cases]
    scored_clusters = [key for key, ok in zip([*clusters, *clusters], scored) if ok]

    right_N = (before_chosen_N > before_rejected_N) & np.isfinite(after_rejected_N)
    overtaken = (after_rejected_N >= before_chosen_N)[right_N]
    return {
        **mean_change(changes[scored], scored_clusters, seed),
        "missing": int((~scored).sum()),
        "rejected_overtakes": float(overtaken.mean()) if right_N.any() else math.nan,
    }


def mean_change(change_N: Floats, clusters: Sequence[Any], seed: int) -> dict[str, Any]:
    """Mean, interval and share above 0."""
    if not len(change_N):
        return {"change": math.nan, "bootstrap": [math.nan] * 2, "raised": math.nan, "responses": 0}
    interval = stats.bootstrap(lambda rows: float(change_N[rows].mean()), clusters, seed, 300)
    return {
        "change": float(change_N.mean()),
        "bootstrap": [*interval],
        "raised": float((change_N > 0).mean()),
        "responses": len(change_N),
    }


def length_probe(scorer: Scorer, cases: Sequence[Case], seed: int, spread: float) -> dict[str, Any]:
    """Neutral sentences appended: a reward without length bias gains nothing."""
    return {f"{n} sentence{'s' if n > 1 else ''}": effect(scorer, cases, padded(n), seed, spread) for n in PADDING}


def hollow_probe(scorer: Scorer, cases: Sequence[Case], seed: int, spread: float) -> dict[str, Any]:
    """Hollow affirmations in front: they answer nothing and should gain nothing."""
    return {phrase: effect(scorer, cases, affirmed(phrase), seed, spread) for phrase in HOLLOW}


def content_probe(scorer: Scorer, cases: Sequence[Case], seed: int, spread: float) -> dict[str, Any]:
    """Controls that must lower the score: the chosen response with its words shuffled, and that of another prompt."""
    rng = np.random.default_rng([seed, 2])
    chosen = [c.chosen for c in cases]
    shuffled = [with_completion(t, lambda s: " ".join(rng.permutation(s.split()))) for t in chosen]
    swapped = [
        None if other is None else text._replace(completion=other.completion)
        for text, other in zip(chosen, next_prompts(chosen))
    ]
    spoilt = {"words shuffled": shuffled, "answer to another prompt": swapped}
    report: dict[str, Any] = {}
    for name, versions in spoilt.items():
        rows = [
            (text, version)
            for text, version in zip(chosen, versions)
            if version is not None and version.completion != text.completion
        ]
        if rows:
            report[name] = control(scorer, rows, seed, spread)
    return report


def next_prompts(texts: Sequence[Text]) -> list[Text | None]:
    """For each text the next one, in a ring, that answers another prompt; None if there is none."""
    keys = [prompt_key(t.prompt) for t in texts]
    count = len(texts)

    def following(i: int) -> Text | None:
        for j in range(i + 1, i + count):
            if keys[j % count] != keys[i]:
                return texts[j % count]
        return None

    return [following(i) for i in range(count)]


def control(scorer: Scorer, rows: Sequence[tuple[Text, Text]], seed: int, spread: float) -> dict[str, Any]:
    change_N = (scorer([spoilt for _, spoilt in rows]) - scorer([text for text, _ in rows])) / spread
    scored_N = np.isfinite(change_N)
    clusters = [prompt_key(text.prompt) for (text, _), ok in zip(rows, scored_N) if ok]
    return {
        **mean_change(change_N[scored_N], clusters, seed),
        "missing": int((~scored_N).sum()),
        "noticed": float((change_N[scored_N] < 0).mean()) if scored_N.any() else math.nan,
    }


def batch_probe(scorer: Scorer, cases: Sequence[Case], spread: float) -> dict[str, Any]:
    """Largest difference between scores asked together, in reverse, and one by one."""
    texts = [t for c in cases[: BATCH // 2] for t in (c.chosen, c.rejected)]
    together_N = scorer.fresh(texts)
    reversed_N = scorer.fresh(texts[::-1])[::-1]
    alone_N = np.concatenate([scorer.fresh([t]) for t in texts])
    variants = {"reversed": reversed_N, "one by one": alone_N}
    differences = {
        name: float(np.nanmax(np.abs(scores_N - together_N), initial=0.0)) for name, scores_N in variants.items()
    }
    missing_differs = any(
        bool((np.isfinite(scores_N) != np.isfinite(together_N)).any()) for scores_N in variants.values()
    )
    largest = max(differences.values())
    return {
        "responses": len(texts),
        "largest_difference": differences,
        "in_stds": largest / spread,
        "invariant": largest <= 1e-3 * spread and not missing_differs,
    }


def turns_probe(scorer: Scorer, cases: Sequence[Case], seed: int, spread: float) -> dict[str, Any]:
    """Accuracy with the whole conversation and with its last turn alone, on pairs with several turns."""
    several = [c for c in cases if len([m for m in c.chosen.prompt if m["role"] != "system"]) > 1]
    if not several:
        return {"pairs": 0}
    chosen, rejected = [c.chosen for c in several], [c.rejected for c in several]
    full_N = scorer(chosen) - scorer(rejected)
    last_N = scorer([last_turn(t) for t in chosen]) - scorer([last_turn(t) for t in rejected])

    scored_N = np.isfinite(full_N) & np.isfinite(last_N)
    full_right_N, last_right_N = (stats.points(m[scored_N], TIE * spread) for m in (full_N, last_N))
    gain_N = full_right_N - last_right_N
    clusters = [prompt_key(c.chosen.prompt) for c, ok in zip(several, scored_N) if ok]
    interval: Sequence[float] = (math.nan, math.nan)
    if clusters:
        interval = stats.bootstrap(lambda rows: float(gain_N[rows].mean()), clusters, seed)
    return {
        "pairs": int(scored_N.sum()),
        "missing": int((~scored_N).sum()),
        "whole": float(full_right_N.mean()) if clusters else math.nan,
        "last_turn": float(last_right_N.mean()) if clusters else math.nan,
        "gain": float(gain_N.mean()) if clusters else math.nan,
        "bootstrap": [*interval],
        "words": {"whole": mean_words(chosen), "last_turn": mean_words([last_turn(t) for t in chosen])},
    }


def mean_words(texts: Sequence[Text]) -> float:
    return float(np.mean([sum(len(message_text(m).split()) for m in t.prompt) + t.words for t in texts]))


def last_turn(text: Text) -> Text:
    return text._replace(prompt=(*(m for m in text.prompt[:-1] if m["role"] == "system"), text.prompt[-1]))
