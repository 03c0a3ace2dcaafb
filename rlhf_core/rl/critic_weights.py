"""The weights of a critic beside the policy, in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlhf_core.models.tensor_files import save_named
from rlhf_core.types.errors import ModelError

FILE = "critic.safetensors"


def save_critic(critic: torch.nn.Module, weights: Mapping[str, Any], folder: Path) -> None:
    """Write the weights that learn; the rest (the base under its adapters) is where the policy came from."""
    save_named(weights, [k for k, p in critic.named_parameters() if p.requires_grad], folder / FILE)


def load_critic(critic: torch.nn.Module, folder: Path) -> None:
    """Put them back, bit for bit.

    Raises:
        ModelError: the file is not there, or is that of another critic.
    """
    from rlhf_core.models.slices import load_named, stored_in

    file = folder / FILE
    if not file.is_file():
        raise ModelError(
            f"checkpoint '{folder}' holds no critic",
            where=str(file),
            fix="resume with the advantage that the run was started with",
        )
    state, wanted = stored_in([file]), {k for k, p in critic.named_parameters() if p.requires_grad}
    if state.keys() != wanted:
        raise ModelError(
            f"checkpoint '{folder}' does not fit the critic",
            why=f"they differ in {sorted(state.keys() ^ wanted)[:3]}",
            fix="resume with the settings it was made with",
        )
    load_named(critic, file)
