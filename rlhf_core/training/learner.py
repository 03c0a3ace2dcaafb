"""Micro-batches in, one optimizer update out; the loss has a *global* denominator, counted before any forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from rlhf_core.distributed.group import borrow_dummy_sample
from rlhf_core.distributed.optimizer import optimizer_of
from rlhf_core.models.layers.segments import repeatable_gradients
from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.plugins.loss_contract import checked_loss
from rlhf_core.plugins.protocols import Loss
from rlhf_core.plugins.strategy_protocols import NormPart, RunOptimizer, Strategy
from rlhf_core.runs.work import Advance
from rlhf_core.training.config import LoopSettings, OptimizerSettings
from rlhf_core.training.functional import bounded_ratio, reduce_loss
from rlhf_core.training.micro_batches import MicroBatcher, NoGradForward, micro_batches_of_size
from rlhf_core.training.optimizer import plan_optimizer, prepare_to_learn
from rlhf_core.training.weight_sync import DRIFT_SPREAD
from rlhf_core.types.batches import LossOutput
from rlhf_core.types.errors import TrainingDiverged

MetricSums = dict[str, tuple[float, float]]
"""Metric -> (sum, weight) over micro-batches and ranks."""
Observe = Callable[[Sequence[Any], Any, LossOutput], None]
"""(Samples, what the loss consumed, what it returned) of one micro-batch."""
MAXIMA = ("ratio_max",)
"""The largest over micro-batches, ranks and updates."""
COUNTS = ("train/tokens", "updates_skipped", "log_ratios_clamped", "kl_clamped")
"""Added over updates, and left out where their weight is 0; every other metric is a weighted mean."""


class Learner:
    """Makes updates with the optimizer that the strategy made.

    Args:
        module: prepared by the strategy; ``module(samples)`` returns the batch that the loss consumes.
        loss: unreduced.
        total_updates: for the learning-rate schedule.
        critic_updates: the first of them, in which the policy gets no update; its schedule has the rest.
        critic: part of the module outside the policy ``module.model``; its gradient is clipped apart.
        critic_rate: its learning rate; None takes the optimizer's.
        micro_batcher: makes micro-batches; None takes ``settings.micro_batch_size`` samples each, in order.
        optimizer: None makes it here, which a strategy that has to make it while sharding refuses (:meth:`preparing`).
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Loss,
        strategy: Strategy,
        settings: LoopSettings,
        total_updates: int,
        critic: torch.nn.Module | None = None,
        critic_rate: float | None = None,
        micro_batcher: MicroBatcher | None = None,
        critic_updates: int = 0,
        optimizer: RunOptimizer | None = None,
    ) -> None:
        self.module, self.loss, self.strategy, self.settings = module, checked_loss(loss, module), strategy, settings
        self.critic, self._constant_length = critic, settings.constant_length
        self.no_grad = NoGradForward(strategy, module)
        self.micro_batcher = micro_batcher or micro_batches_of_size(settings.micro_batch_size)
        self.critic_only_updates = 0
        """Updates so far in which only the critic learned; the policy's schedule begins after them."""
        self.optimizer = optimizer or optimizer_of(
            strategy, module, plan_optimizer(strategy.unwrap(module), settings.optimizer, critic, critic_rate)
        )
        if getattr(settings, "precision", "") == "fp16":
            self.optimizer = scheduler("scaled", "trainer.precision=fp16")()(self.optimizer)
        self._factor = lr_factor(settings.optimizer, total_updates - critic_updates)
        self._critic_factor = lr_factor(settings.optimizer, total_updates)
        self.version = 0
        """Updates made so far: the policy version."""

    @classmethod
    def preparing(
        cls,
        module: torch.nn.Module,
        loss: Loss,
        strategy: Strategy,
        settings: LoopSettings,
        total_updates: int,
        path: str = "",
    ) -> Learner:
        """Let the strategy prepare a module and make its optimizer; it may give weights to one that has none yet.

        One that gets its weights only now is then tried with ``path``, which is the model's as the user wrote it.

        Raises:
            ModelError: it is an encoder.
        """
        prepared, optimizer = prepare_to_learn(strategy, module, settings.optimizer, path=path)
        return cls(prepared, loss, strategy, settings, total_updates, optimizer=optimizer)

    def update(
        self,
        samples: Sequence[Any],
        totals: tuple[float, float] | None = None,
        *,
        critic_only: bool = False,
        observe: Observe | None = None,
    ) -> dict[str, float]:
        """Make one optimizer update from this rank's samples.

        Args:
            totals: (tokens, sequences) of this rank counted *before* anything was left out; None counts ``samples``.
            critic_only: the policy gets no update, whatever its gradient (critic warm-up).
            observe: called with each micro-batch. One that reads a value there makes the host wait for the device every
                time; keep detached tensors instead.

        Raises:
            PluginError: the loss returned values that do not fit its batch.
            TrainingDiverged: a loss or the gradient norm is not finite; weights are unchanged.
        """
        return means([self.update_sums(samples, totals, critic_only=critic_only, observe=observe)])

    def update_sums(
        self,
        samples: Sequence[Any],
        totals: tuple[float, float] | None = None,
        *,
        critic_only: bool = False,
        observe: Observe | None = None,
    ) -> MetricSums:
        """:meth:`update`, with the metrics not yet divided, so that several updates can be averaged exactly."""
        local = totals or (float(sum(i.tokens for i in samples)), float(len(samples)))
        tokens, sequences, present = self.strategy.sum_over_ranks([*local, float(len(samples))])
        if present == 0:
            return {"updates_skipped": (1.0, 1.0), "train/tokens": (tokens, 1.0)}
        factor = 0.0 if critic_only else self._factor(self.version - self.critic_only_updates)
        self.optimizer.set_rates(factor, self._critic_factor(self.version))
        turns = self._micro_batches(samples)
        rows: list[Mapping[str, Any]] = []
        for n, (micro, own) in enumerate(turns):
            with self.strategy.accumulate(self.module, last=n == len(turns) - 1):
                rows.append(self._forward_backward(micro, tokens, sequences, observe, is_dummy=not own))
        sums = self._read([micro for micro, own in turns if own], [row for row in rows if row])
        norms = self.optimizer.step(self._norm_parts(critic_only), self.settings.optimizer.max_grad_norm)
        for name, norm in norms.items():
            if not math.isfinite(norm):
                raise diverged(f"{name.replace('grad_norm', 'gradient norm').replace('_', ' ')} is {norm}", samples)
        self.version += 1
        self.critic_only_updates += critic_only
        core = {"learning_rate": (self.settings.optimizer.learning_rate * factor, 1.0), "train/tokens": (tokens, 1.0)}
        return {**self._over_ranks(sums), **{k: (v, 1.0) for k, v in norms.items()}, **core}

    def _micro_batches(self, samples: Sequence[Any]) -> list[tuple[list[Any], bool]]:
        """This rank's micro-batches, and dummies (False) of loss 0 for it to make as many as the rank with the most;
        a strategy with ``turns`` has others, such as those of ranks with which this one computes each together."""
        micros = [[samples[i] for i in part] for part in self.micro_batcher(samples)]
        if (turns := getattr(self.strategy, "turns", None)) is not None:
            return turns(micros)
        counts = self.strategy.gather_objects(len(micros))
        dummy = borrow_dummy_sample(self.strategy, samples[0] if samples else None, [n > 0 for n in counts])
        return [*((micro, True) for micro in micros), *[([dummy], False)] * (max(counts) - len(micros))]

    def _forward_backward(
        self, micro: Sequence[Any], tokens: float, sequences: float, observe: Observe | None, *, is_dummy: bool
    ) -> Mapping[str, Any]:
        """One micro-batch; its metrics stay on the device, for which nothing waits here."""
        batch = self.module(micro)
        out = self.loss(batch)
        value = self.reduce(out.loss, batch, tokens, sequences)
        if observe is not None and not is_dummy:
            observe(micro, batch, out)
        with repeatable_gradients(value.device):
            scale = 0.0 if is_dummy else getattr(self.optimizer, "loss_scale", 1.0)
            self.strategy.backward(value if scale == 1.0 else value * scale)
        if is_dummy:
            return {}
        row: dict[str, tuple[Any, Any]] = {"loss": (value, 0.0), **core_metrics(batch), **out.metrics}
        # copies without their graph: what a loss reports may be a buffer of its own that it goes on to change
        copies = [v.detach().clone() if isinstance(v, torch.Tensor) else v for pair in row.values() for v in pair]
        return dict(zip(row, zip(copies[::2], copies[1::2])))

    def _read(self, micros: Sequence[Sequence[Any]], rows: Sequence[Mapping[str, Any]]) -> MetricSums:
        """Metrics summed over this rank's micro-batches; gradients are dropped where a loss is not finite."""
        numbers = read_rows(rows)
        for micro, row in zip(micros, numbers, strict=True):
            if not math.isfinite(row["loss"][0]):
                self.optimizer.discard()
                raise diverged(f"loss is {row['loss'][0]}: {self.loss.label}", micro)
        return self._with_rank_loss(total(numbers))

    def _with_rank_loss(self, sums: MetricSums) -> MetricSums:
        """The loss is a share of the whole batch's; a rank without samples takes part too."""
        return {**sums, "loss": (sums.get("loss", (0.0, 0.0))[0], 1.0 / self.strategy.world_size)}

    def _norm_parts(self, critic_only: bool) -> list[NormPart]:
        if self.critic is None:
            return [NormPart("grad_norm", self.module)]
        policy = self.strategy.unwrap(self.module).get_submodule("model")
        return [NormPart("grad_norm", policy, learns=not critic_only), NormPart("critic_grad_norm", self.critic)]

    def reduce(self, loss: torch.Tensor, batch: Any, tokens: float, sequences: float) -> torch.Tensor:
        """Mask and divide by the global denominator (see :mod:`rlhf_core.training.functional`)."""
        if loss.ndim == 1:
            weights_B = getattr(batch, "weights_B", None)
            return (loss if weights_B is None else loss * weights_B).sum() / sequences
        mode = self.settings.reduction
        constant = sequences * self._constant_length
        denominator = {"token_mean": tokens, "sequence_mean": sequences, "constant": constant}[mode]
        return reduce_loss(loss, getattr(batch, "reduced_BT", batch.mask_BT), mode, denominator)

    @torch.no_grad()
    def measure(self, samples: Sequence[Any], advance: Advance = lambda count: None) -> dict[str, float]:
        """Loss and metrics of this rank's samples without an update, reduced like a batch over all ranks.

        Args:
            samples: this rank's.
            advance: called with the size of every micro-batch that is measured.
        """
        tokens, sequences = self.strategy.sum_over_ranks([float(sum(i.tokens for i in samples)), float(len(samples))])

        def measured(module: Any, micro: Sequence[Any]) -> Mapping[str, Any]:
            batch = module(micro)
            out = self.loss(batch)
            loss = self.reduce(out.loss, batch, tokens, sequences)
            advance(len(micro))
            return {"loss": (loss, 0.0), **core_metrics(batch), **out.metrics}

        sums = total(read_rows([row for _, row in self.no_grad.parts(samples, self.micro_batcher, measured)]))
        return means([self._over_ranks(self._with_rank_loss(sums))])

    def _over_ranks(self, sums: MetricSums) -> MetricSums:
        return dict(sorted(total(self.strategy.gather_objects(sums)).items()))

    def keep_final_weights(self) -> None:
        """After the last update: an optimizer may leave other weights than those that it trains."""
        getattr(getattr(self.optimizer, "inner", None), "eval", lambda: None)()

    def state_dict(self) -> dict[str, Any]:
        """Optimizer, schedule position and policy version."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "version": self.version,
            "critic_only_updates": self.critic_only_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.version, self.critic_only_updates = state["version"], state["critic_only_updates"]


def means(updates: Sequence[MetricSums]) -> dict[str, float]:
    """Weighted mean of each metric over updates; :data:`COUNTS` are added."""
    sums = {k: row for k, row in total(updates).items() if row[1] and not k.startswith("_")}
    return {k: value if k in COUNTS else value / weight for k, (value, weight) in sums.items()}


def read_rows(rows: Sequence[Mapping[str, tuple[Any, Any]]]) -> list[dict[str, tuple[float, float]]]:
    """(Sum, weight) rows as numbers: those on another device than the CPU come from it together, in one wait."""
    values = [value for row in rows for pair in row.values() for value in pair]
    far = [value.reshape(()).double() for value in values if _is_far(value)]
    read = iter(torch.stack(far).cpu().tolist() if far else ())
    numbers = iter([next(read) if _is_far(value) else float(value) for value in values])
    return [{key: (next(numbers), next(numbers)) for key in row} for row in rows]


def _is_far(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def total(rows: Iterable[Mapping[str, Any]]) -> MetricSums:
    """(Sum, weight) rows, added up, but for :data:`MAXIMA`."""
    sums: MetricSums = {}
    for row in rows:
        for key, (value, weight) in row.items():
            earlier = sums.get(key, (0.0, 0.0))
            added = earlier[0] + float(value), earlier[1] + float(weight)
            sums[key] = (max(earlier[0], float(value)), 1.0) if key in MAXIMA else added
    return sums


def core_metrics(batch: Any) -> dict[str, tuple[Any, Any]]:
    """(Sum, weight) of each metric of a token batch, on its device; ``approx_kl`` is KL(sampler || policy) by k3."""
    mask = getattr(batch, "mask_BT", None)
    if mask is None:
        return {}
    weight = mask.sum()
    rows: dict[str, tuple[Any, Any]] = {}
    if batch.old_logprobs_BT is not None and batch.behaviour_logprobs_BT is not None:  # demonstrations have no sampler
        gap_BT = batch.logprobs_BT.detach() - batch.old_logprobs_BT
        ratio_BT = bounded_ratio(gap_BT)[0]
        rows["approx_kl"] = (((ratio_BT - 1 - gap_BT) * mask).sum(), weight)
        rows["ratio_max"] = ((ratio_BT * mask).amax(), 1.0)
    if batch.entropy_BT is not None:
        rows["entropy"] = ((batch.entropy_BT.detach() * mask).sum(), weight)
    if batch.behaviour_logprobs_BT is not None:
        gap = ((batch.behaviour_logprobs_BT - batch.logprobs_BT.detach()) * mask).abs()
        rows["drift/mean_abs"] = (gap.sum(), weight)
        rows["drift/sequence_max_abs"] = (gap.amax(-1).sum(), len(gap))
        gap_B, tokens_B = gap.sum(-1).double(), mask.sum(-1).double()
        spread = (gap_B @ gap_B, gap_B @ tokens_B, tokens_B @ tokens_B)
        rows |= {name: (total, 1.0) for name, total in zip(DRIFT_SPREAD, spread)}
    return rows


def diverged(what: str, samples: Sequence[Any]) -> TrainingDiverged:
    """The error for a loss or gradient that is not finite, naming the batch."""
    names = ", ".join(i.name for i in samples[:8]) + (f" and {len(samples) - 8} more" if len(samples) > 8 else "")
    return TrainingDiverged(
        what,
        where=f"batch of {len(samples)}: {names}",
        why="no update was made; the last complete checkpoint is kept",
        fix="lower trainer.optimizer.learning_rate, add warm-up, or look at these rows in trace.jsonl",
    )


def lr_factor(settings: OptimizerSettings, total: int) -> Callable[[int], float]:
    """Update number (from 0) -> factor on the learning rate, above 0 from the first on; after the warm-up that of
    transformers' schedule of the same name."""
    warmup, floor = settings.warmup(total), settings.min_lr / settings.learning_rate
    stable = settings.schedule == "warmup_stable_decay"
    start = total - max(1, round(settings.decay_ratio * total)) if stable else warmup

    def factor(n: int) -> float:
        if n < warmup:
            return (n + 1) / warmup
        if settings.schedule.startswith("constant"):
            return 1.0
        past = min(1.0, max(0.0, (n - start) / max(1, total - start)))
        left = 1.0 - past if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * past))
        return floor + (1.0 - floor) * left

    return factor
