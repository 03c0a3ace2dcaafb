"""Which prompt comes next: seeded permutations per source, weighted, resumable at the consumed frontier."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rlhf_core.types.errors import DatasetError
from rlhf_core.types.frozen import Lazy
from rlhf_core.types.rollouts import Prompt


def neediest(share: Mapping[str, float], taken: Mapping[str, int]) -> str:
    """The source that is furthest behind its share of everything taken so far."""
    done = sum(taken.values()) + 1
    return max((share[name] * done - taken[name], name) for name in share)[1]


def interleave(sources: Sequence[str], weights: Mapping[str, float]) -> list[int]:
    """Indices of the rows in an order of which every beginning holds each source's share, while its rows last.

    Example:
        >>> interleave(["a", "a", "a", "b"], {"a": 1.0, "b": 1.0})
        [3, 0, 1, 2]
    """
    rows = by_source(sources)
    taken: Counter[str] = Counter()
    order: list[int] = []
    while len(order) < len(sources):
        left = {s: weights[s] for s in rows if taken[s] < len(rows[s])}
        total = sum(left.values())
        source = neediest({s: w / total for s, w in left.items()}, Counter({s: taken[s] for s in left}))
        order.append(rows[source][taken[source]])
        taken[source] += 1
    return order


class ExampleOrder:
    """Which example is drawn when: a new seeded permutation of each source whenever it is used up, mixed by weight."""

    def __init__(self, sources: Sequence[str], weights: Mapping[str, float], seed: int, shuffle: bool = True) -> None:
        self.rows = by_source(sources)
        total = sum(weights[s] for s in self.rows)
        self.share = {s: weights[s] / total for s in self.rows}
        self.seed, self.shuffle = seed, shuffle
        self._taken: Counter[str] = Counter()
        self._walks: dict[str, list[int]] = {}
        self._drawn: list[int] = []

    def draws(self, first: int, count: int) -> list[int]:
        """Indices of the draws ``first`` to ``first + count - 1``; the same whatever was drawn before."""
        while len(self._drawn) < first + count:
            self._drawn.append(self._next())
        return self._drawn[first : first + count]

    def _next(self) -> int:
        source = neediest(self.share, self._taken)
        epoch, index = divmod(self._taken[source], len(self.rows[source]))
        if index == 0:
            self._walks[source] = self._permutation(source, epoch)
        self._taken[source] += 1
        return self._walks[source][index]

    def _permutation(self, source: str, epoch: int) -> list[int]:
        rows = self.rows[source]
        if not self.shuffle:
            return rows
        key = [self.seed, epoch] if len(self.rows) == 1 else [self.seed, list(self.rows).index(source), epoch]
        return [rows[i] for i in np.random.default_rng(key).permutation(len(rows))]


def by_source(sources: Sequence[str]) -> dict[str, list[int]]:
    """Source -> indices of its rows, sources in alphabetical order."""
    rows: dict[str, list[int]] = {s: [] for s in sorted(set(sources))}
    for index, source in enumerate(sources):
        rows[source].append(index)
    return rows


def fingerprint(rows: Iterable[Any]) -> str:
    """Hash of everything that prompts, pairs or demonstrations hold, texts included, in order (16 hex digits)."""
    digest, text = hashlib.sha256(), json.JSONEncoder(sort_keys=True, default=_fields).encode
    for row in rows:
        digest.update(text(row).encode() + b"\n")
    return digest.hexdigest()[:16]


def _fields(value: Any) -> Any:
    names = getattr(value, "__dataclass_fields__", None)
    return str(value) if names is None else {name: getattr(value, name) for name in names}


def check_fingerprint(what: str, then: str, now: str) -> None:
    """Refuse to resume with other rows."""
    if then != now:
        raise DatasetError(
            f"the {what} changed since the checkpoint",
            fix="resume with the same dataset, or start a new run from the checkpoint's model",
        )


class PromptOrder:
    """Deterministic order over several sources. Each is walked in a new permutation per epoch, so a prompt returns only
    after all others of its source; each keeps its weight's share of all prompts taken so far. One :meth:`take` never
    returns a prompt twice: it is put off to the next.
    """

    def __init__(
        self, prompts: Sequence[Prompt], weights: Mapping[str, float], seed: int, shuffle: bool = True
    ) -> None:
        sources = [prompt.source for prompt in prompts]
        rows, total = by_source(sources), sum(weights[s] for s in dict.fromkeys(sources))
        self.share = {s: weights[s] / total for s in rows}
        self.walks = {
            s: self.walk(s, Lazy(prompts.__getitem__, numbers), (seed, i) if shuffle else None)
            for i, (s, numbers) in enumerate(rows.items())
        }

    def walk(self, source: str, prompts: Sequence[Prompt], key: tuple[int, int] | None) -> SourceWalk:
        """The walk through one source; arguments as of :class:`SourceWalk`."""
        return SourceWalk(source, prompts, key)

    def observe(self, rates: Sequence[tuple[str, float]]) -> None:
        """Receive the mean score of every group (prompt id, mean); this order ignores them."""

    def take(self, count: int, beside: Sequence[Prompt] = ()) -> list[Prompt]:
        """The next ``count`` prompts, all different, and none of those in ``beside``."""
        batch: dict[str, Prompt] = {p.id: p for p in beside}
        for _ in range(count):
            source = neediest(self.share, {s: walk.taken for s, walk in self.walks.items()})
            prompt = self.walks[source].next(batch)
            batch[prompt.id] = prompt
        return list(batch.values())[len(beside) :]

    def require(self, count: int) -> None:
        """Refuse a batch size that would repeat prompts within one batch."""
        for source, walk in self.walks.items():
            need = min(count, int(np.ceil(self.share[source] * count)) + (len(self.walks) > 1))
            if need > walk.count:
                raise too_few(source, walk.count, need)

    def state_dict(self) -> dict[str, Any]:
        """The consumed frontier of every source."""
        return {source: walk.state_dict() for source, walk in self.walks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a frontier."""
        if set(state) != set(self.walks):
            raise DatasetError(
                "the dataset's sources changed since the checkpoint",
                why=f"at the checkpoint {sorted(state)}, now {sorted(self.walks)}",
                fix="resume with the same dataset, or start a new run from the checkpoint's model",
            )
        for source, walk in self.walks.items():
            walk.load_state_dict(state[source])


class SourceWalk:
    """Epoch after epoch through one source's prompts."""

    def __init__(self, source: str, prompts: Sequence[Prompt], key: tuple[int, int] | None) -> None:
        self.source, self.prompts, self.key, self.count = source, prompts, key, len(prompts)
        self.epoch = 0
        self.left = self._permutation()
        """Indices of this epoch's remaining prompts, next one first."""
        self.hashes = array("q", (hash(prompt.id) for prompt in prompts))
        """Of the ids, which tell prompts apart without unpacking them."""

    def _permutation(self) -> array[int]:
        if self.key is None:
            return array("q", range(self.count))
        return array("q", np.random.default_rng([*self.key, self.epoch]).permutation(self.count))

    def next(self, batch: Mapping[str, Prompt]) -> Prompt:
        """The next prompt that is not in the batch."""
        if not self.left:
            self.epoch += 1
            self.left = self._permutation()
        taken = set(map(hash, batch))
        index = next((n for n, i in enumerate(self.left) if self.hashes[i] not in taken), None)
        if index is None:
            raise too_few(self.source, self.count, self.count + 1)
        return self.prompts[self.left.pop(index)]

    @property
    def taken(self) -> int:
        """Prompts consumed so far, over all epochs."""
        return (self.epoch + 1) * self.count - len(self.left)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the prompts in order: ids, texts, answers and further columns."""
        return fingerprint(self.prompts)

    def state_dict(self) -> dict[str, Any]:
        """How far this epoch's permutation is consumed, and which prompts before that were put off."""
        order = np.array(self._permutation())
        left = np.isin(order, self.left)
        frontier = int(np.flatnonzero(~left)[-1]) + 1 if not left.all() else 0
        put_off = order[:frontier][left[:frontier]].tolist()
        return {"epoch": self.epoch, "frontier": frontier, "put_off": put_off, "fingerprint": self.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        check_fingerprint(f"prompts of source '{self.source}'", state["fingerprint"], self.fingerprint)
        self.epoch = int(state["epoch"])
        self.left = array("q", state["put_off"]) + self._permutation()[int(state["frontier"]) :]


def too_few(source: str, has: int, needs: int) -> DatasetError:
    """The error for a source that is smaller than its share of a batch."""
    return DatasetError(
        f"one step may take {needs} different prompts of '{source}', which has only {has}",
        fix="lower trainer.rollout_batch_size, raise trainer.group_size, or give more prompts",
    )
