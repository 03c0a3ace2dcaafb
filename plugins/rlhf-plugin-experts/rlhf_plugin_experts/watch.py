"""What the routers do in one forward of a micro-batch, by sequence, and what they are told to do.

Suffixes: ``_N`` positions of the forward, ``_L`` layers with experts, ``_E`` experts, ``_K`` chosen ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rlhf_core.config import RlhfError
from rlhf_core.models import on_device
from rlhf_plugin_experts.routers import Chosen

Ids = Sequence[Sequence[int]]


class Layout(NamedTuple):
    """Where the tokens of each sequence lie in the flat positions of a forward."""

    spans: list[list[tuple[int, int]]]
    """Of each sequence; several sequences may have a prompt's in common."""
    size: int


def lay_out(prompts: Ids, completions: Ids, packed: bool, share: bool) -> Layout:
    """As the core lays out packed rows, or rows of one length; the last token of each sequence is not fed."""
    rows = [(tuple(p), max(0, len(c) - 1)) for p, c in zip(prompts, completions, strict=True)]
    if not packed:
        width = max(len(p) + n for p, n in rows)
        return Layout([[(i * width, i * width + len(p) + n)] for i, (p, n) in enumerate(rows)], len(rows) * width)
    spans: list[list[tuple[int, int]]] = []
    of_prompt: dict[tuple[int, ...], tuple[int, int]] = {}
    end = 0
    for prompt, fed in rows:
        first = of_prompt.get(prompt) if share else None
        if first is None:
            first = of_prompt[prompt] = (end, end + len(prompt))
            end += len(prompt)
        spans.append([first, (end, end + fed)])
        end += fed
    return Layout(spans, end)


class Routed(NamedTuple):
    """One layer's router in one forward."""

    router: Any
    logits_NE: torch.Tensor
    chosen_NK: torch.Tensor


class RouterWatch:
    """Called before each forward of completions (``watch_rows`` of the model), then by hooks on trunk and routers.

    Args:
        strict: let every such forward lie in a way that is known here, sharing of prompts without packing off.
        replay: force what :meth:`keep` was given.
    """

    def __init__(self, base: Any, routers: Sequence[Any], *, strict: bool, replay: bool) -> None:
        self.routers, self.strict, self.replays = list(routers), strict, replay
        self.layout: Layout | None = None
        self.seen: dict[int, Routed] = {}
        self.replayed = (0, 0)
        """Tokens of the last forward's sequences whose experts were forced, of all."""
        self._table: dict[tuple[int, ...], np.ndarray[Any, Any]] = {}
        self._version: int | None = None
        self._forced: torch.Tensor | None = None
        self._modes: dict[int, Chosen] = {}
        self._announced = False
        self._recorded: dict[int, torch.Tensor] | None = None
        base.get_decoder().register_forward_pre_hook(self._begin)
        for layer, router in enumerate(self.routers):
            router.register_forward_pre_hook(lambda module, args, n=layer: self._before(n))
            router.register_forward_hook(lambda module, args, out, n=layer: self._after(n, out), always_call=True)

    def __call__(self, prompts: Ids, completions: Ids, packed: bool, share: bool) -> bool:
        """Be told of the next forward; returns whether prompts may be shared in it."""
        share = share and (packed or not self.strict)
        known = packed or not share
        self.layout = lay_out(prompts, completions, packed, share) if known else None
        self.seen, self._announced = {}, True
        self._forced = self._lookup(prompts, completions) if self.replays else None
        return share

    def _begin(self, *_: Any) -> None:
        if not self._announced:
            self.layout = self._forced = None
        self._announced = False

    def _before(self, layer: int) -> None:
        if self._forced is not None:
            mode = self._modes[layer] = Chosen(self._forced[layer], self.routers[layer].num_experts)
            mode.__enter__()

    def _after(self, layer: int, out: Any) -> None:
        if (mode := self._modes.pop(layer, None)) is not None:
            mode.__exit__(None, None, None)
        if not isinstance(out, tuple):
            return
        logits_NE, _, chosen_NK = out
        if self._recorded is not None:
            self._recorded[layer] = chosen_NK
        elif self.layout is not None and layer not in self.seen and torch.is_grad_enabled():
            self.seen[layer] = Routed(self.routers[layer], logits_NE, chosen_NK)

    def take(self) -> tuple[Layout | None, list[Routed]]:
        """What the last forward with gradient did, layer by layer, once."""
        seen, self.seen = self.seen, {}
        return self.layout, [seen[n] for n in sorted(seen)]

    def begin_sampling(self, version: int) -> None:
        """Completions of a version of the policy follow; what was chosen for those of another is forgotten."""
        if version != self._version:
            self._table.clear()
        self._version = version

    def record(self) -> None:
        """Record what is chosen until :meth:`recorded`."""
        self._recorded = {}

    def recorded(self) -> torch.Tensor:
        """int16 ``[N, L, K]`` of the forward since :meth:`record`."""
        recorded, self._recorded = self._recorded or {}, None
        return torch.stack([recorded[n] for n in range(len(self.routers))], 1).to(torch.int16)

    def keep(self, ids: Sequence[int], chosen_NLK: np.ndarray[Any, Any]) -> None:
        """The experts of all tokens of a sequence but the last one, ``[len(ids) - 1, L, K]``."""
        self._table[tuple(ids[:-1])] = chosen_NLK

    def _lookup(self, prompts: Ids, completions: Ids) -> torch.Tensor | None:
        assert self.layout is not None
        rows = [(*p, *c[:-1]) for p, c in zip(prompts, completions, strict=True)]
        found = [self._table.get(row) for row in rows]
        if not any(f is not None for f in found):
            if self._table and torch.is_grad_enabled():
                raise RlhfError(
                    "model.experts.replay: an update is made on completions whose experts were not recorded",
                    why=f"none of {len(rows)} sequences is one that the engine sampled with the present policy",
                    fix="leave model.experts.replay out",
                )
            return None
        top = max(f.shape[2] for f in found if f is not None)
        forced_NLK = np.full((self.layout.size, len(self.routers), top), -1, np.int64)
        for spans, chosen in zip(self.layout.spans, found, strict=True):
            first = 0
            for start, stop in spans:
                if chosen is None:
                    break
                forced_NLK[start:stop] = chosen[first : first + stop - start]
                first += stop - start
        sizes = [sum(stop - start for start, stop in spans) for spans in self.layout.spans]
        self.replayed = sum(n for n, f in zip(sizes, found) if f is not None), sum(sizes)
        device = next(self.routers[0].parameters()).device
        return on_device(forced_NLK.transpose(1, 0, 2), device)
