"""The logits of a whole batch are never in memory at once, in no room that runs the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.models.layers.chunked_head import CHUNK_BYTES
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.forward import ALL, ForwardOptions
from rlhf_core.training.learner import Learner
from rlhf_core.training.policy_module import PolicyModule
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_plugin_grpo.loss import GrpoClip

VOCABULARY, TOKENS, COMPLETIONS = 40_000, 80, 6


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation puts out, in the backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return out


def largest(paths: ForwardOptions) -> dict[str, int]:
    """By room: one update, and what is measured without gradient (old and reference logprobs)."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    ).eval()
    rng = np.random.default_rng(0)
    rows = [
        TrainingSample(
            str(i),
            (1, 2, 3),
            tuple(rng.integers(0, VOCABULARY, TOKENS).tolist()),
            np.ones(TOKENS, bool),
            np.full(TOKENS, rng.normal(), np.float32),
        )
        for i in range(COMPLETIONS)
    ]
    room = PolicyModule(model, 1.0, paths)
    learner = Learner(room, GrpoClip(0.2, 0.2), LocalStrategy(), OnlineTrainerConfig(name="t"), 1)
    room([rows[0]])  # examines the model
    found: dict[str, int] = {}
    with Largest() as update:
        learner.update(rows)
    with Largest() as measure:
        learner.no_grad.rows(rows, COMPLETIONS, lambda module, micro: module.measure(micro, {"logprobs", "entropy"}))
    found["update"], found["measure"] = update.numel, measure.numel
    return found


@pytest.mark.parametrize("packing", [True, False])
def test_no_tensor_holds_all_logits(packing: bool) -> None:
    found = largest(ALL if packing else ALL.without("packing"))
    chunk = CHUNK_BYTES // 4
    assert chunk < COMPLETIONS * TOKENS * VOCABULARY / 2
    assert found["update"] <= chunk
    assert found["measure"] <= chunk


@pytest.mark.slow
def test_the_detector_sees_them_when_the_head_is_not_chunked() -> None:
    assert min(largest(ALL.without("chunked_head")).values()) == COMPLETIONS * TOKENS * VOCABULARY
