"""From samples to the batch that a loss consumes, through one module, so that DDP and sharded strategies see it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from rlhf_core.models.layers.trunk_and_head import Ids, grid_index, on_device, pad_values, to_device_async
from rlhf_core.models.reference import Reference
from rlhf_core.models.slices import has_meta_weights
from rlhf_core.plugins.contracts import contract_error
from rlhf_core.plugins.strategy_protocols import ShardedForward, Strategy
from rlhf_core.training.forward import (
    ALL,
    CompletionLogprobs,
    ForwardOptions,
    completion_hidden,
    completion_logprobs,
    structure,
)
from rlhf_core.training.micro_batches import (
    Compute,
    MicroBatcher,
    NoGradForward,
    balance,
    by_tokens,
    flops,
    micro_batches_of_size,
)
from rlhf_core.training.rollout_batch import Floats, TrainingSample, head_masks, prompts_and_completions
from rlhf_core.types.batches import TokenBatch

R = TypeVar("R")


Measure = Literal["logprobs", "entropy", "values"]
LOGPROBS: frozenset[Measure] = frozenset({"logprobs"})


class TokenMeasures(NamedTuple):
    """What was measured of one completion; None where it was not wanted."""

    logprobs_T: Any
    entropy_T: Any
    values_T1: Any
    """Before each token and after the last."""


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
        out = self._logprobs(samples, entropy=True)
        device, width = out.logprobs_BT.device, out.logprobs_BT.shape[1]

        def grid(name: str, dtype: type = np.float32) -> torch.Tensor | None:
            rows = [getattr(sample, name) for sample in samples]
            if rows[0] is None:
                return None
            full = np.zeros((len(rows), width), dtype)
            for i, row in enumerate(rows):
                full[i, : len(row)] = row
            return to_device_async(torch.from_numpy(full), device)

        values_BT = None
        if self.critic is not None:
            hidden_NH = out.hidden_NH if self.on_policy_trunk else None
            values_N = self._values(*prompts_and_completions(samples), hidden_NH)
            values_BT = pad_values(values_N, [len(i.completion_ids) for i in samples])
        mask_BT, advantages_BT = grid("mask_T", bool), grid("advantages_T")
        assert mask_BT is not None
        assert advantages_BT is not None
        return TokenBatch(
            logprobs_BT=out.logprobs_BT,
            mask_BT=mask_BT,
            advantages_BT=advantages_BT,
            old_logprobs_BT=out.logprobs_BT.detach() if samples[0].old_T is None else grid("old_T"),
            ref_logprobs_BT=grid("ref_T"),
            behaviour_logprobs_BT=grid("behaviour_T"),
            entropy_BT=out.entropy_BT,
            values_BT=values_BT,
            old_values_BT=grid("old_values_T"),
            returns_BT=grid("returns_T"),
        )

    def _logprobs(
        self, samples: Sequence[TrainingSample], *, entropy: bool, model: torch.nn.Module | None = None
    ) -> CompletionLogprobs:
        out = completion_logprobs(
            self.model if model is None else model,
            *prompts_and_completions(samples),
            temperature=self.temperature,
            entropy=entropy,
            masks=head_masks(samples),
            **self.options.as_arguments,
        )
        return by_episode(out, samples)

    def measure(
        self, samples: Sequence[TrainingSample], want: Set[Measure], model: torch.nn.Module | None = None
    ) -> list[TokenMeasures]:
        """What is wanted of each completion of one micro-batch, as arrays; call it without gradient.

        Tokens of an episode that the policy did not choose get 0, as a rollout has them. The policy's hidden states
        are computed for ``values`` only if the critic wants them.

        Args:
            samples: of the micro-batch.
            want: ``logprobs``, ``entropy`` (never alone) and ``values``, the critic's.
            model: instead of the policy, at its temperature and with its options; None takes the policy.
        """
        logprobs = entropies = values = [None] * len(samples)
        if "logprobs" in want:
            out = self._logprobs(samples, entropy="entropy" in want, model=model)
            logprobs = _rows(out.logprobs_BT, samples)
            entropies = entropies if out.entropy_BT is None else _rows(out.entropy_BT, samples)
        if "values" in want:
            prompts, longer = prompts_and_completions(samples)
            for n in np.cumsum([len(i.contexts) + 1 for i in samples]) - 1:
                longer[n] = (*longer[n], 0)  # a last token is only predicted, never fed
            hidden_NH = None
            if self.on_policy_trunk:
                hidden_NH = completion_hidden(
                    self.model, prompts, longer, self.options.share_prefix, self.options.packing
                )
            flat = self._values(prompts, longer, hidden_NH).float().cpu().numpy()
            values = np.split(flat, np.cumsum([len(i.completion_ids) + 1 for i in samples])[:-1])
        return [TokenMeasures(*row) for row in zip(logprobs, entropies, values)]

    def _values(self, prompts: Ids, completions: Ids, hidden_NH: torch.Tensor | None) -> torch.Tensor:
        """The critic's ``values_N``; fewer or more would be laid over other tokens without an error."""
        assert self.critic is not None
        values_N, count = self.critic(prompts, completions, hidden_NH), sum(map(len, completions))
        if tuple(values_N.shape) != (count,):
            critic = f"critic {type(self.critic).__name__}"
            raise contract_error(critic, f"values of shape {tuple(values_N.shape)}", f"shape ({count},), one per token")
        return values_N


class PolicyMicroBatcher:
    """Cuts the samples of one policy by sequences, or into a ``budget`` of positions of one forward."""

    def __init__(self, module: PolicyModule, micro_batch_size: int, budget: int | None, width: int) -> None:
        self.module, self.budget, self.width = module, budget, width
        self._in_order = micro_batches_of_size(micro_batch_size)

    def __call__(self, samples: Sequence[TrainingSample]) -> list[list[int]]:
        """Indices of each micro-batch."""
        if self.budget is None:
            return self._in_order(samples)
        return by_tokens(samples, self.budget, self.module.options, self.width)

    def cost(self, group: Sequence[TrainingSample]) -> float:
        """Work of a group, by which groups are shared out; alike for all where they are shared out by number."""
        return 1.0 if self.budget is None else flops(group, self.module.options.share_prefix, self.width)

    def share(self, groups: Sequence[int], costs: Sequence[float], world_size: int) -> list[list[int]]:
        """Which of these groups each rank trains on, ascending: in equal numbers, or of equal work (``costs`` are those
        of every group) where there is a budget."""
        if self.budget is None:
            return [part.tolist() for part in np.array_split(groups, world_size)]
        return [[groups[n] for n in part] for part in balance([costs[group] for group in groups], world_size)]


class ReferencePolicy:
    """The reference beside the trained policy; all ranks make it together, after the copy's weights were loaded."""

    def __init__(
        self, reference: Reference, policy: Any, trained: torch.nn.Module, strategy: Strategy, sync_every: int
    ) -> None:
        self.reference, self.policy, self.trained, self.strategy = reference, policy, trained, strategy
        self.sync_every = sync_every
        self._sharded = isinstance(strategy, ShardedForward)
        if self._sharded and not reference.adapter and not has_meta_weights(reference.model):
            structure(reference.model)  # tries a few forwards on the model, while it is whole
        module = trained if reference.adapter else PolicyModule(reference.model)
        self._no_grad = NoGradForward(strategy, module, frozen=not reference.adapter)

    def rows(self, samples: Sequence[Any], micro_batcher: MicroBatcher | int, compute: Compute[R]) -> list[R]:
        """``compute(module, samples)`` of the reference, one row per sample; all ranks call it, samples or none."""
        return self._no_grad.rows(samples, micro_batcher, compute, self.reference.active())

    def logprobs(
        self, samples: Sequence[TrainingSample], module: PolicyModule, micro_batcher: MicroBatcher | int
    ) -> list[Floats]:
        """Logprobs ``[T]`` of each completion, at the temperature and with the forward options of ``module``."""

        def compute(reference: Any, micro: Sequence[TrainingSample]) -> list[Floats]:
            return [row.logprobs_T for row in module.measure(micro, LOGPROBS, reference.model)]

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
    positions = grid_index([len(c) for c in prompts_and_completions(samples)[1]], device)

    def grid(values_PT: torch.Tensor) -> torch.Tensor:
        return pad_values(values_PT[positions], sizes)

    entropy_BT = None if out.entropy_BT is None else grid(out.entropy_BT)
    return CompletionLogprobs(grid(out.logprobs_BT), entropy_BT, mask_BT, out.hidden_NH)


def _rows(values_BT: torch.Tensor, samples: Sequence[TrainingSample]) -> list[Floats]:
    grid = values_BT.float().cpu().numpy()
    return [grid[n, : len(i.completion_ids)].copy() for n, i in enumerate(samples)]
