"""One phase of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_plugin_preflight.memory.engine import RESERVED

if TYPE_CHECKING:
    from rlhf_core.models import ModelConfig
    from rlhf_plugin_preflight.memory.layouts import Shares


Parts = dict[str, int]
ON_DEVICE = ("sampler copy", "rewards", "teacher", "gradients", "reduce buffer", *RESERVED)
"""Parts that no strategy keeps in main memory beside a device of its own."""


COMPUTING = "reference while it computes"
"""A copy on the device of what lies in main memory; the same bytes where the two are one."""


@dataclass(frozen=True)
class Phase:
    parts: Parts
    host: Parts
    """In main memory, where the device has memory of its own."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def in_one_memory(self) -> Phase:
        """The same where main memory is the device's."""
        names = [name for name in dict.fromkeys([*self.parts, *self.host]) if name != COMPUTING]
        return Phase({name: self.parts.get(name, 0) + self.host.get(name, 0) for name in names}, {})


def phase_of(
    held: Mapping[str, float],
    state: Mapping[str, float],
    more: Mapping[str, float],
    *,
    weights_away: bool,
    state_away: bool,
) -> Phase:
    """Put every part where it lies, once per name; ``held`` are weights, ``state`` is the optimizer's."""
    device: dict[str, float] = {}
    host: dict[str, float] = {}
    for source, away in ((held, weights_away), (state, state_away), (more, False)):
        for name, size in source.items():
            target = host if away and name not in ON_DEVICE else device
            target[name] = target.get(name, 0.0) + size
    return Phase(_rounded(device), _rounded(host))


def _rounded(parts: Mapping[str, float]) -> Parts:
    return {name: round(size) for name, size in parts.items() if round(size)}


Sizes = Mapping[str, float]


def load_phase(
    of: Shares, models: Sizes, held: Sizes, made: Sizes, trained: float, *, on_cpu: bool, by_parts: bool = True
) -> Phase:
    """The largest moment of loading. Where weights cannot be read by parts, policy, reference and critic are whole on
    each rank's device together before they are divided, the reference last; ZeRO 1 and 2 copy trained weights into one
    tensor. ``models``: bytes of policy, reference and critic, whole; ``held``: what a rank keeps; ``made``: what is
    made with the optimizer, moments apart; ``trained``: bytes of trained weights."""
    if of.gathers and not by_parts:
        whole = {**held, **models, "root group": 0.0}
        undivided = phase_of(whole, {}, {}, weights_away=False, state_away=False)
        reference_whole = {**held, "reference": models["reference"]}
        policy_divided = phase_of(
            reference_whole, made, {}, weights_away=of.weights_on_host, state_away=of.moments_on_host
        )
        return max(undivided, policy_divided, key=lambda phase: phase.total)
    laid_flat = {"weights laid end to end": trained} if of.stepped and on_cpu and not of.keeps_root else {}
    root = made if of.keeps_root else {}
    return phase_of(held, root, laid_flat, weights_away=of.weights_on_host, state_away=of.moments_on_host)


def lies_by_parts(config: ModelConfig, text: Any) -> bool:
    """Whether a model's weights can stay on disk, for ranks to read parts of them; ``text`` configures its decoder."""
    from rlhf_core.models.layers.trunk_and_head import keys_and_values_only
    from rlhf_core.models.modality import MODALITY_FILE
    from rlhf_plugin_native.decode_step import make_cache
    from rlhf_plugin_preflight.memory.weightless import describe

    source = describe(config).source
    if config.quantize is not None or source.adapter is not None or (Path(source.path) / MODALITY_FILE).is_file():
        return False
    if getattr(text, "quantization_config", None) is not None:
        return False
    return keys_and_values_only(make_cache(text))
