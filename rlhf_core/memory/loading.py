"""What a rank holds until its strategy has divided the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlhf_core.memory.phase import Phase, phase_of

if TYPE_CHECKING:
    from rlhf_core.memory.layouts import Shares

Sizes = Mapping[str, float]


def load_phase(of: Shares, models: Sizes, held: Sizes, made: Sizes, trained: float, *, on_cpu: bool) -> Phase:
    """The largest moment of loading.

    Where every rank loads the whole model first (DeepSpeed's stage 3), policy, reference and critic are whole on its
    device together; then policy and critic are divided and what their optimizer needs is made, and the reference is
    divided last. In stages 1 and 2 the trained weights are laid end to end in a new tensor while the old ones are still
    there; on a GPU that happens in main memory where there is no room.

    Args:
        of: the strategy.
        models: bytes of policy, reference and critic, whole.
        held: what a rank has of them and of everything else once it is divided.
        made: what is made with the optimizer and stays, moments apart.
        trained: bytes of the weights that are trained.
        on_cpu: the device is main memory.
    """
    if of.loads_whole:
        whole = {**held, **models, "root group": 0.0}
        undivided = phase_of(whole, {}, {}, weights_away=False, state_away=False)
        reference_whole = {**held, "reference": models["reference"]}
        policy_divided = phase_of(
            reference_whole, made, {}, weights_away=of.weights_on_host, state_away=of.moments_on_host
        )
        return max(undivided, policy_divided, key=lambda phase: phase.total)
    laid_flat = {"weights laid end to end": trained} if of.stepped and on_cpu else {}
    return phase_of(held, {}, laid_flat, weights_away=of.weights_on_host, state_away=of.moments_on_host)
