"""Rows that say the same: word for word, nearly, or on both sides of the split."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from unicodedata import normalize
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rlhf_core.data.held_out import content_key
from rlhf_plugin_preflight.datacheck.items import Item

_WORD = re.compile(r"\w+")
Gram = tuple[str, ...]


def words(text: str) -> list[str]:
    """Lower-case words and numbers, without punctuation (as in Brown et al. 2020, appendix C)."""
    return _WORD.findall(normalize("NFKC", text).lower())


def grams(tokens: list[str], size: int) -> Iterator[Gram]:
    """Every run of ``size`` words; the whole text where it is shorter, nothing of an empty one."""
    if tokens and len(tokens) < size:
        yield tuple(tokens)
    for start in range(len(tokens) - size + 1):
        yield tuple(tokens[start : start + size])


SHINGLE = 5
BANDS, ROWS_OF_BAND = 16, 4
NEAR = 0.8
"""Jaccard similarity of two texts' shingles from which they count as near duplicates (Lee et al. 2022)."""
LOOKED_AT = 8
"""Texts of a bucket that another is compared with."""
TOGETHER = 1000
"""Texts that are hashed at once."""
EXAMPLES = 5


class Pair(NamedTuple):
    first: int
    second: int
    similarity: float


def examine_duplicates(items: Sequence[Item]) -> dict[str, Any]:
    """Exact and near duplicates among training rows (``rows``: beyond the first), and held-out rows in training."""
    train = [item for item in items if item.split == "train"]
    heldout = [item for item in items if item.split == "heldout"]
    exact = groups(item.text for item in train)
    prompts = groups(content_key(item.prompt) for item in train)
    distinct = [group[0] for group in groups((item.text for item in train), every=True)]
    near = near_duplicates([train[i].text for i in distinct])
    seen = {content_key(item.prompt): item for item in train}
    both = [(item, seen[key]) for item in heldout if (key := content_key(item.prompt)) in seen]
    same = {id(item) for item, _ in both}
    rest = [item for item in heldout if id(item) not in same]
    close = between([item.question for item in train], [item.question for item in rest])
    return {
        "exact": {"rows": sum(len(g) - 1 for g in exact), "examples": _examples(exact, train)},
        "same_prompt": {"rows": sum(len(g) - 1 for g in prompts), "examples": _examples(prompts, train)},
        "near": {
            "rows": len({pair.second for pair in near}),
            "examples": [
                {"where": [train[distinct[p.first]].where, train[distinct[p.second]].where], "similarity": p.similarity}
                for p in near[:EXAMPLES]
            ],
        },
        "overlap": {
            "rows": len(both),
            "near_rows": len({pair.second for pair in close}),
            "examples": [[here.where, there.where] for here, there in both[:EXAMPLES]]
            + [[rest[p.second].where, train[p.first].where] for p in close[: max(0, EXAMPLES - len(both))]],
        },
    }


def groups(keys: Iterable[str], *, every: bool = False) -> list[list[int]]:
    """Indices of equal keys, in order; only those of several unless ``every``."""
    rows: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        rows[key].append(index)
    return [group for group in rows.values() if every or len(group) > 1]


def near_duplicates(texts: Sequence[str]) -> list[Pair]:
    """Pairs of texts with shingles of Jaccard similarity :data:`NEAR` or more, proposed by MinHash (Broder 1997)."""
    shingles = [shingles_of(text) for text in texts]
    pairs: dict[int, Pair] = {}
    for first, second in candidates(shingles):
        similarity = jaccard(shingles[first], shingles[second])
        if similarity >= NEAR and second not in pairs:
            pairs[second] = Pair(first, second, round(similarity, 3))
    return [pairs[second] for second in sorted(pairs)]


def between(ours: Sequence[str], theirs: Sequence[str]) -> list[Pair]:
    """As :func:`near_duplicates`, of one text of each side; ``second`` counts ``theirs``."""
    if not theirs:
        return []
    shingles = [shingles_of(text) for text in (*ours, *theirs)]
    pairs: dict[int, Pair] = {}
    for first, second in candidates(shingles, boundary=len(ours)):
        similarity = jaccard(shingles[first], shingles[second])
        if similarity >= NEAR:
            pairs.setdefault(second, Pair(first, second - len(ours), round(similarity, 3)))
    return list(pairs.values())


def shingles_of(text: str) -> frozenset[int]:
    """Hashes of the runs of :data:`SHINGLE` words."""
    return frozenset(crc32(" ".join(gram).encode()) for gram in grams(words(text), SHINGLE))


def jaccard(first: frozenset[int], second: frozenset[int]) -> float:
    """Share of the shingles of both that they have in common."""
    return len(first & second) / max(1, len(first | second))


def candidates(shingles: Sequence[frozenset[int]], boundary: int | None = None) -> list[tuple[int, int]]:
    """Pairs of indices that share a band of their MinHash signatures; with a ``boundary`` only pairs across it. A text
    is paired with the first :data:`LOOKED_AT` that have its band.
    """
    filled = [index for index, texts in enumerate(shingles) if texts]
    signed, indices = signatures([shingles[index] for index in filled]), np.array(filled, dtype=np.int64)
    codes = [np.zeros(0, dtype=np.int64)]
    for start in range(0, signed.shape[1], ROWS_OF_BAND):
        band = np.ascontiguousarray(signed[:, start : start + ROWS_OF_BAND]).view(np.uint64)
        order = np.lexsort(band.T)  # stable: the texts of a bucket stay in their order
        band, here = band[order], indices[order]
        begins = np.ones(len(here), dtype=bool)
        begins[1:] = (band[1:] != band[:-1]).any(axis=1)
        first = np.maximum.accumulate(np.where(begins, np.arange(len(here)), 0))
        for position in range(LOOKED_AT):
            later = np.flatnonzero(np.arange(len(here)) - first > position)
            earlier, index = here[first[later] + position], here[later]
            across = np.ones(len(later), dtype=bool) if boundary is None else (earlier < boundary) & (index >= boundary)
            codes.append((earlier * len(shingles) + index)[across])
    return [divmod(code, len(shingles)) for code in np.unique(np.concatenate(codes)).tolist()]


def signatures(shingles: Sequence[frozenset[int]]) -> NDArray[np.uint32]:
    """MinHash signatures, a row for each text, by multiply-shift hashing modulo 2**64."""
    rng = np.random.default_rng(0)
    odd, shift = (rng.integers(1, 2**61 - 1, size=(BANDS * ROWS_OF_BAND, 1), dtype=np.uint64) for _ in range(2))
    odd |= np.uint64(1)
    signed = np.empty((len(shingles), BANDS * ROWS_OF_BAND), dtype=np.uint32)
    for start in range(0, len(shingles), TOGETHER):
        texts = shingles[start : start + TOGETHER]
        values = np.fromiter(itertools.chain.from_iterable(texts), dtype=np.uint64)
        starts = np.cumsum([0, *map(len, texts[:-1])])
        hashed = (values * odd + shift) >> np.uint64(32)
        signed[start : start + TOGETHER] = np.minimum.reduceat(hashed, starts, axis=1).T
    return signed


def _examples(groups: Sequence[Sequence[int]], items: Sequence[Item]) -> list[list[str]]:
    return [[items[i].where for i in group[:3]] for group in groups[:EXAMPLES]]
