"""The native engine: samples from the policy's own weights with a hand-written decode loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rlhf_core.errors import ConfigError
from rlhf_core.models.prompt_format import end_ids
from rlhf_core.policy.forward import pad, take_apart
from rlhf_core.rollout.cache import make_cache
from rlhf_core.rollout.sampling import draw, uniforms
from rlhf_core.types import FinishReason, Rollout, RolloutRequest, SamplingParams

COMPACT_BELOW = 0.75
"""Finished sequences leave the batch once fewer than this share of it is alive."""


class NativeEngine:
    """Prompts are read once per group; finished sequences leave the batch.

    Args:
        model: causal language model, possibly peft-wrapped.
        tokenizer: its tokenizer.
        context: prompt + completion tokens that fit.
        max_concurrent: sequences decoded together.
    """

    def __init__(self, model: Any, tokenizer: Any, context: int, max_concurrent: int = 256) -> None:
        self.model, self.tokenizer, self.context, self.max_concurrent = model, tokenizer, context, max_concurrent
        self.ends = end_ids(model.get_base_model() if hasattr(model, "get_base_model") else model, tokenizer)

    def generate(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int) -> list[Rollout]:
        """Sample one completion per request, in order.

        Raises:
            ConfigError: a prompt and ``max_tokens`` do not fit the context.
        """
        for r in requests:
            if len(r.prompt_ids) + sampling.max_tokens > self.context:
                raise ConfigError(
                    f"prompt '{r.prompt_id}' has {len(r.prompt_ids)} tokens; with max_tokens {sampling.max_tokens} "
                    f"that is more than the model's context of {self.context}", fix="lower max_tokens or shorten the prompt")
        out: list[Rollout] = []
        with self._inference():
            for start in range(0, len(requests), self.max_concurrent):
                out += self._wave(requests[start : start + self.max_concurrent], sampling, policy_version)
        return out

    @contextmanager
    def _inference(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        with torch.inference_mode():
            yield
        self.model.train(training)

    def _wave(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, version: int) -> list[Rollout]:
        wave = Wave(self, requests, sampling)
        for step in range(sampling.max_tokens):
            if not wave.advance(step):
                break
        return [wave.rollout(i, r, version) for i, r in enumerate(requests)]


class Wave:
    """Sequences being decoded together. ``alive`` maps live rows to requests."""

    def __init__(self, engine: NativeEngine, requests: Sequence[RolloutRequest], sampling: SamplingParams) -> None:
        self.engine, self.sampling = engine, sampling
        self.device = next(engine.model.parameters()).device
        self.tokens: list[list[int]] = [[] for _ in requests]
        self.logprobs: list[list[float]] = [[] for _ in requests]
        self.finish = [FinishReason.LENGTH] * len(requests)
        self.alive = np.arange(len(requests))
        self.done = np.zeros(len(requests), bool)
        self.uniforms = uniforms([r.seed for r in requests], sampling.max_tokens)
        self.banned = torch.tensor(engine.ends, device=self.device) if engine.ends else None
        self.parts = take_apart(engine.model)
        self.tail = max((len(s) for s in sampling.stop), default=0) + 4
        self._prefill(requests)

    def _prefill(self, requests: Sequence[RolloutRequest]) -> None:
        """Read each distinct prompt once and give every request its own copy of the cache."""
        distinct = list(dict.fromkeys(r.prompt_ids for r in requests))
        place = {p: i for i, p in enumerate(distinct)}
        ids_PL, mask_PL = pad(distinct, self.device, left=True)
        config = (self.parts.trunk if self.parts else self.engine.model).config
        self.cache = make_cache(config)
        logits_PV = self._forward(ids_PL, mask_PL, (mask_PL.cumsum(-1) - 1).clamp(min=0))
        rows = torch.tensor([place[r.prompt_ids] for r in requests], device=self.device)
        if len(distinct) < len(requests) or len(requests) > 1:
            self.cache.batch_select_indices(rows)
        self.logits_BV = logits_PV[rows]
        self.mask_BL = mask_PL[rows]
        self.positions_B = self.mask_BL.sum(-1)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits ``[B, V]`` after the last token of each row."""
        kwargs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "past_key_values": self.cache,
                  "use_cache": True}
        if self.parts is not None:
            return self.parts.head(self.parts.trunk(**kwargs).last_hidden_state[:, -1])
        return self.engine.model(**kwargs).logits[:, -1]

    def advance(self, step: int) -> bool:
        """Draw one token for every live sequence; return whether any is still alive."""
        banned = self.banned if step < self.sampling.min_tokens else None
        uniform_B = self.uniforms[self.alive, step].to(self.device)
        tokens_B, logprobs_B = draw(self.logits_BV, uniform_B, self.sampling, banned)
        drawn, logprobs = tokens_B.tolist(), logprobs_B.tolist()
        for row, i in enumerate(self.alive):
            if not self.done[i]:
                self.tokens[i].append(drawn[row])
                self.logprobs[i].append(logprobs[row])
                self._check_end(i, drawn[row], step)
        if self.done.all():
            return False
        if step + 1 < self.sampling.max_tokens:
            self._feed(tokens_B)
        return True

    def _check_end(self, i: int, token: int, step: int) -> None:
        if token in self.engine.ends:
            self.finish[i], self.done[i] = FinishReason.EOS, True
        elif self.sampling.stop and step + 1 >= self.sampling.min_tokens:
            text = self.engine.tokenizer.decode(self.tokens[i][-self.tail :])
            if any(s in text for s in self.sampling.stop):
                self.finish[i], self.done[i] = FinishReason.STOP, True

    def _feed(self, tokens_B: torch.Tensor) -> None:
        """Drop finished rows when enough are, then run the drawn tokens."""
        live = ~self.done[self.alive]
        if live.mean() < COMPACT_BELOW:
            rows = torch.from_numpy(np.flatnonzero(live)).to(self.device)
            self.cache.batch_select_indices(rows)
            tokens_B, self.mask_BL, self.positions_B = tokens_B[rows], self.mask_BL[rows], self.positions_B[rows]
            self.alive = self.alive[live]
        self.mask_BL = torch.cat([self.mask_BL, self.mask_BL.new_ones((len(tokens_B), 1))], -1)
        self.logits_BV = self._forward(tokens_B.unsqueeze(-1), self.mask_BL, self.positions_B.unsqueeze(-1))
        self.positions_B = self.positions_B + 1

    def rollout(self, i: int, request: RolloutRequest, version: int) -> Rollout:
        """The finished completion of request i."""
        return Rollout(
            prompt_id=request.prompt_id, group_index=request.group_index, prompt_ids=request.prompt_ids,
            completion_ids=tuple(self.tokens[i]), logprobs_T=np.array(self.logprobs[i], np.float32),
            policy_version=version, finish_reason=self.finish[i],
            text=self.engine.tokenizer.decode(self.tokens[i], skip_special_tokens=True), seed=request.seed)
