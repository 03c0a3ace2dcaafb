"""Room 5: from items to the batch that a loss consumes.

The forward goes through one module, so that DDP and sharded strategies see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlhf_core.batches import LossOutput, TokenBatch
from rlhf_core.functional.kl import kl_loss
from rlhf_core.policy.forward import completion_hidden, completion_logprobs
from rlhf_core.policy.forward_options import ALL, ForwardOptions
from rlhf_core.protocols import Loss
from rlhf_core.trainers.common.micro_batches import MicroBatcher
from rlhf_core.trainers.common.training_sample import Floats, TrainingSample


class PolicyModule(torch.nn.Module):
    """Policy and the way its logprobs are computed.

    Args:
        model: causal language model (possibly wrapped by peft).
        temperature: the rollouts' sampling temperature; logprobs mean the same thing on both sides.
        paths: optimisations of the forward.
        critic: gives the values, if the algorithm has one (``CriticAdvantage.critic``).
        on_policy_trunk: it is fed the policy's hidden states.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        temperature: float = 1.0,
        paths: ForwardOptions = ALL,
        critic: torch.nn.Module | None = None,
        on_policy_trunk: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.critic, self.on_policy_trunk = model, critic, on_policy_trunk
        self.temperature, self.paths = temperature, paths

    def forward(self, items: Sequence[TrainingSample]) -> TokenBatch:
        """Return the token batch of a micro-batch, shapes ``[B, T]``, right-padded."""
        out = completion_logprobs(
            self.model,
            [i.prompt_ids for i in items],
            [i.completion_ids for i in items],
            temperature=self.temperature,
            entropy=True,
            **self.paths.options,
        )
        device, width = out.logprobs_BT.device, out.logprobs_BT.shape[1]

        def grid(rows: Sequence[Any], dtype: type = np.float32) -> torch.Tensor:
            full = np.zeros((len(rows), width), dtype)
            for i, row in enumerate(rows):
                full[i, : len(row)] = row
            return torch.from_numpy(full).to(device)

        def optional(name: str) -> torch.Tensor | None:
            rows = [getattr(i, name) for i in items]
            return None if rows[0] is None else grid(rows)

        values_BT = None
        if self.critic is not None:
            hidden_NH = out.hidden_NH if self.on_policy_trunk else None
            values_N = self.critic([i.prompt_ids for i in items], [i.completion_ids for i in items], hidden_NH)
            values_BT = values_N.new_zeros(out.mask_BT.shape).masked_scatter(out.mask_BT, values_N)
        return TokenBatch(
            logprobs_BT=out.logprobs_BT,
            mask_BT=grid([i.mask_T for i in items], bool),
            advantages_BT=grid([i.advantages_T for i in items]),
            old_logprobs_BT=optional("old_T") if items[0].old_T is not None else out.logprobs_BT.detach(),
            ref_logprobs_BT=optional("ref_T"),
            behaviour_logprobs_BT=optional("behaviour_T"),
            entropy_BT=out.entropy_BT,
            values_BT=values_BT,
            old_values_BT=optional("old_values_T"),
            returns_BT=optional("returns_T"),
        )

    def logprobs(self, items: Sequence[TrainingSample], cut: MicroBatcher) -> list[Floats]:
        """Logprobs of each item's completion without gradient, one array ``[T]`` per item."""
        return self.measure(items, cut, entropy=False)[0]

    @torch.no_grad()
    def measure(
        self, items: Sequence[TrainingSample], cut: MicroBatcher, *, entropy: bool
    ) -> tuple[list[Floats], list[Floats]]:
        """Logprobs and, if asked for, entropies of each item's completion, one array ``[T]`` per item each."""
        logprobs: dict[int, Floats] = {}
        entropies: dict[int, Floats] = {}
        for part in cut(items):
            micro = [items[i] for i in part]
            out = completion_logprobs(
                self.model,
                [i.prompt_ids for i in micro],
                [i.completion_ids for i in micro],
                temperature=self.temperature,
                entropy=entropy,
                **self.paths.options,
            )
            logprobs |= zip(part, _rows(out.logprobs_BT, micro))
            entropies |= {} if out.entropy_BT is None else zip(part, _rows(out.entropy_BT, micro))
        return [logprobs[n] for n in range(len(items))], [entropies[n] for n in range(len(entropies))]

    @torch.no_grad()
    def values(self, items: Sequence[TrainingSample], cut: MicroBatcher) -> list[np.ndarray[Any, Any]]:
        """The critic's values before each token and after the last, without gradient: one array ``[T + 1]`` per item.

        The policy's hidden states are computed only if the critic wants them.
        """
        assert self.critic is not None
        rows: dict[int, np.ndarray[Any, Any]] = {}
        for part in cut(items):
            micro = [items[i] for i in part]
            prompts = [i.prompt_ids for i in micro]
            longer = [(*i.completion_ids, 0) for i in micro]  # a last token is only predicted, never fed
            hidden_NH = (
                completion_hidden(self.model, prompts, longer, self.paths.share_prefix, self.paths.packing)
                if self.on_policy_trunk
                else None
            )
            flat = self.critic(prompts, longer, hidden_NH).float().cpu().numpy()
            rows |= zip(part, np.split(flat, np.cumsum([len(c) for c in longer])[:-1]))
        return [rows[n] for n in range(len(items))]


def _rows(values_BT: torch.Tensor, items: Sequence[TrainingSample]) -> list[Floats]:
    """MicroBatcher a grid into one array ``[T]`` per item."""
    grid = values_BT.float().cpu().numpy()
    return [grid[n, : len(i.completion_ids)].copy() for n, i in enumerate(items)]


class KLTerm:
    """Adds ``coefficient * KL(policy || reference)`` per token to any token loss.

    From the second update of a rollout batch on, the tokens come from an older policy: the term is weighted by the
    importance ratio to ``batch.old_logprobs_BT``.
    """

    def __init__(self, loss: Loss, coefficient: float, estimator: str) -> None:
        self.loss, self.coefficient, self.estimator = loss, coefficient, estimator

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return the loss with its KL term; ``batch.ref_logprobs_BT`` must be there."""
        out = self.loss(batch)
        assert batch.ref_logprobs_BT is not None, "KL in the loss needs reference logprobs"
        term = kl_loss(batch.logprobs_BT, batch.ref_logprobs_BT, self.estimator, old_logprobs_BT=batch.old_logprobs_BT)
        return LossOutput(out.loss + self.coefficient * term, out.metrics)
