"""Which prompt comes next: seeded permutations per source, weighted, resumable at the consumed frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rlhf_core.data.mixture import by_source, check_fingerprint, fingerprint, neediest
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.rollouts import Prompt


class PromptOrder:
    """Deterministic order over several sources.

    Every source is walked in a fresh permutation per epoch, so a prompt returns only after all others of its
    source. Sources interleave so that each keeps its weight's share of all prompts taken so far. One :meth:`take`
    never returns a prompt twice: one that would is put off to the next.

    Args:
        prompts: of all sources, at least one.
        weights: source label -> weight.
        seed: the run's.
        shuffle: False keeps the order of the rows.
    """

    def __init__(
        self, prompts: Sequence[Prompt], weights: Mapping[str, float], seed: int, shuffle: bool = True
    ) -> None:
        rows = by_source([prompt.source for prompt in prompts])
        total = sum(weights[s] for s in dict.fromkeys(prompt.source for prompt in prompts))
        self.share = {s: weights[s] / total for s in rows}
        self.walks = {
            s: self.walk(s, [prompts[n] for n in numbers], (seed, i) if shuffle else None)
            for i, (s, numbers) in enumerate(rows.items())
        }

    def walk(self, source: str, prompts: Sequence[Prompt], key: tuple[int, int] | None) -> SourceWalk:
        """The walk through one source; arguments as of :class:`SourceWalk`."""
        return SourceWalk(source, prompts, key)

    def observe(self, rates: Sequence[tuple[str, float]]) -> None:
        """Receive the mean score of every group (prompt id, mean); this order ignores them."""

    def take(self, count: int, beside: Sequence[Prompt] = ()) -> list[Prompt]:
        """The next ``count`` prompts, all different, and none of those in ``beside``.

        Raises:
            DatasetError: a source's share of them is more than it has.
        """
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
            if need > len(walk.prompts):
                raise too_few(source, len(walk.prompts), need)

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
    """Epoch after epoch through one source's prompts.

    Args:
        source: its label.
        prompts: at least one.
        key: seeds the permutations; None keeps the given order.
    """

    def __init__(self, source: str, prompts: Sequence[Prompt], key: tuple[int, int] | None) -> None:
        self.source, self.prompts, self.key = source, list(prompts), key
        self.epoch = 0
        self.left = self._permutation()
        """Indices of this epoch's remaining prompts, next one first."""

    def _permutation(self) -> list[int]:
        if self.key is None:
            return list(range(len(self.prompts)))
        return np.random.default_rng([*self.key, self.epoch]).permutation(len(self.prompts)).tolist()

    def next(self, batch: Mapping[str, Prompt]) -> Prompt:
        """The next prompt that is not in the batch."""
        if not self.left:
            self.epoch += 1
            self.left = self._permutation()
        index = next((n for n, i in enumerate(self.left) if self.prompts[i].id not in batch), None)
        if index is None:
            raise too_few(self.source, len(self.prompts), len(self.prompts) + 1)
        return self.prompts[self.left.pop(index)]

    @property
    def taken(self) -> int:
        """Prompts consumed so far, over all epochs."""
        return (self.epoch + 1) * len(self.prompts) - len(self.left)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the prompts in order: ids, texts, answers and further columns."""
        return fingerprint(self.prompts)

    def state_dict(self) -> dict[str, Any]:
        """How far this epoch's permutation is consumed, and which prompts before that were put off."""
        order, left = self._permutation(), set(self.left)
        frontier = max((n + 1 for n, i in enumerate(order) if i not in left), default=0)
        put_off = [i for i in order[:frontier] if i in left]
        return {"epoch": self.epoch, "frontier": frontier, "put_off": put_off, "fingerprint": self.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            DatasetError: other prompts than then.
        """
        check_fingerprint(f"prompts of source '{self.source}'", state["fingerprint"], self.fingerprint)
        self.epoch = int(state["epoch"])
        self.left = [*state["put_off"], *self._permutation()[int(state["frontier"]) :]]


def too_few(source: str, has: int, needs: int) -> DatasetError:
    """The error for a source that is smaller than its share of a batch."""
    return DatasetError(
        f"one step may take {needs} different prompts of '{source}', which has only {has}",
        fix="lower trainer.rollout_batch_size, raise trainer.group_size, or give more prompts",
    )
