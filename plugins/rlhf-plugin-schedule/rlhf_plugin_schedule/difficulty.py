"""Choose the next prompts by the scores of this very run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_core.data import Prompt
from rlhf_core.data.order import PromptOrder, SourceWalk, too_few
from rlhf_core.data.settings import DifficultySettings


class DifficultyOrder(PromptOrder):
    """Every source's prompts once, in the usual order; then those whose running score is in the band."""

    def __init__(
        self,
        settings: DifficultySettings,
        prompts: Sequence[Prompt],
        weights: Mapping[str, float],
        seed: int,
        shuffle: bool = True,
    ) -> None:
        self.settings = settings
        super().__init__(prompts, weights, seed, shuffle)
        self.home = {p.id: w for w in self.walks.values() for p in w.prompts}

    def walk(self, source: str, prompts: Sequence[Prompt], key: tuple[int, int] | None) -> DifficultyWalk:
        """The walk through one source."""
        return DifficultyWalk(source, prompts, key, self.settings)

    def observe(self, rates: Sequence[tuple[str, float]]) -> None:
        """Update the running scores with the mean scores of some prompts' groups, in the order they were drawn."""
        for name, rate in rates:
            walk = self.home[name]
            assert isinstance(walk, DifficultyWalk)
            walk.observe(name, rate)


class DifficultyWalk(SourceWalk):
    """One source: the first epoch in the usual order, then of the prompts in the band the one not drawn for longest.
    Every ``1 / explore``-th draw takes one from outside instead. Where one side is empty the other is used.
    """

    def __init__(
        self, source: str, prompts: Sequence[Prompt], key: tuple[int, int] | None, settings: DifficultySettings
    ) -> None:
        super().__init__(source, prompts, key)
        self.settings, self.draws = settings, 0
        self.index = {p.id: i for i, p in enumerate(self.prompts)}
        self.rate_P = np.full(len(self.prompts), np.nan)
        """Running mean score of each prompt, NaN before its first."""
        self.last_P = np.full(len(self.prompts), -1, np.int64)
        """The draw that last took each prompt, -1 before the first."""

    def observe(self, name: str, rate: float) -> None:
        """Fold the mean score of one group in."""
        at, decay = self.index[name], self.settings.decay
        before = self.rate_P[at]
        self.rate_P[at] = rate if np.isnan(before) else decay * before + (1 - decay) * rate

    def next(self, batch: Mapping[str, Prompt]) -> Prompt:
        """The next prompt that is not in the batch."""
        taken = {self.index.get(name) for name in batch}
        at = next((i for i in self.left if i not in taken), None)
        if at is not None:
            self.left.remove(at)
        else:
            at = self._by_rate(batch)
        self.last_P[at] = self.draws
        self.draws += 1
        return self.prompts[at]

    def _by_rate(self, batch: Mapping[str, Prompt]) -> int:
        free = np.ones(len(self.prompts), bool)
        free[[self.index[name] for name in batch if name in self.index]] = False
        low, high = self.settings.band
        inside = free & (self.rate_P >= low) & (self.rate_P <= high)
        pools = (np.flatnonzero(inside), np.flatnonzero(free & ~inside))
        share = self.settings.explore
        explores = int((self.draws + 1) * share) > int(self.draws * share)
        pool = next((p for p in (pools[::-1] if explores else pools) if len(p)), None)
        if pool is None:
            raise too_few(self.source, len(self.prompts), len(self.prompts) + 1)
        return int(pool[np.argmin(self.last_P[pool])])

    @property
    def taken(self) -> int:
        """Prompts drawn so far."""
        return self.draws

    def state_dict(self) -> dict[str, Any]:
        """Every prompt's running score and last draw."""
        rates = [None if np.isnan(r) else float(r) for r in self.rate_P]
        return {**super().state_dict(), "draws": self.draws, "rates": rates, "last": self.last_P.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        super().load_state_dict(state)
        self.draws = int(state["draws"])
        self.rate_P = np.array([np.nan if r is None else r for r in state["rates"]], float)
        self.last_P = np.array(state["last"], np.int64)
