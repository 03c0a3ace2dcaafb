"""Rows that say the same: word for word, nearly, or on both sides of the split."""

from __future__ import annotations

import re
from array import array
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
TOGETHER = 10_000
"""Texts that are hashed at once."""
MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number that spreads the bits of one half of a band."""
EXAMPLES = 5


class Pair(NamedTuple):
    first: int
    second: int
    similarity: float


class Texts:
    """Of each training row in turn: hash of its text, hash of what it asks, shingles."""

    def __init__(self) -> None:
        self.hashes, self.content_keys, self.shingles = array("q"), array("Q"), Shingles()

    def add(self, items: Iterable[Item]) -> None:
        """Note the next rows."""
        for item in items:
            self.hashes.append(hash(text := item.text))
            self.content_keys.append(int(content_key(item.prompt), 16))
            self.shingles.extend([shingles_of(text)])


def examine_duplicates(texts: Texts, train: Sequence[Item], heldout: Sequence[Item]) -> dict[str, Any]:
    """Exact and near duplicates among training rows (``rows``: beyond the first), and held-out rows in training."""
    exact, distinct = groups(np.array(texts.hashes, dtype=np.int64))
    keys = np.array(texts.content_keys, dtype=np.uint64)
    prompts, _ = groups(keys.view(np.int64))
    both = list(_seen(heldout, train, keys))
    same = {id(item) for item, _ in both}
    rest = [item for item in heldout if id(item) not in same]
    theirs = Shingles(item.question for item in rest)
    shingles = texts.shingles.some(distinct)
    if rest and any(item.completions for item in train):
        near, _ = near_duplicates(shingles, len(shingles))
        ours = Shingles(item.question for item in train).some(distinct)
        _, close = near_duplicates(ours.extend(theirs), len(ours) - len(theirs))
    else:
        near, close = near_duplicates(shingles.extend(theirs), len(distinct))
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
            + [
                [rest[p.second - len(distinct)].where, train[distinct[p.first]].where]
                for p in close[: max(0, EXAMPLES - len(both))]
            ],
        },
    }


def _seen(heldout: Sequence[Item], train: Sequence[Item], keys: NDArray[np.uint64]) -> Iterator[tuple[Item, Item]]:
    """Held-out items whose prompt is asked in training, and the last that asks it; ``keys`` of the training items."""
    order = np.argsort(keys, kind="stable")
    for item in heldout:
        key = np.uint64(int(content_key(item.prompt), 16))
        place = int(np.searchsorted(keys, key, side="right", sorter=order)) - 1
        if place >= 0 and keys[order[place]] == key:
            yield item, train[order[place]]


def groups(keys: Iterable[Any]) -> tuple[list[list[int]], list[int]]:
    """(Indices of equal keys, in order, where there are several; the first index of each key), by 64-bit hashes, which
    an array holds already: two of a million texts are taken for equal once in 30 million data sets.
    """
    hashes = keys if isinstance(keys, np.ndarray) else np.fromiter(map(hash, keys), dtype=np.int64)
    order = np.argsort(hashes, kind="stable")
    begins = np.flatnonzero(np.diff(hashes[order], prepend=hashes[order[:1]] - 1))
    ends = np.append(begins[1:], len(order))[: len(begins)]
    several = [order[a:b].tolist() for a, b in zip(begins.tolist(), ends.tolist()) if b - a > 1]
    return sorted(several), sorted(order[begins].tolist())


class Shingles(Sequence[frozenset[int]]):
    """The shingles of each text, as numbers in one array."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.values, self.starts = array("I"), array("Q", [0])
        self.extend(map(shingles_of, texts))

    def extend(self, shingles: Iterable[frozenset[int]]) -> Shingles:
        for one in shingles:
            self.values.extend(one)
            self.starts.append(len(self.values))
        return self

    def some(self, indices: Sequence[int]) -> Shingles:
        """Those of some texts; of all texts these themselves."""
        return self if len(indices) == len(self) else Shingles().extend(self[index] for index in indices)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: Any) -> Any:
        return frozenset(self.values[self.starts[index] : self.starts[index + 1]])


def near_duplicates(shingles: Shingles, ours: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs of texts with shingles of Jaccard similarity :data:`NEAR` or more, proposed by MinHash (Broder 1997): of
    the first ``ours`` texts, and of one of these with one of the others; each text as ``second`` of one pair at most.
    """
    among: dict[int, Pair] = {}
    across: dict[int, Pair] = {}
    for first, second in candidates(shingles):
        pairs = among if second < ours else across
        if first < ours and second not in pairs:
            similarity = jaccard(shingles[first], shingles[second])
            if similarity >= NEAR:
                pairs[second] = Pair(first, second, round(similarity, 3))
    return [among[second] for second in sorted(among)], list(across.values())


def shingles_of(text: str) -> frozenset[int]:
    """Hashes of the runs of :data:`SHINGLE` words."""
    tokens = [word.encode() for word in words(text)]
    if len(tokens) < SHINGLE:
        return frozenset([crc32(b" ".join(tokens))] if tokens else ())
    return frozenset([crc32(b" ".join(tokens[n : n + SHINGLE])) for n in range(len(tokens) - SHINGLE + 1)])


def jaccard(first: frozenset[int], second: frozenset[int]) -> float:
    """Share of the shingles of both that they have in common."""
    return len(first & second) / max(1, len(first | second))


def candidates(shingles: Sequence[frozenset[int]]) -> list[tuple[int, int]]:
    """Pairs of indices that share a band of their MinHash signatures. A text is paired with the first
    :data:`LOOKED_AT` that have its band.
    """
    packed = shingles if isinstance(shingles, Shingles) else Shingles().extend(shingles)
    indices = np.flatnonzero(np.diff(np.array(packed.starts, dtype=np.int64)))
    codes = [np.zeros(0, dtype=np.int64)]
    for start in range(0, BANDS * ROWS_OF_BAND, ROWS_OF_BAND):
        first_half, second_half = signatures(packed, start, ROWS_OF_BAND).view(np.uint64).T
        band = first_half * MIX + second_half  # unlike bands that share it by chance have unlike shingles
        order = np.argsort(band, kind="stable")  # the texts of a bucket stay in their order
        band, here = band[order], indices[order]
        begins = np.ones(len(here), dtype=bool)
        begins[1:] = band[1:] != band[:-1]
        first = np.maximum.accumulate(np.where(begins, np.arange(len(here)), 0))
        for position in range(LOOKED_AT):
            later = np.flatnonzero(np.arange(len(here)) - first > position)
            codes.append(here[first[later] + position] * len(packed) + here[later])
    return [divmod(code, len(packed)) for code in np.unique(np.concatenate(codes)).tolist()]


def signatures(
    shingles: Sequence[frozenset[int]], first: int = 0, count: int = BANDS * ROWS_OF_BAND
) -> NDArray[np.uint32]:
    """``count`` numbers of MinHash signatures from the ``first`` on, a row for each text that has shingles, by
    multiply-shift hashing modulo 2**64.
    """
    rng = np.random.default_rng(0)
    odd, shift = (rng.integers(1, 2**61 - 1, size=(BANDS * ROWS_OF_BAND, 1), dtype=np.uint64) for _ in range(2))
    odd, shift = (odd | np.uint64(1))[first : first + count], shift[first : first + count]
    packed = shingles if isinstance(shingles, Shingles) else Shingles().extend(shingles)
    values, begins = np.frombuffer(packed.values, dtype=np.uint32), np.array(packed.starts, dtype=np.int64)
    begins = begins[:-1][np.diff(begins) > 0]
    signed = np.empty((len(begins), count), dtype=np.uint32)
    for start in range(0, len(begins), TOGETHER):
        here = begins[start : start + TOGETHER]
        end = begins[start + TOGETHER] if start + TOGETHER < len(begins) else len(values)
        hashed = (values[here[0] : end].astype(np.uint64) * odd + shift) >> np.uint64(32)
        signed[start : start + TOGETHER] = np.minimum.reduceat(hashed, here - here[0], axis=1).T
    return signed


def _examples(groups: Sequence[Sequence[int]], items: Sequence[Item]) -> list[list[str]]:
    return [[items[i].where for i in group[:3]] for group in groups[:EXAMPLES]]
