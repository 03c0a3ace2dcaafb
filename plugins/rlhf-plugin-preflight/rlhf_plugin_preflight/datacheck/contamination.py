"""Is a benchmark in the training data? n-grams that a benchmark's prompts share with training rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlhf_plugin_preflight.datacheck.duplicates import Gram, grams, words
from rlhf_plugin_preflight.datacheck.items import Item

COMMON = 10
"""An n-gram that more of a benchmark's prompts share is a form of words, as in instructions, and is not counted."""
COVERED = 0.5
"""Share of a prompt's words inside n-grams of one training row from which the prompt counts as contained in it."""
EXAMPLES = 5


class Index(NamedTuple):
    """Where each n-gram of a benchmark stands."""

    occurrences: Mapping[Gram, Sequence[tuple[int, int]]]
    """n-gram -> (prompt, first word) of each occurrence."""
    lengths: Sequence[int]
    size: int


class Match(NamedTuple):
    """How much of one benchmark prompt stands in one training row."""

    coverage: float
    row: int
    words: tuple[str, ...]


def index_of(texts: Sequence[str], size: int) -> Index:
    """Index prompts; one of fewer words than ``size`` is found only as a whole prompt."""
    tokens = [words(text) for text in texts]
    occurrences: dict[Gram, list[tuple[int, int]]] = defaultdict(list)
    for number, prompt in enumerate(tokens):
        for start, gram in enumerate(grams(prompt, size)):
            occurrences[gram].append((number, start))
    rare = {gram: spots for gram, spots in occurrences.items() if len({number for number, _ in spots}) <= COMMON}
    return Index(rare, [len(prompt) for prompt in tokens], size)


def matches(index: Index, row: Item) -> dict[int, tuple[float, tuple[str, ...]]]:
    """Benchmark prompt -> (share of its words that the row holds, the first words in common)."""
    shared: dict[int, set[int]] = defaultdict(set)
    first: dict[int, Gram] = {}
    short = [row.question] if len(words(row.question)) < index.size else []
    for text in (*short, row.text):
        for gram in grams(words(text), index.size):
            for number, start in index.occurrences.get(gram, ()):
                shared[number].update(range(start, start + len(gram)))
                first.setdefault(number, gram)
    return {number: (len(spots) / index.lengths[number], first[number]) for number, spots in shared.items()}


def examine_contamination(
    train: Sequence[Item], benchmark: Sequence[Item], size: int, name: str = "benchmark"
) -> dict[str, Any]:
    """Compare training rows with a benchmark's prompts by n-grams of ``size`` words: 13 (Brown et al. 2020) or 8
    (Lambert et al. 2024, Tulu 3). JSON values: prompts that share one, prompts of which a row holds :data:`COVERED`,
    such rows, closest pairs."""
    index = index_of([item.question for item in benchmark], size)
    best: dict[int, Match] = {}
    rows = 0
    for number, row in enumerate(train):
        hits = matches(index, row)
        rows += bool(hits)
        for prompt, (coverage, gram) in hits.items():
            if prompt not in best or coverage > best[prompt].coverage:
                best[prompt] = Match(coverage, number, gram)
    closest = sorted(best.items(), key=lambda pair: (-pair[1].coverage, pair[0]))[:EXAMPLES]
    return {
        "against": name,
        "ngram": size,
        "prompts": len(benchmark),
        "shared": len(best),
        "contained": sum(match.coverage >= COVERED for match in best.values()),
        "training_rows": rows,
        "examples": [
            {
                "where": train[match.row].where,
                "benchmark": benchmark[prompt].where,
                "coverage": round(match.coverage, 3),
                "words": " ".join(match.words),
            }
            for prompt, match in closest
        ],
    }
