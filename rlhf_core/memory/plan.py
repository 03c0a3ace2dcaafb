"""The memory plan of a run: bytes per rank, phase and part, for any strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.memory.footprint import Footprint, ModelSize
from rlhf_core.memory.layouts import STRATEGIES, Name, shares
from rlhf_core.memory.live import UNNAMED

PHASES = ("load", "rollout", "update", "checkpoint")
BUCKET = 500_000_000
"""Elements that DeepSpeed reduces at a time, by default."""
MOST_RANKS = 4096
Parts = dict[str, int]


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


@dataclass(frozen=True)
class Phase:
    """One phase on the rank that needs most."""

    parts: Parts
    """On the device."""
    host: Parts
    """In main memory, where the device has memory of its own."""

    @property
    def total(self) -> int:
        """On the device."""
        return sum(self.parts.values())


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
    held: dict[str, float] = {
        "weights": weights * of.weights,
        "reference": reference * of.weights,
        "sampler copy": found.sampler / split,
        "critic": critic * of.weights,
        "rewards": float(found.rewards),
    }
    state: dict[str, float] = {"optimizer": moments * of.moments}
    if place.strategy == "ddp" and place.ranks > 1:
        state["gradients"] = trained  # views of the buckets, which stay
    in_update = {"gradients": max(trained * of.gradients, 0.0), UNNAMED: _activations(found, place)}
    if of.gathers:
        layer, root = model.layer / place.tensor, model.root / place.tensor
        in_update |= {"gathered units": 2.0 * layer, "root group": root, "communication": 2.0 * layer}
    elif place.strategy == "ddp" and place.ranks > 1 and found.sizes.micro_batches > 1:
        in_update["communication"] = trained  # gradients lie beside the buckets until the last micro-batch
    elif place.strategy in ("zero1", "zero2") and place.ranks > 1:
        in_update["communication"] = min(trained, 4.0 * BUCKET)
    in_step = {} if on_cpu else {"optimizer temporaries": trained * of.moments}
    in_rollout: dict[str, float] = {}
    if sampling is not None:
        in_rollout = {name: size / (split if name == "KV cache" else 1) for name, size in sampling.parts.items()}
        in_rollout |= {"gathered units": weights - held["weights"]} if of.gathers else {}
    written = max(trained * 2 * of.moments if on_cpu else 0.0, model.merged / split)
    gathered = {"gathered weights": weights - held["weights"]} if of.gathers and on_cpu else {}
    phases = {
        "load": _phase(held, {}, {}, of.weights_on_host, of.moments_on_host),
        "rollout": _phase(held, state, in_rollout, of.weights_on_host, of.moments_on_host),
        "update": max(
            _phase(held, state | {"gradients": 0.0}, in_update, of.weights_on_host, of.moments_on_host),
            _phase(
                held, state, {"gradients": in_update["gradients"], **in_step}, of.weights_on_host, of.moments_on_host
            ),
            key=lambda phase: phase.total,
        ),
        "checkpoint": _phase(
            held, state, {"copies to be written": written, **gathered}, of.weights_on_host, of.moments_on_host
        ),
    }
    if sampling is None:
        del phases["rollout"]
    return MemoryPlan(place, phases)


def _activations(found: Footprint, place: Placement) -> float:
    """What is live beside weights, gradients and moments at the update's peak; split over tensor ranks by an estimate:
    of 34 bytes of a token's activations in a layer 24 are split (Korthikanti et al. 2022, equation 2)."""
    whole = found.update.parts.get(UNNAMED, 0)
    return whole * (10 + 24 / place.tensor) / 34


def _phase(
    held: Mapping[str, float],
    state: Mapping[str, float],
    more: Mapping[str, float],
    weights_away: bool,
    state_away: bool,
) -> Phase:
    device: dict[str, float] = {}
    host: dict[str, float] = {}
    for source, away in ((held, weights_away), (state, state_away), (more, False)):
        for name, size in source.items():
            target = host if away and name not in ("sampler copy", "rewards") else device
            target[name] = target.get(name, 0.0) + size
    return Phase(_whole(device), _whole(host))


def _whole(parts: Mapping[str, float]) -> Parts:
    return {name: round(size) for name, size in parts.items() if round(size)}


def every_strategy(found: Footprint, ranks: int, ranks_per_node: int, *, on_cpu: bool) -> list[MemoryPlan]:
    """The plan of each strategy on so many ranks; one process where there is one."""
    names: list[Name] = [name for name in STRATEGIES if (name == "single") == (ranks == 1)]
    if ranks > 1 and ranks % min(ranks, ranks_per_node):
        names.remove("hsdp")
    return [plan_for(found, Placement(name, ranks, ranks_per_node), on_cpu=on_cpu) for name in names]


def fewest_ranks(found: Footprint, name: Name, limit: int, ranks_per_node: int, *, on_cpu: bool) -> int | None:
    """The smallest power of two of ranks on which a strategy fits; None where no number does."""
    ranks = 1
    while ranks <= MOST_RANKS:
        of = "single" if ranks == 1 and name == "ddp" else name
        if plan_for(found, Placement(of, ranks, ranks_per_node), on_cpu=on_cpu).peak <= limit:
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
