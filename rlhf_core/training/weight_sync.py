"""Brings the policy's weights to the rollout engine or to a copy, and compares the logprobs of engine and trainer."""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from rlhf_core.distributed.group import engine_on_every_rank
from rlhf_core.distributed.whole_weights import ShardedWeights, gather_weights
from rlhf_core.models.layers.trunk_and_head import compute_dtype
from rlhf_core.plugins.component import ComponentConfig, import_component
from rlhf_core.plugins.strategy_protocols import Collectives, ShardedForward, Strategy, TensorGathering
from rlhf_core.types.errors import EngineUnavailable, RlhfError


class SamplerPolicy:
    """The policy as one of its versions; what is not trained (under LoRA: all but the adapters) is shared with it."""

    def __init__(self, policy: Any) -> None:
        shared = {id(p): p for p in policy.parameters() if not p.requires_grad}
        self.model = copy.deepcopy(policy, shared)
        """To be sampled from. Trained weights stay marked as such, for autocast keeps casts of no others."""
        self.model.eval()
        self.names = trained_names(self.model)

    def load(self, weights: Mapping[str, Any]) -> None:
        """Let the copy be the version of a :meth:`WeightSync.snapshot`."""
        parameters = dict(self.model.named_parameters())  # those of a model without weights are replaced
        with torch.no_grad():
            for name in self.names:
                parameters[name].copy_(weights[name])


def trained_names(policy: Any) -> list[str]:
    """Names of the parameters that are trained."""
    return [name for name, parameter in policy.named_parameters() if parameter.requires_grad]


WholeWeights = Callable[[], AbstractContextManager[None]]
"""Context in which the policy's weights are whole on every rank."""


class Written(NamedTuple):
    """A version that rank 0 has written for an engine."""

    record: Any
    """What the engine says of it, the same on every rank."""


Snapshot = Mapping[str, Any] | Written
"""Name -> tensor of every trained weight, or where the engine finds them."""


class WeightSync:
    """Copies the policy's trained weights to the sampler's copy, or hands them to an engine that keeps its own.

    An engine's ``update_weights(version, tensors)`` is called before the first batch of each version, with
    ``in_flight`` at any time (ADR 0020). On a strategy that divides weights ``write_weights(version, weights)`` is
    called on rank 0 alone, and ``take_weights(version, record)`` on every rank with what it returned (ADR 0022). An
    engine whose ``copies_weights_as`` is a type is done with the weights when ``update_weights`` returns, and looks up
    the same in the same order on every rank: it gets no clones, and each weight of a divided policy in that type. An
    engine with ``needs_ranks`` is first given collectives of the calling thread, by ``use_ranks(ranks)``. ``names`` are
    the trained weights' before a strategy wrapped the policy; without a ``sampler`` the policy itself is sampled from.
    """

    def __init__(
        self,
        policy: Any,
        whole_weights: WholeWeights,
        sampler: SamplerPolicy | None,
        engine: Any,
        names: Sequence[str],
        strategy: Strategy | None = None,
    ) -> None:
        self.policy, self.whole_weights, self.sampler = policy, whole_weights, sampler
        self._names = list(names)
        self._update_weights = getattr(engine, "update_weights", None)
        self.engine = engine
        self._shards = strategy if isinstance(strategy, ShardedForward) and hasattr(engine, "write_weights") else None
        """Gives rank 0 the weights one by one; None where the engine is handed all of them."""
        self._dtype = getattr(engine, "copies_weights_as", None)
        self.in_flight = bool(getattr(engine, "in_flight", False))
        self._strategy = strategy
        self.needs_ranks = strategy is not None and bool(getattr(engine, "needs_ranks", False))
        """Every thread that calls :meth:`load` needs collectives."""
        self._release_memory = getattr(engine, "release_memory", None)
        self._published: int | None = None
        self._written: tuple[int, Written] | None = None

    def snapshot(self, version: int) -> Snapshot:
        """The trained weights as they are now, cloned, or written by rank 0; all ranks call it."""
        if self._shards is not None:
            return self._write(version, self._shards)
        with self.whole_weights(), torch.no_grad():
            parameters = dict(self.policy.named_parameters())
            return {name: parameters[name].detach().clone() for name in self._names}

    def _write(self, version: int, strategy: Strategy) -> Written:
        if self._written is None or self._written[0] != version:
            records: list[Any] = []
            gather_weights(
                strategy, self.policy, lambda weights: records.append(self.engine.write_weights(version, weights))
            )
            record = strategy.gather_objects(records[0] if records else None)[0]
            self._written = version, Written(record)
        return self._written[1]

    def load(self, version: int, weights: Snapshot, ranks: Collectives | None = None) -> None:
        """Let the engine have the weights of :meth:`snapshot`."""
        if self.needs_ranks:
            self.engine.use_ranks(self._strategy if ranks is None else ranks)
        if isinstance(weights, Written):
            if version != self._published:
                self.engine.take_weights(version, weights.record)
                self._published = version
            return
        if self.sampler is not None:
            self.sampler.load(weights)
        if self._update_weights is not None and version != self._published:
            self._update_weights(version, weights)
            self._published = version

    def sync(self, version: int) -> None:
        """Let the engine have the policy's weights as they are now; nothing where it has them already."""
        if self.sampler is not None or (self._update_weights is not None and version != self._published):
            self.load(version, self.snapshot(version) if self._dtype is None else self._views(self._dtype))

    def _views(self, dtype: torch.dtype) -> Mapping[str, Any]:
        """The trained weights themselves; on a strategy that divides them each is gathered when it is looked up."""
        parameters = dict(self.policy.named_parameters())
        views = {name: parameters[name] for name in self._names}
        if isinstance(self._strategy, ShardedForward):
            assert isinstance(self._strategy, TensorGathering)
            return ShardedWeights(self._strategy, views, dtype)
        return views

    def release_memory(self) -> None:
        """Let an engine that shares the policy's device give memory back; weights that it gave up are sent again."""
        if self._release_memory is not None and self._release_memory():
            self._published = None


def sync_weights(weight_sync: WeightSync, version: int, comm: Collectives) -> None:
    """Bring the policy to the engine, before a step changes anything; all ranks call it together."""
    try:
        with engine_on_every_rank(comm):
            weight_sync.sync(version)
    except EngineUnavailable as error:
        error.unchanged = True
        raise


def weights_to_sample(engine: Any, whole_weights: WholeWeights) -> WholeWeights:
    """Context of sampling: the policy's weights whole, unless the engine keeps its own."""
    return nullcontext if hasattr(engine, "update_weights") else whole_weights


def keeps_own_weights(engine: Any) -> bool:
    """Whether the engine of a Config has ``update_weights``; False where a method builds it, for that is not known."""
    named = type(engine).build is ComponentConfig.build
    return named and hasattr(import_component(type(engine)), "update_weights")


log = logging.getLogger("rlhf")

DRIFT_SPREAD = ("_drift/squares", "_drift/products", "_drift/lengths")
"""Over sequences: d * d, d * t and t * t of summed drift d and tokens t. A name that begins with ``_`` is a sum for
the trainer, and no metric."""
TOLERANCE = 0.02
"""Mean absolute difference in nats that different kernels may cause in bfloat16; fp32 stays below 1e-4."""
LEAST = 1e-3
"""Difference that is never worth a word, nats."""
GROWTH = 5.0
"""Times the difference of the first batch compared that later ones may reach, up to the tolerance."""
BEYOND_ROUNDING = 0.1
"""Difference that no rounding in bfloat16 makes of a whole batch; in float32 ``TOLERANCE`` is as far from any."""
GROSS = 0.5
"""Difference at which no correction helps: a typical ratio of a token is off by 1.6."""
STANDARD_ERRORS = 4.0
Action = Literal["stop", "warn", "off"]


@dataclass(frozen=True)
class Drift:
    """|engine's logprob - trainer's| per token."""

    mean: float
    error: float
    """Standard error of the mean; tokens of one sequence are not independent."""

    @classmethod
    def of(cls, sums: Mapping[str, tuple[float, float]]) -> Drift | None:
        """From the sums of one update; None where nothing was compared."""
        total, weight = sums.get("drift/mean_abs", (0.0, 0.0))
        if not weight or any(name not in sums for name in DRIFT_SPREAD):
            return None
        squares, products, lengths = (sums[name][0] for name in DRIFT_SPREAD)
        mean = total / weight
        scatter = squares - 2 * mean * products + mean**2 * lengths  # sum over sequences of (total - mean * tokens)^2
        return cls(mean, math.sqrt(max(0.0, scatter)) / weight)

    def above(self, limit: float) -> bool:
        """Whether more than chance puts the mean above a limit."""
        return self.mean - STANDARD_ERRORS * self.error > limit


def drift_bound(engine: Any, model: torch.nn.Module, *, corrected: bool) -> float:
    """Nats per token at which a run ends: where rounding cannot be the cause, by what engine (its ``dtype``, if it has
    one) and policy compute in; more where importance weights correct for the difference.
    """
    if corrected:
        return GROSS
    exact = compute_dtype(model) == torch.float32 and str(getattr(engine, "dtype", "float32")).endswith("float32")
    return TOLERANCE if exact else BEYOND_ROUNDING


class DriftCheck:
    """Warns when engine and trainer part, again whenever the difference has doubled; stops beyond ``bound`` nats."""

    def __init__(self, action: Action, counts: Counter[str], bound: float = GROSS) -> None:
        self.action, self.counts, self.bound = action, counts, bound
        self.first: float | None = None
        self.compared = False
        self.warned = 0.0

    def __call__(self, step: int, drift: Drift | None, staleness: int = 0) -> None:
        """Judge one update; every rank has the same numbers."""
        if drift is None or self.action == "off":
            return
        limit = GROSS if staleness else self._limit()
        if drift.above(limit) and drift.mean > 2 * self.warned:
            self.warned = drift.mean
            self.counts["drift_warnings"] += 1
            log.warning("%s", self._message(step, drift, limit, staleness))
        if not staleness and self.action == "stop" and drift.above(self.bound):
            raise RlhfError(
                f"step {step}: the rollout engine's logprobs are {drift.mean:.2g} nats per token from the trainer's",
                why=f"more than {self.bound:g} is not rounding: the completions are not from the policy that learns "
                f"from them. {self._cause()}",
                fix="repair the engine and resume from the last checkpoint; --set trainer.drift_check=warn goes on",
            )
        if not staleness and not self.compared:
            self.first, self.compared = drift.mean, True

    def _limit(self) -> float:
        return TOLERANCE if self.first is None else min(TOLERANCE, max(LEAST, GROWTH * self.first))

    def _message(self, step: int, drift: Drift, limit: float, staleness: int) -> str:
        if staleness:
            return (
                f"step {step}: the policy is {drift.mean:.2f} nats per token from the one that sampled, {staleness} "
                "updates ago. Either it learns too fast for rollouts that old (trainer.optimizer.learning_rate, "
                "trainer.rollouts.max_staleness), or what samples does not get the weights it says it has"
            )
        where = "" if self.compared else " on the first batch"
        return (
            f"step {step}: the rollout engine's logprobs differ from the trainer's by {drift.mean:.2g} +- "
            f"{drift.error:.1g} nats per token{where} (at most {limit:.2g} expected): importance ratios will be wrong. "
            f"{self._cause()}"
        )

    def _cause(self) -> str:
        if self.compared and self.first is not None and self.first <= TOLERANCE:
            return (
                f"They agreed to {self.first:.2g} before, so most likely the engine still samples from older weights: "
                "see that its weight sync arrives"
            )
        return (
            "Likely causes: another sampling temperature or truncation in the engine (trainer.sampling), stale engine "
            "weights, dropout left on, or a different dtype (model.dtype). What cannot be fixed can be corrected for: "
            "trainer.importance.mode=truncate"
        )

    def state_dict(self) -> dict[str, Any]:
        """What the next steps are compared with."""
        return {"first": self.first, "compared": self.compared, "warned": self.warned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.first, self.compared = state["first"], bool(state["compared"])
        self.warned = float(state["warned"])
