"""Which prompt comes next: seeded permutations per source, weighted, resumable at the consumed frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_core.types import Prompt


class PromptOrder:
    """Deterministic order over several sources.

    Every source is walked in a fresh permutation per epoch, so a prompt returns only after all others of its
    source. Sources interleave so that each keeps its weight's share of all prompts taken so far.

    Args:
        prompts: of all sources.
        weights: source label -> weight.
        seed: the run's.
    """

    def __init__(self, prompts: Sequence[Prompt], weights: Mapping[str, float], seed: int) -> None:
        self.by_source: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            self.by_source.setdefault(prompt.source, []).append(prompt)
        total = sum(weights[s] for s in self.by_source)
        self.share = {s: weights[s] / total for s in self.by_source}
        self.seed = seed
        self.taken = dict.fromkeys(self.by_source, 0)
        """Prompts consumed per source: the frontier."""
        self._permutation: dict[str, tuple[int, np.ndarray[Any, Any]]] = {}

    def take(self, count: int) -> list[Prompt]:
        """The next ``count`` prompts."""
        return [self._next() for _ in range(count)]

    def _next(self) -> Prompt:
        done = sum(self.taken.values()) + 1
        source = max(self.share, key=lambda s: (self.share[s] * done - self.taken[s], s))
        epoch, place = divmod(self.taken[source], len(self.by_source[source]))
        self.taken[source] += 1
        return self.by_source[source][int(self._order(source, epoch)[place])]

    def _order(self, source: str, epoch: int) -> np.ndarray[Any, Any]:
        known = self._permutation.get(source)
        if known is None or known[0] != epoch:
            names = sorted(self.by_source)
            rng = np.random.default_rng([self.seed, names.index(source), epoch])
            known = (epoch, rng.permutation(len(self.by_source[source])))
            self._permutation[source] = known
        return known[1]

    def state_dict(self) -> dict[str, Any]:
        """The consumed frontier."""
        return {"taken": dict(self.taken)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a frontier."""
        self.taken = {s: int(state["taken"][s]) for s in self.taken}
