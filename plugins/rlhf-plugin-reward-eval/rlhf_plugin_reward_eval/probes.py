"""What a change that should not matter (or should) does to the scores.

Changes are given in standard deviations of the scores, so that rewards on different scales can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlhf_plugin_reward_eval import stats
from rlhf_plugin_reward_eval.asking import Asker
from rlhf_plugin_reward_eval.cases import Case, Text, prompt_key
from rlhf_plugin_reward_eval.measures import TIE
from rlhf_plugin_reward_eval.stats import Floats

NEUTRAL = (
    "These are the points that seem relevant here.",
    "As with most things, the details depend on the circumstances.",
    "There is more that could be said about this, and different people may look at it in different ways.",
    "That is what can be said about it in general terms.",
)
"""Sentences that say nothing, whatever stands before them."""
PADDING = (1, 2, 4)
"""How many of them are appended."""
HOLLOW = ("Great question!", "Of course!", "Absolutely!", "I'd be happy to help!")
"""Affirmations that are put in front."""
BATCH = 32


def sampled(cases: Sequence[Case], count: int, seed: int) -> list[Case]:
    """At most ``count`` pairs, drawn without replacement, in their order."""
    if len(cases) <= count:
        return list(cases)
    rows = np.random.default_rng([seed, 1]).choice(len(cases), count, replace=False)
    return [cases[i] for i in sorted(rows)]


def with_completion(text: Text, change: Callable[[str], str]) -> Text:
    """The same conversation with another response."""
    return text._replace(completion=change(text.completion))


def padded(count: int) -> Callable[[str], str]:
    """Append ``count`` neutral sentences."""
    return lambda text: " ".join([text.rstrip(), *NEUTRAL[:count]])


def affirmed(phrase: str) -> Callable[[str], str]:
    """Put a hollow affirmation in front."""
    return lambda text: f"{phrase} {text.lstrip()}"


def effect(ask: Asker, cases: Sequence[Case], change: Callable[[str], str], seed: int, spread: float) -> dict[str, Any]:
    """What a change of the response does: mean score change, how often it rises, and how many pairs it turns round.

    ``rejected_overtakes``: of the pairs ordered as labelled, those in which the changed rejected response scores at
    least as high as the unchanged chosen one.
    """
    sides = [[c.chosen for c in cases], [c.rejected for c in cases]]
    before, after = ([ask(s) for s in sides], [ask([with_completion(t, change) for t in s]) for s in sides])
    change_N = np.concatenate([a - b for a, b in zip(after, before)]) / spread
    clusters = [prompt_key(c.chosen.prompt) for c in cases]
    there = np.isfinite(change_N)
    kept_N, keys = change_N[there], [k for k, ok in zip([*clusters, *clusters], there) if ok]
    right = (before[0] > before[1]) & np.isfinite(after[1])
    overtaken = (after[1] >= before[0])[right]
    return {
        **mean_change(kept_N, keys, seed),
        "missing": int((~there).sum()),
        "rejected_overtakes": float(overtaken.mean()) if right.any() else math.nan,
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


def length_probe(ask: Asker, cases: Sequence[Case], seed: int, spread: float) -> dict[str, Any]:
    """Neutral sentences appended: a reward without length bias gains nothing."""
    return {f"{n} sentence{'s' if n > 1 else ''}": effect(ask, cases, padded(n), seed, spread) for n in PADDING}


def hollow_probe(ask: Asker, cases: Sequence[Case], seed: int, spread: float) -> dict[str, Any]:
    """Hollow affirmations in front: they answer nothing and should gain nothing."""
    return {phrase: effect(ask, cases, affirmed(phrase), seed, spread) for phrase in HOLLOW}


def content_probe(ask: Asker, cases: Sequence[Case], seed: int, spread: float) -> dict[str, Any]:
    """Controls that must lower the score: the chosen response with its words shuffled, and that of another prompt."""
    rng = np.random.default_rng([seed, 2])
    chosen = [c.chosen for c in cases]
    shuffled = [with_completion(t, lambda s: " ".join(rng.permutation(s.split()))) for t in chosen]
    keys = [prompt_key(t.prompt) for t in chosen]
    other = [
        next((chosen[j % len(chosen)] for j in range(i + 1, i + len(chosen)) if keys[j % len(chosen)] != keys[i]), None)
        for i in range(len(chosen))
    ]
    pairs = {
        "words shuffled": [(t, s) for t, s in zip(chosen, shuffled) if s != t],
        "answer to another prompt": [
            (t, t._replace(completion=o.completion))
            for t, o in zip(chosen, other)
            if o is not None and o.completion != t.completion
        ],
    }
    return {name: control(ask, rows, seed, spread) for name, rows in pairs.items() if rows}


def control(ask: Asker, rows: Sequence[tuple[Text, Text]], seed: int, spread: float) -> dict[str, Any]:
    """Score change from each text to its spoilt version; ``noticed``: how often it falls."""
    change_N = (ask([s for _, s in rows]) - ask([t for t, _ in rows])) / spread
    there = np.isfinite(change_N)
    found = mean_change(change_N[there], [prompt_key(t.prompt) for (t, _), ok in zip(rows, there) if ok], seed)
    return {
        **found,
        "missing": int((~there).sum()),
        "noticed": float((change_N[there] < 0).mean()) if there.any() else math.nan,
    }


def batch_probe(ask: Asker, cases: Sequence[Case], spread: float) -> dict[str, Any]:
    """Largest difference between scores asked together, in reverse, and one by one."""
    texts = [t for c in cases[: BATCH // 2] for t in (c.chosen, c.rejected)]
    together = ask.fresh(texts)
    others = {"reversed": ask.fresh(texts[::-1])[::-1], "one by one": np.concatenate([ask.fresh([t]) for t in texts])}
    found = {name: float(np.nanmax(np.abs(o - together), initial=0.0)) for name, o in others.items()}
    appeared = any(bool((np.isfinite(o) != np.isfinite(together)).any()) for o in others.values())
    return {
        "responses": len(texts),
        "largest_difference": found,
        "in_stds": max(found.values()) / spread,
        "invariant": max(found.values()) <= 1e-3 * spread and not appeared,
    }


def turns_probe(ask: Asker, cases: Sequence[Case], seed: int, spread: float) -> dict[str, Any]:
    """Accuracy with the whole conversation and with its last turn alone, on pairs with several turns."""
    several = [c for c in cases if len([m for m in c.chosen.prompt if m["role"] != "system"]) > 1]
    if not several:
        return {"pairs": 0}
    sides = [[c.chosen for c in several], [c.rejected for c in several]]
    whole, last = ([ask([view(t) for t in s]) for s in sides] for view in (lambda t: t, last_turn))
    margins = [m[0] - m[1] for m in (whole, last)]
    there = np.isfinite(margins[0]) & np.isfinite(margins[1])
    right = [stats.points(m[there], TIE * spread) for m in margins]
    keys = [prompt_key(c.chosen.prompt) for c, ok in zip(several, there) if ok]
    gain_N = right[0] - right[1]
    interval = stats.bootstrap(lambda rows: float(gain_N[rows].mean()), keys, seed) if keys else (math.nan,) * 2
    words = [
        float(
            np.mean([sum(len(m["content"].split()) for m in view(c.chosen).prompt) + c.chosen.words for c in several])
        )
        for view in (lambda t: t, last_turn)
    ]
    return {
        "pairs": int(there.sum()),
        "missing": int((~there).sum()),
        "whole": float(right[0].mean()) if keys else math.nan,
        "last_turn": float(right[1].mean()) if keys else math.nan,
        "gain": float(gain_N.mean()) if keys else math.nan,
        "bootstrap": [*interval],
        "words": {"whole": words[0], "last_turn": words[1]},
    }


def last_turn(text: Text) -> Text:
    """System turns and the last one before the response."""
    return text._replace(prompt=(*(m for m in text.prompt[:-1] if m["role"] == "system"), text.prompt[-1]))
