"""Seconds of a whole step by part: rollout, reward, forwards, update and weight sync, in turn or side by side."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_core.config import ConfigError
from rlhf_plugin_preflight.cost.hardware import SERVED, Gpu, Shape
from rlhf_plugin_preflight.cost.rollout import Engine, Factors, Lengths, rollout

OPTIMIZER = 28
"""Bytes of a parameter that AdamW's step reads and writes in float32: weight, gradient and two moments."""


@dataclass(frozen=True)
class Work:
    """Of one step."""

    completions: int
    group: int
    prompt: int
    """Tokens of a prompt."""
    lengths: Lengths
    updates: int = 1
    epochs: int = 1
    """Passes over the batch, each in its share of the updates."""
    forwards: int = 1
    """Over all completions, beside those of the update: a reference, logprobs of the policy before the update."""
    recompute: bool = True
    """Activations are computed twice (``model.gradient_checkpointing``)."""
    trained: float = 1.0
    """Share of the parameters that is trained; below 1 adapters, whose base has no gradients."""
    reward_s: float = 0.0
    """Seconds of all rewards together, after the last completion."""
    host_s: float = 0.0
    """Seconds that rank 0 needs for advantages, trace and metrics, while the others wait."""
    micro_tokens: int = 16384
    """Tokens of a micro-batch, after each of which sharded weights are gathered anew."""


@dataclass(frozen=True)
class Layout:
    """Of GPUs; ``serve`` 0: every GPU trains and samples in turn."""

    train: int
    serve: int = 0
    tensor: int = 1
    """GPUs of one rollout engine."""
    together: int = 1
    """GPUs that compute one sequence of an update (tensor, pipeline and context parallel); 1: sharded data parallel."""
    staleness: int = 0
    """Batches that are sampled ahead."""
    sync_rate: float = 0.0
    """Bytes a second of each weight handed to servers; 0: as fast as the network."""

    def __post_init__(self) -> None:
        engines, rest = divmod(self.serve or self.train, self.tensor)
        wrong = ""
        if min(self.train, self.tensor, self.together) < 1 or min(self.serve, self.staleness) < 0:
            wrong = "numbers of GPUs are at least 1, --serve and --staleness at least 0"
        elif rest or not engines:
            wrong = f"engines of {self.tensor} GPUs do not divide the {self.serve or self.train} that sample"
        elif self.train % self.together:
            wrong = f"{self.together} GPUs for one sequence do not divide the {self.train} that train"
        elif self.staleness and not self.serve:
            wrong = "where every GPU trains and samples in turn nothing is sampled ahead"
        if wrong:
            raise ConfigError(
                "this is no layout of GPUs", why=wrong, fix="change --gpus, --serve, --tensor or --staleness"
            )

    @property
    def gpus(self) -> int:
        return self.train + self.serve


@dataclass(frozen=True)
class Step:
    """Seconds, and what they are worth."""

    rollout: float
    reward: float
    host: float
    forwards: float
    update: float
    sync: float
    seconds: float
    """Of the step: the parts, less what runs at the same time."""
    tokens_per_gpu: float
    """Of prompts and completions that are learned from, a second and GPU."""
    utilisation: float
    """Model operations of rollout, forwards and update over the GPUs' peak."""
    idle: float
    """Share of the GPUs' time in which they have nothing to do."""


def simulate(shape: Shape, gpu: Gpu, work: Work, layout: Layout, factors: Factors, share: float | None = None) -> Step:
    """Simulate a step; ``share``: of a GPU's memory that the rollout engine may take (None: 0.9, beside a trainer 0.6).

    Raises:
        ConfigError: an engine does not hold the weights.
    """
    share = share or (0.9 if layout.serve else 0.6)
    engine = Engine(shape, gpu, factors, layout.tensor, share)
    samples = layout.serve or layout.train
    ahead = max(1, layout.staleness)
    count = work.completions * ahead
    sampled = rollout(engine, samples // layout.tensor, work.lengths, count, max(1, count // work.group), work.prompt)
    generate, busy = sampled.seconds / ahead, sampled.busy / ahead
    forward = _computed(shape, gpu, work, layout, factors, work.forwards)
    update = _update(shape, gpu, work, layout, factors)
    sync = work.trained * _sync(shape, gpu, layout, factors)
    first, second = generate + work.reward_s, work.host_s + forward + update
    seconds = (max(first, second) if layout.staleness else first + second) + sync
    tokens = work.completions * (work.prompt + work.lengths.mean)
    forwards = 1 + work.forwards + _passes(work)
    at_work = samples * busy + layout.train * (forward + update) + layout.gpus * sync
    return Step(
        generate, work.reward_s, work.host_s, forward, update, sync, seconds,
        tokens_per_gpu=tokens / seconds / layout.gpus,
        utilisation=forwards * _operations(shape, work) / (seconds * layout.gpus * gpu.flops),
        idle=max(0.0, 1 - at_work / (layout.gpus * seconds)),
    )  # fmt: skip


def _operations(shape: Shape, work: Work) -> float:
    """Of one forward over the batch: two for each parameter and token, and attention (causal: half of the pairs)."""
    lengths = work.lengths.drawn(min(work.completions, 1024))
    squares = sum((work.prompt + n) ** 2 for n in lengths) / len(lengths)
    return work.completions * (
        2 * shape.active * (work.prompt + work.lengths.mean) + 2 * shape.layers * shape.attention * squares
    )


def _passes(work: Work) -> int:
    """Forwards that an update's forward and backward are worth; without gradients of the base one fewer."""
    return work.epochs * (3 if work.trained == 1 else 2)


def _update(shape: Shape, gpu: Gpu, work: Work, layout: Layout, factors: Factors) -> float:
    """Forward and backward of all updates, the gathering of weights that is not hidden behind them, and AdamW."""
    times = _passes(work) + work.epochs * work.recompute
    computed = _computed(shape, gpu, work, layout, factors, times, work.updates)
    tokens = work.epochs * work.completions * (work.prompt + work.lengths.mean) / layout.train
    sent = 0.0
    if layout.train > 1:
        each = max(work.updates, tokens / work.micro_tokens) if layout.together == 1 else work.updates
        gathered = 4 * shape.parameters if layout.together == 1 else 0.0
        moved = each * (gathered + 4 * work.trained * shape.parameters / layout.together)
        sent = moved * (1 - 1 / layout.train) / (gpu.bus(layout.train) * factors.collective)
    stepped = OPTIMIZER * work.trained * shape.parameters / (layout.train * gpu.bandwidth * factors.memory)
    return max(computed, sent) + work.updates * stepped


def _computed(
    shape: Shape, gpu: Gpu, work: Work, layout: Layout, factors: Factors, times: int, parts: int = 1
) -> float:
    """Seconds of ``times`` forwards' operations, in ``parts``: of each part the longest sequence is on one group."""
    rate = layout.together * gpu.flops * factors.mfu
    groups = max(1, min(layout.train // layout.together, work.epochs * work.completions // parts))
    longest = work.prompt + work.lengths.drawn(work.completions)[0]
    one = 2 * shape.active * longest + 2 * shape.layers * shape.attention * longest**2
    return times * max(_operations(shape, work) / groups, parts * one / work.epochs) / rate


def _sync(shape: Shape, gpu: Gpu, layout: Layout, factors: Factors) -> float:
    """Weights to the engines, in their type: gathered in the processes, or sent to servers once over the network."""
    size = SERVED * shape.parameters
    if not layout.serve:
        return size * (1 - 1 / layout.train) / (gpu.bus(layout.train) * factors.collective) if layout.train > 1 else 0.0
    rate = gpu.bus(layout.gpus) if layout.gpus <= 8 else gpu.network
    return size / (layout.sync_rate or rate * factors.collective)
