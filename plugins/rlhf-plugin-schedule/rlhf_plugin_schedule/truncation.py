"""Truncated sampling (``top_p``, ``top_k``, ``min_p``) in the update: log-probabilities over what each draw could
choose from, which the engine recorded. The set stays the one that was sampled with, however far the policy has moved.

Suffixes: ``_N`` tokens of a micro-batch, flat; ``_C`` those of one chunk; ``_M`` ids left to choose from, token after
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from rlhf_core.models.layers.chunked_head import CHUNK_BYTES, logits_logprobs
from rlhf_core.models.layers.trunk_and_head import check_length, on_device, pad_values, padded_logits, trunk_and_head
from rlhf_core.plugins.contracts import contract_error
from rlhf_core.training.forward import CompletionLogprobs, completion_hidden, structure
from rlhf_core.training.policy_module import PolicyModule, by_episode
from rlhf_core.training.rollout_batch import TrainingSample, prompts_and_completions


class TruncatedPolicy(PolicyModule):
    """A policy whose log-probabilities, entropies and reference's are those of the truncated distribution."""

    def _logprobs(
        self, samples: Sequence[TrainingSample], *, entropy: bool, model: torch.nn.Module | None = None
    ) -> CompletionLogprobs:
        model = self.model if model is None else model
        prompts, completions = prompts_and_completions(samples)
        check_length(model, max(len(p) + len(c[:-1]) for p, c in zip(prompts, completions)))
        device, sizes = next(model.parameters()).device, [len(c) for c in completions]
        hidden_NH: torch.Tensor | None = None
        if structure(model).split:
            options, head = self.options, trunk_and_head(model).head
            rows_NX = hidden_NH = completion_hidden(model, prompts, completions, options.share_prefix, options.packing)
        else:
            head, rows_NX = torch.nn.Identity(), padded_logits(model, prompts, completions)
        counts_N, ids_M = _support(samples)
        chosen = np.flatnonzero(counts_N)
        chosen_N = on_device(chosen, device)
        targets_N = on_device(np.array([t for c in completions for t in c])[chosen], device)
        logprobs_N, entropy_N = truncated_logprobs(
            rows_NX[chosen_N],
            head,
            targets_N,
            counts_N[chosen],
            on_device(ids_M, device),
            self.temperature,
            entropy=entropy,
            chunked=self.options.chunked_head,
        )
        mask_BT = torch.arange(max(sizes), device=device)[None, :] < on_device(sizes, device)[:, None]

        def grid(values_N: torch.Tensor) -> torch.Tensor:
            return pad_values(values_N.new_zeros(len(counts_N)).index_put((chosen_N,), values_N), sizes)

        entropy_BT = None if entropy_N is None else grid(entropy_N)
        return by_episode(CompletionLogprobs(grid(logprobs_N), entropy_BT, mask_BT, hidden_NH), samples)


def _support(samples: Sequence[TrainingSample]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """``(counts_N, ids_M)``: how many ids each token was chosen from (0: the policy did not choose it), and these."""
    counts: list[np.ndarray[Any, Any]] = []
    ids: list[np.ndarray[Any, Any]] = []
    for sample in samples:
        tokens = len(sample.completion_ids)
        if sample.support is None or not np.all(sample.support[:tokens][sample.mask_T]):
            raise contract_error(
                "the rollout engine, or the agent",
                f"rollout {sample.name} without the ids that each of its tokens was chosen from",
                "Rollout.support where SamplingParams.support asks for it",
            )
        counts.append(sample.support[:tokens])
        ids.append(sample.support[tokens:])
    return np.concatenate(counts), np.concatenate(ids)


def truncated_logprobs(
    hidden_NH: torch.Tensor,
    head: torch.nn.Module,
    targets_N: torch.Tensor,
    counts_N: np.ndarray[Any, Any],
    ids_M: torch.Tensor,
    temperature: float = 1.0,
    *,
    entropy: bool = False,
    chunked: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    r"""``(logprobs_N, entropy_N or None)``: :math:`z_y/\tau - \mathrm{logsumexp}_{v \in S}(z_v/\tau)`, S being a
    token's own ids; float32, nats, with gradient. A chunk of logits at a time, computed again in the backward pass.

    Args:
        hidden_NH: what the head makes logits of.
        head: to logits of the whole vocabulary.
        targets_N: the tokens that were drawn, each among its own ids.
        counts_N: how many of ``ids_M`` are each token's; at least 1.
        ids_M: these ids, token after token.
        temperature: the sampler's.
    """

    def compute(hidden_CH: torch.Tensor, targets_C: torch.Tensor, row_M: torch.Tensor, ids_M: torch.Tensor) -> Any:
        logits_CV = head(hidden_CH)
        open_CV = torch.zeros_like(logits_CV, dtype=torch.bool).index_put_((row_M, ids_M), torch.tensor(True))
        logits_CV = logits_CV.masked_fill(~open_CV, -torch.inf)
        return logits_logprobs(logits_CV, targets_C, temperature=temperature, entropy=entropy)

    vocabulary = int(getattr(head, "out_features", 0)) or hidden_NH.shape[-1]
    size = max(1, CHUNK_BYTES // (4 * vocabulary)) if chunked else max(1, len(targets_N))
    ends = np.cumsum([0, *counts_N])
    parts: list[Any] = []
    for start in range(0, max(1, len(targets_N)), size):
        C = slice(start, start + size)
        M = slice(int(ends[start]), int(ends[min(start + size, len(counts_N))]))
        row_M = on_device(np.repeat(np.arange(len(counts_N[C])), counts_N[C]), hidden_NH.device)
        parts.append(checkpoint(compute, hidden_NH[C], targets_N[C], row_M, ids_M[M], use_reentrant=False))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]) if entropy else None
