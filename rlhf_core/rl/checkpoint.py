"""Contents of a checkpoint of an on-policy run: weights, optimizer, position in the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlhf_core.data.order import check_fingerprint, fingerprint
from rlhf_core.models.load import LoadedModel
from rlhf_core.models.reference import Reference
from rlhf_core.models.slices import load_whole
from rlhf_core.models.tensor_files import save_named
from rlhf_core.rl.sources import PromptLoader
from rlhf_core.runs.checkpoint import Checkpoint, CheckpointManager, WriteModel
from rlhf_core.training.forward import ForwardOptions
from rlhf_core.training.forward_check import ForwardCheck
from rlhf_core.training.learner import Learner
from rlhf_core.training.weight_sync import trained_names
from rlhf_core.types.rollouts import Prompt

CRITIC_FILE = "critic.safetensors"


def save_critic(critic: torch.nn.Module, weights: Mapping[str, Any], folder: Path) -> None:
    """Write the weights that learn; the rest (the base under its adapters) is where the policy came from."""
    save_named(weights, trained_names(critic), folder / CRITIC_FILE)


class PolicyWeights:
    """The weights of a run on disk: policy, critic, and a reference policy that is synced."""

    def __init__(self, policy: LoadedModel, critic: torch.nn.Module | None, synced_reference: Reference | None) -> None:
        self.policy, self.critic, self.synced_reference = policy, critic, synced_reference

    def load(self, checkpoint: Checkpoint) -> None:
        """Read a checkpoint's, bit for bit; before the strategy prepares the module."""
        self.policy.load_weights(checkpoint.model)
        if self.critic is not None:
            fix = "resume with the advantage that the run was started with"
            load_whole(self.critic, checkpoint.path / CRITIC_FILE, set(trained_names(self.critic)), "critic", fix)
        if self.synced_reference is not None:
            self.synced_reference.load(checkpoint.path)

    @property
    def beside(self) -> list[tuple[torch.nn.Module, WriteModel]]:
        """What else has weights, and what writes them into a checkpoint's folder: critic, and synced reference."""
        critic, reference = self.critic, self.synced_reference
        parts: list[tuple[torch.nn.Module, WriteModel]] = []
        if critic is not None:
            parts.append((critic, lambda folder, weights: save_critic(critic, weights, folder)))
        if reference is not None:
            parts.append((reference.model, reference.save))
        return parts


@dataclass(eq=False)
class OnlineCheckpoint:
    """Saves and restores an on-policy run."""

    checkpoints: CheckpointManager
    weights: PolicyWeights
    learner: Learner
    prompts: PromptLoader
    held: Sequence[Prompt]
    forward_check: ForwardCheck | None = None

    def save(self, step: int, trainer_state: Mapping[str, Any], rank_state: Mapping[str, Any] | None = None) -> None:
        """Write the checkpoint of a step."""
        state = {"online": self.state_dict(), **trainer_state}
        policy = self.weights.policy
        self.checkpoints.save(step, state, policy.model, policy.save, rank_state, self.weights.beside)

    def write_final(self) -> None:
        """Write ``final/`` in plain Hugging Face form, adapters merged."""
        policy = self.weights.policy
        self.checkpoints.write_final(policy.model, partial(policy.save, merge=True))

    def state_dict(self) -> dict[str, Any]:
        """Optimizer, data position and forward options."""
        check = self.forward_check
        options = (
            {} if check is None else {"forward_options": asdict(check.module.options), "forward_checked": check.done}
        )
        return {
            "learner": self.learner.state_dict(),
            "prompt_order": self.prompts.order.state_dict(),
            "heldout": fingerprint(self.held),
            **options,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        check_fingerprint("held-out prompts", state["heldout"], fingerprint(self.held))
        if self.forward_check is not None:
            module = self.forward_check.module
            module.options = module.options.both(ForwardOptions(**state["forward_options"]))
            self.forward_check.done = state["forward_checked"]
        self.learner.load_state_dict(state["learner"])
        self.prompts.order.load_state_dict(state["prompt_order"])
