"""Large independent sets by local search (Andrade, Resende and Werneck 2012): a vertex without chosen neighbours is
taken, else one takes its single chosen neighbour's place, of a dozen the one thrown out longest ago; now and then one
is forced in."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence


class Pool:
    """A set of small integers with constant-time insertion, removal and sampling."""

    def __init__(self, size: int) -> None:
        self.items: list[int] = []
        self.at = [-1] * size

    def add(self, item: int) -> None:
        """Insert; nothing happens if it is there."""
        if self.at[item] < 0:
            self.at[item] = len(self.items)
            self.items.append(item)

    def discard(self, item: int) -> None:
        """Remove; nothing happens if it is not there."""
        if (index := self.at[item]) >= 0:
            last = self.items.pop()
            if last != item:
                self.items[index], self.at[last] = last, index
            self.at[item] = -1


class IndependentSet:
    def __init__(self, neighbours: Sequence[Sequence[int]], seed: int) -> None:
        self.neighbours = neighbours
        self.rng = random.Random(seed)
        self.tight = [0] * len(neighbours)
        """How many chosen neighbours a vertex has."""
        self.chosen = Pool(len(neighbours))
        self.free, self.single = Pool(len(neighbours)), Pool(len(neighbours))
        """Vertices outside with no and with one chosen neighbour."""
        self.removed_at = [0] * len(neighbours)
        """The step at which a vertex was last thrown out."""
        self.step = 0
        for vertex in range(len(neighbours)):
            self.free.add(vertex)

    def insert(self, vertex: int) -> None:
        for other in self.neighbours[vertex] if self.tight[vertex] else ():
            if self.chosen.at[other] >= 0:
                self.remove(other)
        self.chosen.add(vertex)
        self.free.discard(vertex)
        for other in self.neighbours[vertex]:
            self.tight[other] += 1
            if self.tight[other] == 1:
                self.free.discard(other)
                self.single.add(other)
            elif self.tight[other] == 2:
                self.single.discard(other)

    def remove(self, vertex: int) -> None:
        self.chosen.discard(vertex)
        self.removed_at[vertex] = self.step
        self.free.add(vertex)
        for other in self.neighbours[vertex]:
            self.tight[other] -= 1
            if self.tight[other] == 0:
                self.single.discard(other)
                self.free.add(other)
            elif self.tight[other] == 1 and self.chosen.at[other] < 0:
                self.single.add(other)

    def move(self, tries: int = 12, kick: float = 0.002) -> None:
        """One step: take a free vertex, else swap, else (and sometimes) force one in."""
        self.step += 1
        rng = self.rng
        if self.free.items:
            self.insert(rng.choice(self.free.items))
        elif self.single.items and rng.random() > kick:
            self.insert(min((rng.choice(self.single.items) for _ in range(tries)), key=self.removed_at.__getitem__))
        else:
            outside = [v for v in (rng.randrange(len(self.tight)) for _ in range(tries)) if self.chosen.at[v] < 0]
            if outside:
                self.insert(min(outside, key=self.tight.__getitem__))


def independent_set(
    neighbours: Sequence[Sequence[int]],
    *,
    seed: int,
    steps: int,
    target: int | None = None,
    start: Sequence[int] = (),
    stop: Callable[[], bool] = lambda: False,
    improved: Callable[[list[int]], None] = lambda best: None,
) -> list[int]:
    """The largest independent set of so many steps, by seed; ``stop`` is asked every 1,000 steps."""
    state = IndependentSet(neighbours, seed)
    for vertex in start:
        state.insert(vertex)
    best = list(state.chosen.items)
    for step in range(steps):
        state.move()
        if len(state.chosen.items) > len(best) and not state.free.items:
            best = list(state.chosen.items)
            improved(best)
            if target is not None and len(best) >= target:
                break
        if step % 1000 == 999 and stop():
            break
    return sorted(best)
