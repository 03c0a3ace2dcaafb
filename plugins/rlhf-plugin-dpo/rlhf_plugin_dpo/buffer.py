"""Pairs of the last iterations, and how they lie in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlhf_plugin_dpo.items import PairItem, Side

Keep = Literal["current", "rolling", "full"]


class PairBuffer:
    """What the updates of an iteration are drawn from."""

    def __init__(self, keep: Keep, window: int) -> None:
        self.keep, self.window = keep, {"current": 1, "rolling": window}.get(keep)
        self.iterations: list[list[PairItem]] = []

    @property
    def items(self) -> list[PairItem]:
        return [item for items in self.iterations for item in items]

    def add(self, items: Sequence[PairItem]) -> None:
        """Add an iteration's pairs, maybe none, and forget those of iterations that are too old."""
        self.iterations = [*self.iterations, list(items)]
        if self.window is not None:
            self.iterations = self.iterations[-self.window :]

    def draw(self, count: int, batch: int, key: Sequence[int]) -> list[PairItem]:
        """One update's pairs: fresh seeded permutations of the buffer, one after the other, cut into batches."""
        items = self.items
        size = min(count, len(items))
        draws = range(batch * size, (batch + 1) * size)
        orders = {
            epoch: np.random.default_rng([*key, epoch]).permutation(len(items))
            for epoch in {draw // len(items) for draw in draws}
        }
        return [items[int(orders[draw // len(items)][draw % len(items)])] for draw in draws]

    def replace(self, items: Sequence[PairItem]) -> None:
        rest = iter(items)
        self.iterations = [[next(rest) for _ in old] for old in self.iterations]

    def state_dict(self) -> dict[str, Any]:
        return {"iterations": [pack(items) for items in self.iterations]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iterations = [unpack(packed) for packed in state["iterations"]]


def pack(items: Sequence[PairItem]) -> dict[str, Any]:
    """Pairs of rollouts (which have no margin) as a few flat arrays; all tokens in one."""
    rows = [(i.chosen.prompt_ids, i.chosen.completion_ids, i.rejected.completion_ids) for i in items]
    refs = [[np.nan if s.ref is None else s.ref for s in i.sides] for i in items]
    return {
        "names": [i.name for i in items],
        "tokens": np.array([t for row in rows for ids in row for t in ids], np.int64),
        "lengths": np.array([[len(ids) for ids in row] for row in rows], np.int64).reshape(-1, 3),
        "refs": np.array(refs, np.float64).reshape(-1, 2),
        "masks": np.array(
            [yes for i in items for s in i.sides for yes in s.mask or (True,) * len(s.completion_ids)], np.bool_
        ),
    }


def unpack(packed: dict[str, Any]) -> list[PairItem]:
    ends = np.cumsum(packed["lengths"].reshape(-1))
    ids = [tuple(part.tolist()) for part in np.split(packed["tokens"], ends)[:-1]]
    counts = packed["lengths"][:, 1:].reshape(-1)
    masks = [None if part.all() else tuple(part.tolist()) for part in np.split(packed["masks"], np.cumsum(counts))[:-1]]
    items: list[PairItem] = []
    for n, name in enumerate(packed["names"]):
        prompt, chosen, rejected = ids[3 * n : 3 * n + 3]
        refs = [None if np.isnan(ref) else float(ref) for ref in packed["refs"][n]]
        head = min(len(chosen), len(rejected))
        items.append(
            PairItem(
                name,
                Side(prompt, chosen, head, refs[0], masks[2 * n]),
                Side(prompt, rejected, head, refs[1], masks[2 * n + 1]),
            )
        )
    return items
