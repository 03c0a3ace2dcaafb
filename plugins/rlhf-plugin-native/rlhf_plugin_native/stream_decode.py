"""The decode loop of turns: requests come while others are decoded, and what they have read already is cache.

Suffixes: as in :mod:`rlhf_plugin_native.decode`; ``_C`` tokens of a chunk that are read together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from rlhf_core.models import on_device
from rlhf_core.rollouts import RolloutRequest
from rlhf_plugin_native.decode import Decoder, Mask, SampledTokens, limit_of
from rlhf_plugin_native.decode_step import join_caches, make_cache, select_sequences
from rlhf_plugin_native.kv_rows import Moves, few_moves, keep_rows, make_room
from rlhf_plugin_native.turn_cache import TurnCache, copy_row, lay_rows

READ_TOKENS = 1 << 14
"""Most tokens, padding included, of one forward that reads contexts; bounds memory."""
ENTER_SHARE, ENTER_STEPS = 1 / 8, 8
"""Requests enter once they are so many of the rows that are decoded, or have waited for so many tokens: fewer at a time
are not worth a forward."""


class StreamDecoder(Decoder):
    """Rows that have ended give their place to waiting requests; equal calls give equal results, bit for bit."""

    def __init__(self, turn_cache: TurnCache, **arguments: Any) -> None:
        super().__init__(requests=(), **arguments)
        self.turn_cache, self.columns = turn_cache, self.sampling.max_tokens
        self.names: list[Hashable] = []
        self.since_look = self.since_entry = self.most_rows = 0
        self.tokens_read = 0
        """Tokens that were read, padding included."""

    def submit(self, name: Hashable, request: RolloutRequest) -> None:
        """Add a turn of the episode ``name``, which has no other under way."""
        self.names.append(name)
        self.requests.append(request)
        self.limits.append(limit_of(request, self.sampling))

    def take(self, steps: int | None = None) -> dict[int, SampledTokens]:
        """Decode until a turn has ended, or every row has ``steps`` tokens more; what ended, by request."""
        ended: dict[int, SampledTokens] = {}
        while not ended and steps != 0 and (self.rows is not None or self.entered < len(self.requests)):
            self._enter()
            tokens_B = self._draw()
            self.since_look, self.since_entry = self.since_look + 1, self.since_entry + 1
            if self.since_look >= self.stride or (self.count == np.take(self.limits, self.request)).any():
                ended, tokens_B = self._look(tokens_B)
            if self.rows is not None:
                self._feed(tokens_B)
            steps = None if steps is None else steps - 1
        return ended

    def _look(self, tokens_B: torch.Tensor) -> tuple[dict[int, SampledTokens], torch.Tensor]:
        """What has ended, whose keys and values are kept, and the tokens of the rows that stay."""
        alive = self._alive(self.since_look)
        new = ~alive & ~self._over()
        ended: dict[int, SampledTokens] = {}
        if new.any():
            ended = self._results(new)
            self.reported |= set(ended)
            for row in np.flatnonzero(new).tolist():
                self._set_aside(row, ended[int(self.request[row])])
        self.since_look = 0
        tokens_B = self._leave(tokens_B, alive)
        self.drawn.clear()
        return ended, tokens_B

    def _order(self, alive: Mask) -> np.ndarray[Any, Any]:
        return few_moves(alive)

    def _keep_cached(self, rows: np.ndarray[Any, Any], last: int) -> int:
        return keep_rows(self.cache, Moves.of(rows, self.device), last)

    def _over(self) -> Mask:
        """Which rows have ended, were reported and only hold their place; on a GPU a row may have ended unseen."""
        return np.array([i in self.reported for i in self.request.tolist()], dtype=np.bool_)

    def _set_aside(self, row: int, drawn: SampledTokens) -> None:
        """Keep what a row that has ended has in the cache. Its last token has not been read yet."""
        number, first = int(self.request[row]), self.width - int(self.held[row])
        request = self.requests[number]
        ids = (*request.prompt_ids, *drawn.tokens)[: int(self.held[row])]
        if self.turn_cache.budget:
            self.turn_cache.put(self.names[number], ids, copy_row(self.cache, row, first, first + len(ids)))

    def _fitting(self) -> int:
        waiting = len(self.requests) - self.entered
        if not waiting:
            return 0
        live = np.flatnonzero(~self._over())
        if len(live) and waiting < ENTER_SHARE * len(live) and self.since_entry < ENTER_STEPS:
            return 0
        all_widths = self._widths()
        widths = [all_widths[i] for i in live.tolist()]
        for count, i in enumerate(range(self.entered, len(self.requests))):
            widths.append(len(self.requests[i].prompt_ids) + self.limits[i])
            full = self.max_batch_tokens is not None and len(widths) * max(widths) > self.max_batch_tokens
            if len(widths) > self.max_concurrent or (full and len(widths) > 1):
                return count
        return waiting

    def _read(self, batch: range) -> tuple[Any, torch.Tensor]:
        """Read of each context what is not kept; new contexts are read as one engine call would read them."""
        self.since_entry = 0
        common = {i: self.turn_cache.common(self.names[i], self.requests[i].prompt_ids) for i in batch}
        fresh = [i for i in batch if not common[i]]
        parts: list[tuple[list[int], Any, torch.Tensor]] = []
        for numbers in self._portions(fresh, {}):
            prompts = [self.requests[i].prompt_ids for i in numbers]
            self.tokens_read += len(set(prompts)) * max(map(len, prompts))
            parts.append((numbers, *self._read_prompts(prompts)))
        again = sorted((i for i in batch if common[i]), key=lambda i: (self._rest(i, common), i))
        parts += [(numbers, *self._read_on(numbers, common)) for numbers in self._portions(again, common)]
        order, cache, logits_BV = parts[0]
        for numbers, more, more_BV in parts[1:]:
            join_caches(cache, more, cache.layers[0].length)
            order, logits_BV = order + numbers, torch.cat([logits_BV, more_BV])
        if order != list(batch):
            order_B = on_device([order.index(i) for i in batch], self.device)
            select_sequences(cache, order_B)
            logits_BV = logits_BV[order_B]
        return cache, logits_BV

    def _rest(self, i: int, common: dict[int, int]) -> int:
        return len(self.requests[i].prompt_ids) - common.get(i, 0)

    def _portions(self, numbers: Sequence[int], common: dict[int, int]) -> list[list[int]]:
        """Requests that are read in one forward: within the bound, and what is kept with rests of like length."""
        portions: list[list[int]] = []
        seen: set[tuple[int, ...]] = set()
        for i in numbers:
            ids, rest = self.requests[i].prompt_ids, self._rest(i, common)
            last = portions[-1] if portions else []
            count = 1 + len(last if common else seen)
            longest = max(rest, *(self._rest(j, common) for j in last)) if last else rest
            apart = common and last and rest > 2 * max(self._rest(last[0], common), 16)
            if not last or apart or (ids not in seen and count * longest > READ_TOKENS):
                portions.append([])
                seen = set()
            portions[-1].append(i)
            seen.add(ids)
        return portions

    def _read_on(self, numbers: Sequence[int], common: dict[int, int]) -> tuple[Any, torch.Tensor]:
        """Read the last C tokens of contexts whose earlier ones are stored, C being what the longest rest needs."""
        chunk = max(self._rest(i, common) for i in numbers)
        contexts = [self.requests[i].prompt_ids for i in numbers]
        cached = [max(len(ids) - chunk, 0) for ids in contexts]
        cache = make_cache(self.cache_config)
        lay_rows(cache, [self.turn_cache.take(self.names[i], n) for i, n in zip(numbers, cached, strict=True)])
        before = max(cached)
        lengths_B1 = on_device([len(ids) for ids in contexts], self.device)[:, None]
        steps_L = torch.arange(before + chunk, device=self.device)[None, :]
        first_B1 = before + chunk - lengths_B1
        ids_BC = on_device([[0] * (chunk - len(ids)) + list(ids[-chunk:]) for ids in contexts], self.device)
        positions_BC = (steps_L[:, before:] - first_B1).clamp(min=0)
        self.tokens_read += ids_BC.numel()
        return cache, self.forward(ids_BC, (steps_L >= first_B1).long(), positions_BC, cache)

    def _append_rows(self, batch: range, cache: Any, logits_BV: torch.Tensor) -> None:
        """Put requests that have been read after the rows that are alive; the others leave."""
        over = self._over()
        if over.any():
            self.logits_BV = self._keep(few_moves(~over), self.logits_BV)
        self.most_rows = max(self.most_rows, len(self.request) + len(batch))
        if self.rows is None:
            make_room(cache, self.most_rows, self.max_batch_tokens)
        super()._append_rows(batch, cache, logits_BV)
