"""From samples with signals to the batch that the sum of their terms is computed from.

Suffixes: ``_B`` sequences of a micro-batch, ``_T`` completion tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from rlhf_core.losses import TokenBatch
from rlhf_core.models import on_device
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_plugin_algorithms.check import Terms
from rlhf_plugin_algorithms.shares import Totals, learned
from rlhf_plugin_algorithms.signals import Bools, Example, Floats

NOWHERE: Bools = np.zeros(0, bool)


@dataclass(frozen=True, slots=True)
class SignalSample(TrainingSample):
    """A completion or an example; ``mask_T`` are the tokens that any term counts."""

    sampled_T: Bools = field(default_factory=NOWHERE.copy)
    """True where the policy chose the token and it counts in the run's metrics."""
    factors: Mapping[str, Floats] = field(default_factory=dict)
    """Component -> what its loss at each token is multiplied by, 0 where it does not count."""
    algorithm: int = 0
    taught: Any = None
    """The same completion as a teacher takes it; None without one."""


@dataclass(frozen=True, slots=True)
class SignalBatch(TokenBatch):
    """What the loss of signals sees."""

    reduced_BT: torch.Tensor | None = None
    """True where any term counts; the core's mean is over these."""
    factors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Of the components that any sequence of the micro-batch has."""
    divergence_BT: torch.Tensor | None = None
    """From a teacher, with gradient; 0 elsewhere."""


class SignalModule(PolicyModule):
    """The policy's module, which hands factors on; and the teachers, which no optimizer and no strategy knows of."""

    def __init__(self, model: Any, temperature: float, options: Any, teachers: Mapping[int, Any]) -> None:
        super().__init__(model, temperature, options)
        self.teachers = {position: teacher.beside(self) for position, teacher in teachers.items()}
        """Position of an algorithm -> the module that compares the policy with its teacher."""

    def forward(self, samples: Sequence[Any], compute: Any = None) -> Any:
        """The :class:`SignalBatch` of a micro-batch, or ``compute(self, samples)``."""
        batch = super().forward(samples, compute)
        if compute is not None or not isinstance(samples[0], SignalSample):
            return batch
        device, shape = batch.logprobs_BT.device, tuple(batch.logprobs_BT.shape)
        names = dict.fromkeys(name for sample in samples for name in sample.factors)
        known: dict[str, Any] = {one.name: getattr(batch, one.name) for one in fields(TokenBatch)}
        known["mask_BT"] = _grid([s.sampled_T for s in samples], bool, shape, device)
        return SignalBatch(
            **known,
            reduced_BT=batch.mask_BT,
            factors={n: _grid([s.factors.get(n, ()) for s in samples], np.float32, shape, device) for n in names},
            divergence_BT=self._divergence(samples, shape, device),
        )

    def _divergence(self, samples: Sequence[SignalSample], shape: Any, device: torch.device) -> torch.Tensor | None:
        """Of the sequences that have a teacher."""
        total_BT: torch.Tensor | None = None
        for position, compared in self.teachers.items():
            rows = [n for n, s in enumerate(samples) if s.taught is not None and s.algorithm == position]
            if rows:
                compared.options, compared.temperature = self.options, self.temperature
                part_BT = compared([samples[n].taught for n in rows]).divergence_BT
                wide_BT = torch.nn.functional.pad(part_BT, (0, shape[1] - part_BT.shape[1]))
                full_BT = wide_BT.new_zeros(shape).index_copy(0, on_device(rows, device), wide_BT)
                total_BT = full_BT if total_BT is None else total_BT + full_BT
        return total_BT


def _grid(rows: Sequence[Any], dtype: Any, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    full = np.zeros(shape, dtype)
    for n, row in enumerate(rows):
        full[n, : len(row)] = row
    return on_device(full, device, None)


class Scale:
    """Makes of the core's mean over all tokens that count each component's over its own, as ``trainer.reduction`` says:
    ``token_mean`` divides by tokens, the other two by sequences."""

    def __init__(self, reduction: str, totals: Totals) -> None:
        self.reduction, self.totals = reduction, totals

    def __call__(self, name: str, mask_T: Bools, union_T: Bools) -> float:
        """Factor of one component of one sequence; exactly 1 where it is alone."""
        totals = self.totals
        if self.reduction == "token_mean":
            return totals.all_tokens / totals.tokens[name]
        factor = totals.all_sequences / totals.sequences[name]
        return factor * (union_T.sum() / mask_T.sum()) if self.reduction == "sequence_mean" else factor


def of_rollout(sample: TrainingSample, terms: Terms, scale: Scale, algorithm: int) -> SignalSample:
    """A completion with its signals; the policy gradient's weights are its advantages already."""
    union_T = np.logical_or.reduce([term.mask_T for term in terms.values()])
    factors: dict[str, Floats] = {}
    for name, term in terms.items():
        weights_T = term.mask_T if name == "policy_gradient" else term.weights_T
        factors[name] = np.asarray(weights_T * np.float32(scale(name, term.mask_T, union_T)), np.float32)
    values: dict[str, Any] = {one.name: getattr(sample, one.name) for one in fields(TrainingSample)}
    return SignalSample(**{**values, "mask_T": union_T}, sampled_T=sample.mask_T, factors=factors, algorithm=algorithm)


def of_example(example: Example, scale: Scale, like: TrainingSample | None) -> SignalSample:
    """A demonstration, with the arrays that the rollouts have."""
    mask_T = learned(example)
    zeros_T = np.zeros(len(mask_T), np.float32)
    optional = ("behaviour_T", "old_T", "ref_T", "old_values_T", "returns_T")
    like_T: dict[str, Any] = {n: zeros_T for n in optional if like is not None and getattr(like, n) is not None}
    factor = np.float32(example.weight * scale("cross_entropy", mask_T, mask_T))
    return SignalSample(
        name=example.name,
        prompt_ids=tuple(example.prompt_ids),
        completion_ids=tuple(example.completion_ids),
        mask_T=mask_T,
        advantages_T=zeros_T,
        sampled_T=np.zeros(len(mask_T), bool),
        factors={"cross_entropy": np.where(mask_T, factor, np.float32(0))},
        **like_T,
    )
