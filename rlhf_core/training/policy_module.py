"""From samples to the batch that a loss consumes: the policy's forward, the reference's, and what comes of them.

The forward goes through one module, so that DDP and sharded strategies see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np
import torch

from rlhf_core.models.layers.handed_over import handed_over, on_device
from rlhf_core.models.layers.padded import Ids, pad_values, row_places
from rlhf_core.models.reference import Reference
from rlhf_core.models.slices import has_no_weights
from rlhf_core.plugins.contracts import contract_error
from rlhf_core.plugins.protocols import ShardedForward, Strategy
from rlhf_core.training.forward import CompletionLogprobs, completion_hidden, completion_logprobs
from rlhf_core.training.forward_options import ALL, ForwardOptions
from rlhf_core.training.micro_batches import MicroBatcher
from rlhf_core.training.no_grad_forward import Compute, NoGradForward
from rlhf_core.training.structure import structure
from rlhf_core.training.training_sample import Floats, TrainingSample, head_masks, prompts_and_completions
from rlhf_core.types.batches import TokenBatch

R = TypeVar("R")


class PolicyModule(torch.nn.Module):
    """Policy and the way its logprobs are computed.

    Args:
        model: causal language model (possibly wrapped by peft).
        temperature: the rollouts' sampling temperature; logprobs mean the same thing on both sides.
        options: optimisations of the forward.
        critic: gives the values, if the algorithm has one (``CriticAdvantage.critic``).
        on_policy_trunk: it is fed the policy's hidden states.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        temperature: float = 1.0,
        options: ForwardOptions = ALL,
        critic: torch.nn.Module | None = None,
        on_policy_trunk: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.critic, self.on_policy_trunk = model, critic, on_policy_trunk
        self.temperature, self.options = temperature, options

    def forward(self, samples: Sequence[TrainingSample], compute: Compute[Any] | None = None) -> Any:
        """Return the :class:`TokenBatch` of a micro-batch, shapes ``[B, T]``, right-padded.

        With ``compute`` return ``compute(self, samples)`` instead: what it runs is then inside of this module's call,
        where a sharded strategy has its weights.
        """
        return self._batch(samples) if compute is None else compute(self, samples)

    def _batch(self, samples: Sequence[TrainingSample]) -> TokenBatch:
        out = completion_logprobs(
            self.model,
            *prompts_and_completions(samples),
            temperature=self.temperature,
            entropy=True,
            masks=head_masks(samples),
            **self.options.as_arguments,
        )
        out = by_episode(out, samples)
        device, width = out.logprobs_BT.device, out.logprobs_BT.shape[1]

        def grid(rows: Sequence[Any], dtype: type = np.float32) -> torch.Tensor:
            full = np.zeros((len(rows), width), dtype)
            for i, row in enumerate(rows):
                full[i, : len(row)] = row
            return handed_over(torch.from_numpy(full), device)

        def optional(name: str) -> torch.Tensor | None:
            rows = [getattr(i, name) for i in samples]
            return None if rows[0] is None else grid(rows)

        values_BT = None
        if self.critic is not None:
            hidden_NH = out.hidden_NH if self.on_policy_trunk else None
            values_N = self._values(*prompts_and_completions(samples), hidden_NH)
            values_BT = pad_values(values_N, [len(i.completion_ids) for i in samples])
        return TokenBatch(
            logprobs_BT=out.logprobs_BT,
            mask_BT=grid([i.mask_T for i in samples], bool),
            advantages_BT=grid([i.advantages_T for i in samples]),
            old_logprobs_BT=optional("old_T") if samples[0].old_T is not None else out.logprobs_BT.detach(),
            ref_logprobs_BT=optional("ref_T"),
            behaviour_logprobs_BT=optional("behaviour_T"),
            entropy_BT=out.entropy_BT,
            values_BT=values_BT,
            old_values_BT=optional("old_values_T"),
            returns_BT=optional("returns_T"),
        )

    def logprobs(self, samples: Sequence[TrainingSample], micro_batcher: MicroBatcher) -> list[Floats]:
        """Logprobs of each item's completion without gradient, one array ``[T]`` per item."""
        return self.measure(samples, micro_batcher, entropy=False)[0]

    @torch.no_grad()
    def measure(
        self, samples: Sequence[TrainingSample], micro_batcher: MicroBatcher, *, entropy: bool
    ) -> tuple[list[Floats], list[Floats]]:
        """Logprobs and, if asked for, entropies of each item's completion, one array ``[T]`` per item each.

        Tokens of an episode that the policy did not choose get 0, as a rollout has them.
        """
        rows: dict[int, tuple[Floats, Floats | None]] = {}
        for part in micro_batcher(samples):
            rows |= zip(part, self.measure_micro([samples[i] for i in part], entropy=entropy))
        return columns([rows[n] for n in range(len(samples))])

    def measure_micro(
        self, samples: Sequence[TrainingSample], *, entropy: bool = False, model: torch.nn.Module | None = None
    ) -> list[tuple[Floats, Floats | None]]:
        """Logprobs and, if asked for, entropies ``[T]`` of each completion of one micro-batch.

        Args:
            samples: of the micro-batch.
            entropy: whether it is asked for.
            model: instead of the policy, at its temperature and with its options; None takes the policy.
        """
        out = completion_logprobs(
            self.model if model is None else model,
            *prompts_and_completions(samples),
            temperature=self.temperature,
            entropy=entropy,
            masks=head_masks(samples),
            **self.options.as_arguments,
        )
        out = by_episode(out, samples)
        entropies = [None] * len(samples) if out.entropy_BT is None else _rows(out.entropy_BT, samples)
        return list(zip(_rows(out.logprobs_BT, samples), entropies))

    @torch.no_grad()
    def values(self, samples: Sequence[TrainingSample], micro_batcher: MicroBatcher) -> list[np.ndarray[Any, Any]]:
        """The critic's values before each token and after the last, without gradient: one ``[T + 1]`` per item."""
        rows: dict[int, np.ndarray[Any, Any]] = {}
        for part in micro_batcher(samples):
            rows |= zip(part, self.values_micro([samples[i] for i in part]))
        return [rows[n] for n in range(len(samples))]

    def values_micro(self, samples: Sequence[TrainingSample]) -> list[np.ndarray[Any, Any]]:
        """:meth:`values` of one micro-batch.

        The policy's hidden states are computed only if the critic wants them.
        """
        assert self.critic is not None
        prompts, longer = prompts_and_completions(samples)
        last = np.cumsum([len(i.contexts) + 1 for i in samples]) - 1
        for n in last:
            longer[n] = (*longer[n], 0)  # a last token is only predicted, never fed
        hidden_NH = (
            completion_hidden(self.model, prompts, longer, self.options.share_prefix, self.options.packing)
            if self.on_policy_trunk
            else None
        )
        flat = self._values(prompts, longer, hidden_NH).float().cpu().numpy()
        return np.split(flat, np.cumsum([len(i.completion_ids) + 1 for i in samples])[:-1])

    def _values(self, prompts: Ids, completions: Ids, hidden_NH: torch.Tensor | None) -> torch.Tensor:
        """The critic's ``values_N``; fewer or more would be laid over other tokens without an error."""
        assert self.critic is not None
        values_N, count = self.critic(prompts, completions, hidden_NH), sum(map(len, completions))
        if tuple(values_N.shape) != (count,):
            critic = f"critic {type(self.critic).__name__}"
            raise contract_error(critic, f"values of shape {tuple(values_N.shape)}", f"shape ({count},), one per token")
        return values_N


class ReferencePolicy:
    """The reference policy beside the one that is trained.

    Args:
        reference: a frozen copy, or the adapter switched off. All ranks construct this together, after the copy's
            weights were loaded: the strategy may shard it.
        policy: being trained.
        trained: the policy's prepared module; its part ``model`` is the policy.
        strategy: ranks, and where the weights are.
        sync_every: steps after which the policy becomes the reference; 0 never.
    """

    def __init__(
        self, reference: Reference, policy: Any, trained: torch.nn.Module, strategy: Strategy, sync_every: int
    ) -> None:
        self.reference, self.policy, self.trained, self.strategy = reference, policy, trained, strategy
        self.sync_every = sync_every
        self._sharded = isinstance(strategy, ShardedForward)
        if self._sharded and not reference.adapter and not has_no_weights(reference.model):
            structure(reference.model)  # tries a few forwards on the model, while it is whole
        module = trained if reference.adapter else PolicyModule(reference.model)
        self._no_grad = NoGradForward(strategy, module, frozen=not reference.adapter)

    def rows(self, samples: Sequence[Any], micro_batcher: MicroBatcher, compute: Compute[R]) -> list[R]:
        """One row per sample of what ``compute(module, samples)`` returns without gradient and dropout.

        ``module.model`` is the reference policy's; all ranks call this together, with none of their own maybe.
        """
        return self._no_grad.rows(samples, micro_batcher, compute, self.reference.active())

    def logprobs(
        self, samples: Sequence[TrainingSample], module: PolicyModule, micro_batcher: MicroBatcher
    ) -> list[Floats]:
        """Logprobs ``[T]`` of each completion, at the temperature and with the forward options of ``module``."""

        def compute(reference: Any, micro: Sequence[TrainingSample]) -> list[Floats]:
            return columns(module.measure_micro(micro, model=reference.model))[0]

        return self.rows(samples, micro_batcher, compute)

    def sync(self, step: int) -> dict[str, float]:
        """Become the policy as it is now, if this step ends so; return a metric that says it."""
        if self.sync_every == 0 or step % self.sync_every:
            return {}
        with nullcontext() if self._sharded else self.strategy.gathered(self.trained):
            self.reference.sync(self.policy)
        return {"reference_synced": 1.0}


def by_episode(out: CompletionLogprobs, samples: Sequence[TrainingSample]) -> CompletionLogprobs:
    """One row per episode: where a context was rewritten, the rows of its pieces end to end."""
    if not any(i.contexts for i in samples):
        return out
    device, sizes = out.mask_BT.device, [len(i.completion_ids) for i in samples]
    mask_BT = torch.arange(max(sizes), device=device)[None, :] < on_device(sizes, device)[:, None]
    places = row_places([len(c) for c in prompts_and_completions(samples)[1]], device)

    def grid(values_PT: torch.Tensor) -> torch.Tensor:
        return pad_values(values_PT[places], sizes)

    entropy_BT = None if out.entropy_BT is None else grid(out.entropy_BT)
    return CompletionLogprobs(grid(out.logprobs_BT), entropy_BT, mask_BT, out.hidden_NH)


def columns(rows: Sequence[tuple[Floats, Floats | None]]) -> tuple[list[Floats], list[Floats]]:
    """(Logprobs, entropies) of rows of :meth:`PolicyModule.measure_micro`; no entropies where none were asked for."""
    return [logprobs for logprobs, _ in rows], [entropies for _, entropies in rows if entropies is not None]


def _rows(values_BT: torch.Tensor, samples: Sequence[TrainingSample]) -> list[Floats]:
    """Cut a grid into one array ``[T]`` per item."""
    grid = values_BT.float().cpu().numpy()
    return [grid[n, : len(i.completion_ids)].copy() for n, i in enumerate(samples)]
