"""The memory plan of a run: bytes per rank, phase and part, for any strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.memory.footprint import Footprint, ModelSize
from rlhf_core.memory.layouts import STRATEGIES, Name, shares
from rlhf_core.memory.live import UNNAMED
from rlhf_core.memory.loading import load_phase
from rlhf_core.memory.phase import Phase, phase_of

PHASES = ("load", "rollout", "update", "checkpoint")
BUCKET = 50_000_000
"""Elements that rlhf-plugin-deepspeed reduces at a time, by default."""
MOST_RANKS = 4096


@dataclass(frozen=True)
class Placement:
    """How the ranks share the work.

    Example:
        Placement("hsdp", 16, 8)
    """

    strategy: Name
    ranks: int = 1
    ranks_per_node: int = 8
    tensor: int = 1
    """Ranks that share every layer."""
    pipeline: int = 1
    """Groups of layers on ranks of their own."""
    bucket: int = BUCKET
    """Elements of gradients that DeepSpeed adds over ranks at once."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes per rank."""

    placement: Placement
    phases: Mapping[str, Phase]

    @property
    def peak(self) -> int:
        """Of the phase that needs most, on the device."""
        return max(phase.total for phase in self.phases.values())

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda name: self.phases[name].total)

    @property
    def host_peak(self) -> int:
        """In main memory beside a device of its own."""
        return max(sum(phase.host.values()) for phase in self.phases.values())


def check_placement(place: Placement, model: ModelSize) -> None:
    """Refuse splits that cannot be.

    Raises:
        ConfigError: which number does not divide which.
    """
    split = place.tensor * place.pipeline
    if place.strategy == "single" and place.ranks > 1:
        raise ConfigError(
            f"strategy single has one rank, not {place.ranks}", fix="--strategy ddp, or leave out --ranks"
        )
    if place.strategy == "hsdp" and place.ranks % min(place.ranks, place.ranks_per_node):
        raise ConfigError(
            f"{place.ranks} ranks are no whole nodes of {place.ranks_per_node}",
            fix="change --ranks or --ranks-per-node",
        )
    if place.ranks % split:
        raise ConfigError(
            f"a split into {place.tensor} x {place.pipeline} does not divide {place.ranks} ranks",
            fix=f"--ranks {split * max(1, place.ranks // split)}, or smaller --tensor and --pipeline",
        )
    if place.tensor > 1 and (model.heads % place.tensor or model.kv_heads % place.tensor):
        raise ConfigError(
            f"--tensor {place.tensor} does not divide the {model.heads} heads and {model.kv_heads} heads of keys of "
            f"'{model.path}'",
            fix="choose a common divisor",
        )
    if place.pipeline > max(1, model.layers):
        raise ConfigError(f"--pipeline {place.pipeline} is more than the {model.layers} layers", fix="lower it")


def plan_for(found: Footprint, place: Placement, *, on_cpu: bool) -> MemoryPlan:
    """Share a footprint out.

    Args:
        found: of one process that holds everything.
        place: strategy and ranks.
        on_cpu: the device is main memory.
    """
    check_placement(place, found.model)
    split = place.tensor * place.pipeline
    of = shares(place.strategy, place.ranks // split, place.ranks_per_node)
    model, update, sampling = found.model, found.update, found.sampling
    weights, reference, trained = model.weights / split, found.reference / split, update.trained / split
    critic, moments = update.critic / split, update.parts.get("optimizer", 0) / split
    layer, root = model.layer / place.tensor, model.root / place.tensor
    models = {"weights": weights, "reference": reference, "critic": critic}
    copies = {"sampler copy": found.sampler / split, "rewards": float(found.rewards)}
    held: dict[str, float] = {**{name: size * of.weights for name, size in models.items()}, **copies}
    if of.loads_whole:
        held["root group"] = root * sum(models.values()) / weights if weights else 0.0
    made = {"stepped copy": trained * of.stepped} if of.stepped else {}
    if of.loads_whole:
        made |= {"gradients": trained * of.gradients, "reduce buffer": 4.0 * place.bucket}
    elif place.strategy == "ddp" and place.ranks > 1:
        made["gradients"] = trained  # views of the buckets, which stay
    state: dict[str, float] = {"optimizer": moments * of.moments, **made}
    in_update = {"gradients": max(trained * of.gradients, 0.0), UNNAMED: _activations(found, place)}
    if of.gathers:
        whole_root = root * (weights + critic) / weights if weights else 0.0
        in_update |= {"gathered units": 2.0 * layer, "communication": _gradients_on_their_way(found, layer, whole_root)}
        in_update |= {} if of.loads_whole else {"root group": whole_root}
    elif place.strategy == "ddp" and place.ranks > 1 and found.sizes.micro_batches > 1:
        in_update["communication"] = trained  # gradients lie beside the buckets until the last micro-batch
    elif of.stepped and place.ranks > 1:
        # a buffer of stage 2 has its full size from the first gradient on; stage 1 joins what there is
        in_update["communication"] = 4.0 * place.bucket if of.gradients < 1 else min(trained, 4.0 * place.bucket)
    in_step = {} if on_cpu else {"optimizer temporaries": trained * of.moments}
    in_rollout: dict[str, float] = {}
    if sampling is not None:
        in_rollout = {name: size / (split if name == "KV cache" else 1) for name, size in sampling.parts.items()}
        kept = root if of.loads_whole else held["weights"]
        in_rollout |= {"gathered units": weights - kept} if of.gathers else {}
    written = max(trained * 2 * of.moments if on_cpu else 0.0, 0.0 if of.gathers else model.merged / split)
    gathered = {"gathered weights": _gathered_to_write(model, on_cpu) / split} if of.gathers else {}
    laid = partial(phase_of, held, weights_away=of.weights_on_host, state_away=of.moments_on_host)
    backward = laid(state | {"gradients": 0.0}, in_update)
    step = laid(state | {"gradients": 0.0}, {"gradients": in_update["gradients"], **in_step})
    phases = {
        "load": load_phase(of, models, held, made, trained, on_cpu=on_cpu, by_parts=model.by_parts),
        "rollout": laid(state, in_rollout),
        "update": max(backward, step, key=lambda phase: phase.total),
        "checkpoint": laid(state, {"copies to be written": written, **gathered}),
    }
    if sampling is None:
        del phases["rollout"]
    return MemoryPlan(place, phases)


def _gradients_on_their_way(found: Footprint, layer: float, root: float) -> float:
    """Whole gradients that a sharding strategy has not divided yet, when they and what the backward still keeps are
    most: those of the root from the head's backward to the end, and later two layers', when at least one layer's
    activations are gone. Adapters have no gradients of the root.
    """
    model = found.model
    of_trained = model.trained / model.parameters if model.parameters else 0.0
    at_first = root if of_trained == 1 else 0.0
    freed = found.update.parts.get(UNNAMED, 0) / max(1, model.layers)
    return max(at_first, at_first + 2.0 * layer * of_trained - freed)


def _gathered_to_write(model: ModelSize, on_cpu: bool) -> float:
    """Bytes beyond a rank's share (:mod:`rlhf_core.strategy.whole_weights`): one weight. In main memory what an adapter
    adds to it takes twice as much again, and all are there where transformers wants them at once.
    """
    if not on_cpu:
        return float(model.largest)
    return float(model.weights if model.converted else max(model.largest, 3 * model.largest_merged))


def _activations(found: Footprint, place: Placement) -> float:
    """What is live beside weights, gradients and moments at the update's peak; split over tensor ranks by an estimate:
    of 34 bytes of a token's activations in a layer 24 are split (Korthikanti et al. 2022, equation 2)."""
    whole = found.update.parts.get(UNNAMED, 0)
    return whole * (10 + 24 / place.tensor) / 34


def every_strategy(
    found: Footprint, ranks: int, ranks_per_node: int, *, on_cpu: bool, bucket: int = BUCKET
) -> list[MemoryPlan]:
    """The plan of each strategy on so many ranks; one process where there is one."""
    names: list[Name] = [name for name in STRATEGIES if (name == "single") == (ranks == 1)]
    if ranks > 1 and ranks % min(ranks, ranks_per_node):
        names.remove("hsdp")
    return [plan_for(found, Placement(name, ranks, ranks_per_node, bucket=bucket), on_cpu=on_cpu) for name in names]


def fewest_ranks(
    found: Footprint, name: Name, limit: int, ranks_per_node: int, *, on_cpu: bool, bucket: int = BUCKET
) -> int | None:
    """The smallest power of two of ranks on which a strategy fits; None where no number does."""
    ranks = 1
    while ranks <= MOST_RANKS:
        of = "single" if ranks == 1 and name == "ddp" else name
        place = Placement(of, ranks, ranks_per_node, bucket=bucket)
        if plan_for(found, place, on_cpu=on_cpu).peak <= limit:
            return ranks
        ranks *= 2
    return None


def as_json(plan: MemoryPlan) -> dict[str, Any]:
    """For machines."""
    place = plan.placement
    return {
        "strategy": place.strategy,
        "ranks": place.ranks,
        "peak": plan.peak,
        "peak_phase": plan.peak_phase,
        "host_peak": plan.host_peak,
        "phases": {
            name: {"total": phase.total, "parts": phase.parts, "host": phase.host}
            for name, phase in plan.phases.items()
        },
    }
