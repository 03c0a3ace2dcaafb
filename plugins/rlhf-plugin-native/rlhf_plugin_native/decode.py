"""The decode loop: sequences that are decoded together, finished ones leaving and waiting ones entering.

Suffixes: ``_P`` distinct prompts, ``_B`` rows, ``_L`` positions so far (every row ends at the last one), ``_V``
vocabulary, ``_T`` completion tokens.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from rlhf_core.models import on_device
from rlhf_core.rollouts import FinishReason, RolloutRequest, SamplingParams
from rlhf_plugin_native.decode_step import growing, join_caches, make_cache, select_rows, select_sequences
from rlhf_plugin_native.sampling import StopStrings, draw, uniforms

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class SampledTokens:
    """What one request got, before it is decoded to text."""

    tokens: list[int]
    logprobs_T: np.ndarray[Any, np.dtype[np.float32]]
    finish: FinishReason
    support: np.ndarray[Any, np.dtype[np.int32]] | None = None
    chosen_TLK: np.ndarray[Any, Any] | None = None
    """Experts of each token that was fed, the prompt's included (:mod:`rlhf_plugin_native.routing`)."""


class Drawn(NamedTuple):
    """What the host has read of the rows; arrays as the tensors of :class:`DecodeState`."""

    length_B: np.ndarray[Any, np.dtype[np.int64]]
    tokens_BT: np.ndarray[Any, np.dtype[np.int64]]
    logprobs_BT: np.ndarray[Any, np.dtype[np.float32]]


@dataclass
class DecodeState:
    """State on the device; every tensor has one entry per row, so rows are added and removed in all of them."""

    last_B: torch.Tensor
    """The last position it may be fed; rows that ended stay there while they wait to be dropped."""
    count_B: torch.Tensor
    """Tokens drawn so far."""
    length_B: torch.Tensor
    """Tokens of the completion: the limit, until an end is drawn."""
    held_B: torch.Tensor
    """Positions it has in the cache, which is also the position of its next token."""
    uniforms_BT: torch.Tensor
    tokens_BT: torch.Tensor
    logprobs_BT: torch.Tensor

    def __len__(self) -> int:
        return len(self.last_B)

    def select(self, keep_B: torch.Tensor) -> DecodeState:
        return DecodeState(*(getattr(self, f.name)[keep_B] for f in fields(self)))

    def join(self, other: DecodeState) -> DecodeState:
        return DecodeState(*(torch.cat([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)))

    def record(self, tokens_B: torch.Tensor, logprobs_B: torch.Tensor, ends: torch.Tensor) -> None:
        """Note the tokens drawn for every row; rows that have ended stay as they are."""
        going_B1 = (self.count_B < self.length_B)[:, None]
        position_B1 = self.position()
        for table_BT, new_B in ((self.tokens_BT, tokens_B), (self.logprobs_BT, logprobs_B)):
            table_BT.scatter_(1, position_B1, torch.where(going_B1, new_B[:, None], table_BT.gather(1, position_B1)))
        self.count_B += 1
        ends_now_B = torch.isin(tokens_B, ends) & going_B1[:, 0]
        self.length_B = torch.where(ends_now_B, self.count_B, self.length_B)

    def position(self) -> torch.Tensor:
        """Column of the next token, ``[B, 1]``."""
        return self.count_B[:, None].clamp(max=self.tokens_BT.shape[1] - 1)


def new_rows(
    limits: Sequence[int],
    seeds: Sequence[int],
    prompt_lengths: Sequence[int],
    width: int,
    device: torch.device,
) -> DecodeState:
    """Rows that have read their prompts and drawn nothing yet."""
    count, limit_B, held_B = len(seeds), on_device(limits, device), on_device(prompt_lengths, device)
    return DecodeState(
        last_B=held_B + limit_B - 1,
        length_B=limit_B,
        count_B=torch.zeros(count, dtype=torch.long, device=device),
        held_B=held_B,
        uniforms_BT=on_device(uniforms(seeds, width).numpy(), device, None),
        tokens_BT=torch.zeros((count, width), dtype=torch.long, device=device),
        logprobs_BT=torch.zeros((count, width), device=device),
    )


Ended = Callable[[dict[int, SampledTokens], int], None]
Token = Callable[[int], None]
COMPACT_BELOW = 0.75
"""Finished rows leave, and waiting requests enter, once fewer than this share of the rows is alive."""
CUDA_STRIDE = 8
"""Tokens drawn on a GPU between two looks at which rows have ended (each look waits for the device)."""


class Decoder:
    """Distinct prompts of those that enter together are read once each; every row has its own copy of the cache."""

    def __init__(
        self,
        forward: Any,
        requests: Sequence[RolloutRequest],
        sampling: SamplingParams,
        ends: Sequence[int],
        stop: StopStrings,
        cache_config: Any,
        device: torch.device,
        max_concurrent: int,
        max_batch_tokens: int | None = None,
    ) -> None:
        self.forward, self.sampling, self.stop, self.device = forward, sampling, stop, device
        self.requests = list(requests)
        self.cache_config, self.max_concurrent, self.max_batch_tokens = cache_config, max_concurrent, max_batch_tokens
        self.ends = on_device(list(ends), device)
        self.end_set = set(ends)
        self.stride = 1 if device.type == "cpu" else CUDA_STRIDE
        self.limits = [limit_of(r, sampling) for r in requests]
        self.columns = max(self.limits, default=0)
        self.entered = self.width = self.most_width = 0
        self.may_enter = True
        self.drawn: dict[int, SampledTokens] = {}
        self.reported: set[int] = set()
        self.stopped: set[int] = set()
        self.support: defaultdict[int, list[np.ndarray[Any, Any]]] = defaultdict(list)
        """By request, the ids that each draw could choose from, if they are wanted."""
        self.rows: DecodeState | None = None
        self.cache: Any = None
        self.logits_BV: torch.Tensor
        self.seen: Drawn
        # What the host knows without asking the device: request, tokens drawn and cached positions of each row.
        self.request = self.count = self.held = np.zeros(0, dtype=np.int64)

    def run(self, ended: Ended | None = None, every_s: float = 2.0, token: Token | None = None) -> list[SampledTokens]:
        """Decode until every request has ended; results in order. ``ended`` gets what has ended, at least ``every_s``
        seconds apart, and the tokens drawn so far; ``token`` each token of a single request."""
        self.stride = 1 if token is not None else self.stride
        since_look, due = 0, time.monotonic() + every_s
        while self.rows is not None or self.entered < len(self.requests):
            if self.may_enter:
                self._enter()
            tokens_B, since_look = self._draw(), since_look + 1
            if since_look >= self.stride or (self.count == np.take(self.limits, self.request)).any():
                alive = self._alive(since_look)
                if token is not None:
                    token(int(self.seen.tokens_BT[0, -1]))
                if ended is not None and time.monotonic() >= due:
                    ended(self._new(self._results(~alive)), self._tokens())
                    due = time.monotonic() + every_s
                tokens_B, since_look = self._leave(tokens_B, alive), 0
            if self.rows is not None:
                self._feed(tokens_B)
        if ended is not None:
            ended(self._new({}), self._tokens())
        return [self.drawn[i] for i in range(len(self.requests))]

    def _new(self, more: dict[int, SampledTokens]) -> dict[int, SampledTokens]:
        """What has ended and was not reported: of the rows that have left, and ``more``."""
        new = {i: d for i, d in (self.drawn | more).items() if i not in self.reported}
        self.reported |= set(new)
        return new

    def _tokens(self) -> int:
        return sum(len(d.tokens) for d in self.drawn.values()) + int(self.count.sum())

    def _enter(self) -> None:
        """Read the prompts of as many waiting requests as fit, and decode them together with the others."""
        count, self.may_enter = self._fitting(), False
        if not count:
            return
        batch = range(self.entered, self.entered + count)
        self.entered += count
        self._append_rows(batch, *self._read(batch))
        self.most_width = max(self._widths())

    def _read(self, batch: range) -> tuple[Any, torch.Tensor]:
        """Read the prompts of some requests; returns a cache and the next token's logits for each."""
        return self._read_prompts([self.requests[i].prompt_ids for i in batch])

    def _append_rows(self, batch: range, cache: Any, logits_BV: torch.Tensor) -> None:
        """Put requests whose prompts have been read after the rows that there are."""
        lengths = [len(self.requests[i].prompt_ids) for i in batch]
        limits, seeds = [self.limits[i] for i in batch], [self.requests[i].seed for i in batch]
        rows = new_rows(limits, seeds, lengths, self.columns, self.device)
        if self.rows is None:
            self.rows, self.cache, self.logits_BV, self.width = rows, cache, logits_BV, max(lengths)
        else:
            self.width = join_caches(self.cache, cache, int(self.held.max()))
            self.rows, self.logits_BV = self.rows.join(rows), torch.cat([self.logits_BV, logits_BV])
        self.request = np.concatenate([self.request, np.array(batch)])
        self.count = np.concatenate([self.count, np.zeros(len(batch), dtype=np.int64)])
        self.held = np.concatenate([self.held, np.array(lengths)])

    def _widths(self) -> list[int]:
        """Positions each row has at its last possible token."""
        return [len(self.requests[i].prompt_ids) + self.limits[i] for i in self.request.tolist()]

    def _fitting(self) -> int:
        """How many waiting requests enter now: a few at a time is not worth a forward, half a group only if it must."""
        live_rows = 0 if self.rows is None else len(self.rows)
        if live_rows and (live_rows >= COMPACT_BELOW * self.max_concurrent or not growing(self.cache)):
            return 0
        widths = self._widths()
        count, last = 0, 0
        for i in range(self.entered, len(self.requests)):
            ids = self.requests[i].prompt_ids
            if i and ids != self.requests[i - 1].prompt_ids:
                last = count
            widths.append(len(ids) + self.limits[i])
            full = self.max_batch_tokens is not None and len(widths) * max(widths) > self.max_batch_tokens
            if len(widths) > self.max_concurrent or (full and len(widths) > 1):
                return last or count
            count += 1
        return count

    def _read_prompts(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, torch.Tensor]:
        """One forward over the distinct prompts; returns a cache and the next token's logits for each of all."""
        distinct = list(dict.fromkeys(tuple(p) for p in prompts))
        index = {p: i for i, p in enumerate(distinct)}
        lengths = [len(p) for p in distinct]
        width = max(lengths)
        ids_PL = on_device([[0] * (width - len(p)) + list(p) for p in distinct], self.device)
        lengths_P1 = on_device(lengths, self.device)[:, None]
        steps_L = torch.arange(width, device=self.device)[None, :]
        mask_PL = None if min(lengths) == width else (steps_L >= width - lengths_P1).long()
        cache = make_cache(self.cache_config)
        logits_PV = self.forward(ids_PL, mask_PL, (steps_L - (width - lengths_P1)).clamp(min=0), cache)
        of_B = on_device([index[tuple(p)] for p in prompts], self.device)
        if len(distinct) < len(prompts):
            select_sequences(cache, of_B)
            logits_PV = logits_PV[of_B]
        return cache, logits_PV

    def _draw(self) -> torch.Tensor:
        rows = self.rows
        assert rows is not None
        early = self.count + 1 < self.sampling.min_tokens
        uniform_B = rows.uniforms_BT.gather(1, rows.position())[:, 0]
        if early.all() or not early.any():
            left = partial(self._note, range(len(rows))) if self.sampling.support else None
            drawn = draw(self.logits_BV, uniform_B, self.sampling, self.ends if early.all() else None, left)
        else:  # rows that entered later may still have to be kept from ending
            drawn = (rows.tokens_BT.new_empty(len(rows)), rows.logprobs_BT.new_empty(len(rows)))
            for which, banned in ((early, self.ends), (~early, None)):
                indices = on_device(np.flatnonzero(which), self.device)
                left = partial(self._note, np.flatnonzero(which).tolist()) if self.sampling.support else None
                parts = draw(self.logits_BV[indices], uniform_B[indices], self.sampling, banned, left)
                for full, part in zip(drawn, parts):
                    full[indices] = part
        rows.record(*drawn, self.ends)
        self.count = self.count + 1
        return drawn[0]

    def _note(self, rows: Sequence[int], left_BV: torch.Tensor) -> None:
        """Keep what each of some rows could choose from; on a GPU this waits for the device."""
        open_BV = left_BV.isfinite()
        ids_M = open_BV.nonzero()[:, 1].int().cpu().numpy()
        ends = open_BV.sum(-1).cumsum(-1).tolist()
        for row, start, end in zip(rows, [0, *ends], ends):
            self.support[int(self.request[row])].append(ids_M[start:end].copy())

    def _alive(self, since_look: int) -> Mask:
        """Read what was drawn, check stop strings in the tokens since the last look, and return which rows are
        unfinished. On a GPU this waits for the device, once."""
        rows, most = self.rows, min(int(self.count.max()), self.columns)
        assert rows is not None
        drawn = (rows.length_B[:, None], rows.tokens_BT[:, :most], rows.logprobs_BT[:, :most])
        if self.device.type != "cpu":  # float64 holds all of them as they are
            near = torch.cat([part.double() for part in drawn], 1).cpu().split([part.shape[1] for part in drawn], 1)
            drawn = tuple(here.to(there.dtype) for here, there in zip(near, drawn))
        length_B1, tokens_BT, logprobs_BT = (part.numpy() for part in drawn)
        seen = self.seen = Drawn(length_B1[:, 0], tokens_BT, logprobs_BT)
        if self.stop:
            first = np.maximum(self.count - since_look + 1, max(1, self.sampling.min_tokens))
            last = np.minimum(self.count, seen.length_B)
            if hits := {i: n for i in np.flatnonzero(first <= last).tolist() if (n := self._hit(i, first[i], last[i]))}:
                self.stopped |= {int(self.request[i]) for i in hits}
                at, ends = on_device(list(hits), self.device), on_device(list(hits.values()), self.device)
                rows.length_B = rows.length_B.scatter(0, at, ends)
                self.seen = seen = seen._replace(length_B=seen.length_B.copy())
                seen.length_B[list(hits)] = list(hits.values())
        return self.count < seen.length_B

    def _hit(self, row: int, first: int, last: int) -> int:
        """After how many tokens, from ``first`` to ``last``, a stop string ends a row; 0 where none does."""
        tokens_T = self.seen.tokens_BT[row]
        window = self.stop.window
        return next((n for n in range(first, last + 1) if self._stops(tokens_T[max(0, n - window) : n].tolist())), 0)

    def _results(self, which: Mask) -> dict[int, SampledTokens]:
        """What some rows drew, by request, as it was last read."""
        results: dict[int, SampledTokens] = {}
        for row in np.flatnonzero(which).tolist():
            request, n = int(self.request[row]), int(self.seen.length_B[row])
            tokens = self.seen.tokens_BT[row, :n].tolist()
            ended = FinishReason.EOS if tokens[-1] in self.end_set else FinishReason.LENGTH
            finish = FinishReason.STOP if request in self.stopped else ended
            logprobs_T, support, chosen_TLK = self.seen.logprobs_BT[row, :n].copy(), None, None
            if self.sampling.support:
                ids = self.support[request][:n]
                support = np.concatenate([np.array([len(one) for one in ids], np.int32), *ids])
            if (choices := getattr(self.cache.layers[-1], "choices", None)) is not None:
                held, fed = int(self.held[row]), len(self.requests[request].prompt_ids) + n - 1
                chosen_TLK = choices(row, self.width - held, min(fed, held))
            results[request] = SampledTokens(tokens, logprobs_T, finish, support, chosen_TLK)
        return results

    def _stops(self, recent: list[int]) -> bool:
        return recent[-1] not in self.end_set and self.stop.completed_by_last(recent)

    def _leave(self, tokens_B: torch.Tensor, alive: Mask) -> torch.Tensor:
        """Drop finished rows when enough are, or when keeping them would widen the cache; returns the rest's tokens."""
        if alive.all() or (alive.mean() >= COMPACT_BELOW and self.width < self.most_width):
            return tokens_B
        self.may_enter = self.entered < len(self.requests)
        self.drawn |= self._results(~alive)
        return self._keep(self._order(alive), tokens_B)

    def _order(self, alive: Mask) -> np.ndarray[Any, Any]:
        """Rows that are alive, in the order in which they go on."""
        return np.flatnonzero(alive)

    def _keep(self, rows: np.ndarray[Any, Any], values_B: torch.Tensor) -> torch.Tensor:
        """Drop all other rows; returns what these have of ``values_B``."""
        self.request, self.count, self.held = self.request[rows], self.count[rows], self.held[rows]
        if not len(rows):
            self.rows = self.cache = None
            return values_B[:0]
        keep = on_device(rows, self.device)
        self.width = self._keep_cached(rows, int(self.held.max()))
        assert self.rows is not None
        self.rows = self.rows.select(keep)
        return values_B[keep]

    def _keep_cached(self, rows: np.ndarray[Any, Any], last: int) -> int:
        """Keep some rows of the cache and of their positions the ``last``; returns how many positions are left."""
        return select_rows(self.cache, on_device(rows, self.device), last)

    def _feed(self, tokens_B: torch.Tensor) -> None:
        rows = self.rows
        assert rows is not None
        mask_BL = None
        if self.held.min() < self.width:
            columns_L = torch.arange(self.width + 1, device=self.device)
            mask_BL = (columns_L[None, :] >= self.width - rows.held_B[:, None]).long()
        positions_B = torch.minimum(rows.held_B, rows.last_B)
        self.logits_BV = self.forward(tokens_B[:, None], mask_BL, positions_B[:, None], self.cache)
        rows.held_B += 1
        self.held, self.width = self.held + 1, self.width + 1


def limit_of(request: RolloutRequest, sampling: SamplingParams) -> int:
    return sampling.max_tokens if request.max_tokens is None else min(sampling.max_tokens, request.max_tokens)
